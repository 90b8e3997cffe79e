from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiment.errors import UsageError
from experiment.pipeline.template import verify_template
from experiment.policies.scripted import ScriptedPolicy
from experiment.rollout.alignment import verify_alignment
from experiment.rollout.chat import ChatFormat
from experiment.rollout.episode import Attempt, RolloutLoop
from experiment.sealing.digests import digest_bytes
from tests.doubles.char_stage import EPISODES, SAMPLING, WORLD, keys, lookup, seed, turn_ids
from tests.doubles.char_tokenizer import CharTokenizer
from tests.planted import Planted

KEEPS = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<tool>' ~ message.content ~ '</tool>' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content }}
        {%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
# What stock templates of reasoning models do: only what follows the last user message keeps its reasoning, and a tool
# result counts as one.
DROPS = KEEPS.replace(
    "message.content }}\n        {%- for",
    "(message.content if loop.last else message.content.split('</think>')[-1]) }}\n        {%- for",
)
# The same models show an empty block in a last turn that has no reasoning, and drop it once a tool has answered.
FORGETS_SILENCE = KEEPS.replace(
    "message.content }}\n        {%- for",
    "('<think></think>' if loop.last and message.role == 'assistant' and 'think' not in message.content else '') "
    "~ message.content }}\n        {%- for",
)
# Only the newest of the turns that called tools keeps its reasoning.
KEEPS_THE_NEWEST = KEEPS.replace(
    "message.content }}\n        {%- for",
    "(message.content if messages[loop.index0 + 2:] | selectattr('role', 'equalto', 'assistant') | list == [] "
    "else message.content.split('</think>')[-1]) }}\n        {%- for",
)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return tmp_path


def _write(tokenizer: Path, template: str) -> None:
    (tokenizer / "chat_template.jinja").write_text(template, encoding="utf-8")


def test_the_shipped_template_keeps_earlier_text(tokenizer: Path, repository: Path) -> None:
    shipped = repository / "experiment/training/chat_template.jinja"
    shutil.copyfile(shipped, tokenizer / "chat_template.jinja")
    assert verify_template(tokenizer) == digest_bytes(shipped.read_bytes())


def test_a_template_that_keeps_earlier_text_is_accepted(tokenizer: Path) -> None:
    _write(tokenizer, KEEPS)
    assert verify_template(tokenizer) == digest_bytes(KEEPS.encode())


@pytest.mark.parametrize("template", [DROPS, FORGETS_SILENCE, KEEPS_THE_NEWEST])
def test_a_template_that_drops_earlier_reasoning_is_refused(tokenizer: Path, template: str) -> None:
    assert template != KEEPS
    _write(tokenizer, template)
    with pytest.raises(UsageError, match="the chat template changes earlier text when a tool result is added"):
        verify_template(tokenizer)


def test_a_template_that_never_shows_reasoning_is_refused(tokenizer: Path) -> None:
    _write(tokenizer, KEEPS.replace("message.content }}\n        {%- for", "'text' }}\n        {%- for"))
    with pytest.raises(UsageError, match="changes earlier text"):
        verify_template(tokenizer)


def test_a_template_inside_the_configuration_is_found(tokenizer: Path) -> None:
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": KEEPS}))  # noqa: TID251
    assert verify_template(tokenizer) == digest_bytes(KEEPS.encode())


def test_a_template_of_its_own_goes_before_the_configuration(tokenizer: Path) -> None:
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": DROPS}))  # noqa: TID251
    _write(tokenizer, KEEPS)
    assert verify_template(tokenizer) == digest_bytes(KEEPS.encode())


@pytest.mark.parametrize("configuration", [None, "{}", '{"chat_template": [{"name": "default"}]}'])
def test_a_missing_template_is_refused(tokenizer: Path, configuration: str | None) -> None:
    if configuration is not None:
        (tokenizer / "tokenizer_config.json").write_text(configuration)
    with pytest.raises(UsageError, match="no chat template") as caught:
        verify_template(tokenizer)
    assert "inputs.tokenizer" in caught.value.remedy


@pytest.mark.parametrize("configuration", ["{", "[]"])
def test_a_broken_configuration_is_refused_and_named(tokenizer: Path, configuration: str) -> None:
    (tokenizer / "tokenizer_config.json").write_text(configuration)
    with pytest.raises(UsageError, match="tokenizer_config.json: not a JSON object"):
        verify_template(tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages.nothing.at.all }}",
        "{{ 'text' + messages[0] }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused(tokenizer: Path, template: str) -> None:
    _write(tokenizer, template)
    with pytest.raises(UsageError, match="cannot be rendered"):
        verify_template(tokenizer)


def test_a_template_that_refuses_tool_results_is_refused_in_its_own_words(tokenizer: Path) -> None:
    _write(tokenizer, "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endfor %}")
    with pytest.raises(UsageError, match="refuses a tool dialogue: no tools here"):
        verify_template(tokenizer)


class Forgetful(CharTokenizer):
    """A tokenizer whose template shows the reasoning of the newest turn alone."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
        *earlier, last = conversation
        kept = [{**message, "content": message["content"].rpartition("</think>")[2]} for message in earlier]
        return super().apply_chat_template([*kept, last], **kwargs)


@pytest.mark.planted("chat template drops earlier reasoning")
def test_a_template_that_forgets_is_caught_before_a_run_or_never(tokenizer: Path, planted: Planted) -> None:
    _write(tokenizer, DROPS)
    with pytest.raises(UsageError) as caught:
        verify_template(tokenizer)
    chat, episode = ChatFormat(Forgetful(), WORLD.tools), EPISODES[0]
    reasoning = f"<think>reason</think>{lookup(keys(episode)[0])}"
    turns = [turn_ids(reasoning), turn_ids("Antwort: 1")]
    loop = RolloutLoop(ScriptedPolicy({chat.prompt_ids(episode.messages): turns}), chat, WORLD, SAMPLING)
    (played,) = loop.play([Attempt(episode, 0)], seed)
    verify_alignment(played, chat, WORLD.tools)
    seen = chat.decode(played.prompt_ids + played.completion_ids)
    (call,) = played.record.turns[0].calls
    dialogue = [
        *(message.model_dump() for message in episode.messages),
        {"role": "assistant", "content": reasoning},
        {"role": "tool", "content": call.observation},
    ]
    shown = Forgetful().apply_chat_template(dialogue, add_generation_prompt=True)
    assert "reason" in seen and "reason" not in shown
    assert seen.replace("<think>reason</think>", "") == f"{shown}Antwort: 1"
    without = "rollouts are aligned, with contexts that the template would never show"
    planted(caught.value, place="the chat template changes earlier text", without=without)
