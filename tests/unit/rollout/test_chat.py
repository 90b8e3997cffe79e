"""Prompts, turns and tool results as ids."""

from __future__ import annotations

from typing import Any

import pytest

from experiment.environments.base import ScriptedTurn
from experiment.errors import PlanError
from experiment.records.episode import Message, ToolSpec
from experiment.rollout.chat import ChatFormat, turn_text
from tests.doubles.char_stage import CHAT
from tests.doubles.char_tokenizer import CONTROLS, CharTokenizer

CALL = ScriptedTurn(text="Moment.", calls=(("nachschlagen", (("schluessel", "Öl"),)), ("rechne", (("a", "1"),))))


def text_of(ids: tuple[int, ...]) -> str:
    return CharTokenizer().decode(ids, skip_special_tokens=False)


def test_prompt_ends_with_the_header_of_the_assistant_s_turn() -> None:
    ids = CHAT.prompt_ids((Message(role="system", content="S"), Message(role="user", content="Wie?")))
    assert text_of(ids) == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nWie?<|im_end|>\n<|im_start|>assistant\n"


def test_scripted_turn_ends_with_the_end_token_and_decodes_without_it() -> None:
    ids = CHAT.turn_ids(CALL)
    assert ids[-1] == CHAT.end_id
    assert CHAT.decode(ids) == turn_text(CALL)
    assert turn_text(CALL) == (
        'Moment.\n<tool_call>\n{"name": "nachschlagen", "arguments": {"schluessel": "Öl"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "rechne", "arguments": {"a": "1"}}\n</tool_call>'
    )


def test_decoding_drops_one_final_end_token_and_no_other() -> None:
    assert CHAT.decode((CHAT.end_id, CHAT.end_id)) == "<|im_end|>"
    assert CHAT.decode(()) == ""


@pytest.mark.parametrize("results", [["84"], ["1", "2", "3"], ["", ""]])
def test_turns_and_observations_add_up_to_the_template_s_own_rendering(results: list[str]) -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}} for _ in results]
    dialogue: list[dict[str, Any]] = [
        {"role": "user", "content": "Frage"},
        {"role": "assistant", "content": "Moment.", "tool_calls": calls},
        *({"role": "tool", "name": "f", "content": result} for result in results),
    ]
    whole = CharTokenizer().apply_chat_template(dialogue, add_generation_prompt=True)
    before = CharTokenizer().apply_chat_template(dialogue[:2], add_generation_prompt=False)
    assert text_of(CHAT.observation(results).ids) == whole[len(before.removesuffix("\n")) :]


def test_spans_hold_exactly_the_results() -> None:
    observation = CHAT.observation(["84", "", "Öl\n"])
    assert [text_of(observation.ids[start:end]) for start, end in observation.spans] == ["84", "", "Öl\n"]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("form", ["{0}", "x{0}y", "{0}{0}", "<{0}"])
def test_no_control_token_inside_a_result_becomes_a_control_id(control: str, form: str) -> None:
    result = form.format(control)
    observation = CHAT.observation([result])
    ((start, end),) = observation.spans
    assert text_of(observation.ids[start:end]) == result
    assert min(observation.ids[start:end]) >= len(CONTROLS)


def test_framing_is_derived_once_for_each_number_of_results() -> None:
    class Counting(CharTokenizer):
        renderings = 0

        def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
            self.renderings += 1
            return super().apply_chat_template(conversation, **kwargs)

    tokenizer = Counting()
    chat = ChatFormat(tokenizer, ())
    chat.observation(["1"])
    once = tokenizer.renderings
    chat.observation(["2"])
    assert (once, tokenizer.renderings) == (2, 2)


def test_template_that_rewrites_earlier_turns_is_refused() -> None:
    class Forgetful(CharTokenizer):
        def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
            kept = [each for each in conversation if each["role"] != "assistant" or each is conversation[-1]]
            return super().apply_chat_template(kept, **kwargs)

    with pytest.raises(PlanError, match="does not preserve earlier text"):
        ChatFormat(Forgetful(), ()).observation(["84"])


def test_template_that_does_not_show_a_result_is_refused() -> None:
    class Silent(CharTokenizer):
        def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
            shown = [{**each, "content": "…"} if each["role"] == "tool" else each for each in conversation]
            return super().apply_chat_template(shown, **kwargs)

    with pytest.raises(PlanError, match="every tool result once"):
        ChatFormat(Silent(), ()).observation(["84"])


def test_template_is_given_the_tools_as_json_schemas() -> None:
    class Recording(CharTokenizer):
        tools: Any = "never rendered"

        def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
            self.tools = kwargs["tools"]
            return super().apply_chat_template(conversation, **kwargs)

    tokenizer = Recording()
    tool = ToolSpec(name="f", description="tut", parameters=(("a", "Zahl"), ("b", "Wort")))
    ChatFormat(tokenizer, (tool,)).prompt_ids((Message(role="user", content="?"),))
    (schema,) = tokenizer.tools
    assert schema["function"]["name"] == "f"
    assert schema["function"]["parameters"]["required"] == ["a", "b"]
    ChatFormat(tokenizer, ()).prompt_ids((Message(role="user", content="?"),))
    assert tokenizer.tools is None
