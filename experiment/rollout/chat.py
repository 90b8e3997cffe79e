"""Between messages and token ids, in the few places where that is allowed.

Text becomes ids exactly once: prompts when a rollout starts, tool results when they arrive. Sampled ids are
never decoded and encoded again. The framing around tool results is taken from the tokenizer's own chat
template; tool output is encoded apart from it, with every control token inside it broken up, so that a tool
cannot write role changes into the context and the span of pure output is known to the token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiment.decisions.divergence import write_call
from experiment.environments.base import ScriptedTurn
from experiment.errors import PlanError
from experiment.records.episode import Message, ToolSpec


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    eos_token: str
    eos_token_id: int

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ids."""
        ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
        """Text of messages."""
        ...

    def get_added_vocab(self) -> dict[str, int]:
        """Tokens that are matched before the text is split."""
        ...


@dataclass(frozen=True, slots=True)
class Observation:
    """Tool results and their framing as ids."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Per result, the half-open span of pure output inside `ids`."""


_SENTINEL = "OBSERVATION{}SENTINEL"


class ChatFormat:
    """Renders prompts, turns and tool results for one tokenizer and one set of tools."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec], *, thinking: bool = False) -> None:
        self._tokenizer = tokenizer
        self._tools = [_tool_schema(tool) for tool in tools] or None
        self._thinking = thinking
        self._framing: dict[int, tuple[str, ...]] = {}
        controls = sorted(tokenizer.get_added_vocab(), key=lambda token: (-len(token), token))
        self._control = re.compile("|".join(re.escape(token) for token in controls)) if controls else None
        self.end_id: int = tokenizer.eos_token_id
        self.control_ids = frozenset(tokenizer.get_added_vocab().values())

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids up to and including the header of the first assistant turn."""
        rendered = self._render([message.model_dump() for message in messages], generation=True)
        return tuple(self._tokenizer.encode(rendered, add_special_tokens=False))

    def turn_ids(self, turn: ScriptedTurn) -> tuple[int, ...]:
        """Ids of a scripted turn, end-of-turn token included, as the policy would sample them."""
        text = turn_text(turn) + self._tokenizer.eos_token
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without a final end-of-turn token."""
        body = list(ids[:-1]) if ids and ids[-1] == self.end_id else list(ids)
        return self._tokenizer.decode(body, skip_special_tokens=False)

    def observation(self, results: Sequence[str]) -> Observation:
        """Ids that follow a turn with calls: its closing framing, the results, and the next turn's header."""
        if len(results) not in self._framing:
            self._framing[len(results)] = self._derive_framing(len(results))
        framing = self._framing[len(results)]
        ids: list[int] = list(self._tokenizer.encode(framing[0], add_special_tokens=False))
        spans = []
        for result, after in zip(results, framing[1:], strict=True):
            start = len(ids)
            ids.extend(self._encode_plain(result))
            spans.append((start, len(ids)))
            ids.extend(self._tokenizer.encode(after, add_special_tokens=False))
        return Observation(tuple(ids), tuple(spans))

    def _encode_plain(self, text: str) -> list[int]:
        """Encode text so that nothing in it becomes a control token."""
        ids: list[int] = []
        start = 0
        while self._control is not None and (match := self._control.search(text, start)) is not None:
            cut = match.start() + 1
            ids.extend(self._tokenizer.encode(text[start:cut], add_special_tokens=False))
            start = cut
        ids.extend(self._tokenizer.encode(text[start:], add_special_tokens=False))
        return ids

    def _derive_framing(self, results: int) -> tuple[str, ...]:
        """Split a dummy dialogue at its tool results: `results + 1` pieces of framing."""
        call = {"type": "function", "function": {"name": "tool", "arguments": {"argument": "value"}}}
        dialogue: list[dict[str, Any]] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "", "tool_calls": [call] * results},
        ]
        before = self._render(dialogue, generation=False)
        sentinels = [_SENTINEL.format(index) for index in range(results)]
        dialogue += [{"role": "tool", "name": "tool", "content": sentinel} for sentinel in sentinels]
        after = self._render(dialogue, generation=True)
        end = before.rfind(self._tokenizer.eos_token)
        if end < 0 or not after.startswith(before):
            message = "the chat template does not preserve earlier text when a tool result is added"
            raise PlanError(message, remedy="Use a prefix-preserving chat template and prepare a fresh plan.")
        suffix = after[end + len(self._tokenizer.eos_token) :]
        pieces = re.split("|".join(map(re.escape, sentinels)), suffix)
        if len(pieces) != results + 1:
            message = "the chat template does not show every tool result once and in order"
            raise PlanError(message, remedy="Use a chat template that renders tool messages unchanged.")
        return tuple(pieces)

    def _render(self, messages: list[dict[str, Any]], *, generation: bool) -> str:
        return self._tokenizer.apply_chat_template(
            messages,
            tools=self._tools,
            tokenize=False,
            add_generation_prompt=generation,
            enable_thinking=self._thinking,
        )


def turn_text(turn: ScriptedTurn) -> str:
    """Text of a scripted turn in the tool-call form that the parser reads."""
    blocks = [write_call(name, dict(arguments)) for name, arguments in turn.calls]
    return "\n".join(([turn.text] if turn.text else []) + blocks)


def _tool_schema(tool: ToolSpec) -> dict[str, Any]:
    """The JSON schema form that chat templates expect."""
    properties = {name: {"type": "string", "description": text} for name, text in tool.parameters}
    parameters = {"type": "object", "properties": properties, "required": [name for name, _ in tool.parameters]}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
