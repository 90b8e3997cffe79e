"""A tokenizer without any library: a token is a character, a control token, or one merged word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CONTROLS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MERGED = "Antwort"
"""One token where a text is encoded; sampled letter by letter it is another segmentation of the same text."""

_WORDS = (*CONTROLS, MERGED)
_PIECES = re.compile("|".join(map(re.escape, _WORDS)) + "|.", re.DOTALL)
_FIRST_CHARACTER = 1000


class CharTokenizer:
    """ChatML with a template that never changes earlier text."""

    eos_token = "<|im_end|>"
    eos_token_id = CONTROLS.index("<|im_end|>")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text; there are no special tokens to add."""
        return [token_id(piece) for piece in _PIECES.findall(text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ids."""
        pieces = [_WORDS[each] if each < len(_WORDS) else chr(each - _FIRST_CHARACTER) for each in token_ids]
        return "".join(piece for piece in pieces if not (skip_special_tokens and piece in CONTROLS))

    def get_added_vocab(self) -> dict[str, int]:
        """The control tokens."""
        return {token: number for number, token in enumerate(CONTROLS)}

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
        """Text of messages; tools are not shown."""
        roles = [message["role"] for message in conversation]
        text = ""
        for number, (role, message) in enumerate(zip(roles, conversation, strict=True)):
            if role != "tool":
                text += f"<|im_start|>{role}\n{message['content']}{_calls(message)}<|im_end|>\n"
                continue
            text += "<|im_start|>user" if roles[number - 1] != "tool" else ""
            text += f"\n<tool_response>\n{message['content']}\n</tool_response>"
            text += "<|im_end|>\n" if roles[number + 1 : number + 2] != ["tool"] else ""
        return text + ("<|im_start|>assistant\n" if kwargs["add_generation_prompt"] else "")


def token_id(piece: str) -> int:
    """The id of a control token, the merged word or a character."""
    return _WORDS.index(piece) if piece in _WORDS else _FIRST_CHARACTER + ord(piece)


def spell(text: str) -> tuple[int, ...]:
    """Ids of a text character by character, control tokens included: not how the tokenizer would split it."""
    return tuple(_FIRST_CHARACTER + ord(char) for char in text)


def _calls(message: dict[str, Any]) -> str:
    return "\n".join(f"<tool_call>\n{call['function']}\n</tool_call>" for call in message.get("tool_calls") or [])
