"""The preselected samples as a page for a reviewer, and the form that the reviewer fills in."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from experiment.records.inspection import Sample, SampledAnswer
from experiment.sealing.canonical import encode

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_INTRODUCTION = (
    "The first final episodes of each suite, chosen before anything was sampled. Read each answer, then fill in a "
    "copy of `form.toml` and record it with `python -m experiment record-inspection`. A small inspection like this "
    "one measures neither fluency nor whether explanations are right."
)


def build_samples_page(run: str, samples: Sequence[Sample]) -> str:
    """Return the samples as Markdown; all text of prompts, policies and tools is indented code and cannot be markup."""
    lines = [
        f"# Samples of run {run}",
        "",
        _INTRODUCTION,
    ]
    for number, sample in enumerate(samples, 1):
        lines += ["", f"## {number}. {sample.suite}, {sample.episode} ({sample.family})"]
        for message in sample.messages:
            lines += ["", f"{message.role}:", "", *_quoted(message.content)]
        for answer in sample.answers:
            lines += _answer(answer)
    return "\n".join([*lines, ""])


def build_blank_form(samples: Sequence[Sample]) -> str:
    """Return a TOML form with one section per answer of a trained policy, in the page's order."""
    lines = [
        '# Fill in a copy. `language` and `format` are "ok" or "not ok"; notes are free text.',
        "# language: is it the language of the question, and readable?",
        "# format: is the answer given in the form that the task asks for?",
        'remarks = ""',
    ]
    for sample, answer in inspected_answers(samples):
        fields = {"suite": sample.suite, "episode": sample.episode, "policy": answer.policy}
        lines += ["", "[[findings]]", *(f"{key} = {encode(value).decode()}" for key, value in fields.items())]
        lines += ['language = ""', 'format = ""', 'note = ""']
    return "\n".join([*lines, ""])


def inspected_answers(samples: Sequence[Sample]) -> Iterator[tuple[Sample, SampledAnswer]]:
    """Yield what a reviewer judges: the trained policies' answers; the baseline's are there to compare with."""
    for sample in samples:
        for answer in sample.answers:
            if answer.policy != "baseline":
                yield sample, answer


def _answer(answer: SampledAnswer) -> list[str]:
    outcome = "strict success" if answer.success else "no strict success"
    lines = ["", f"### {answer.policy}: {outcome}, ended by {answer.end}"]
    for text, observations in answer.turns:
        lines += ["", "policy:", "", *_quoted(text)]
        for observation in observations:
            lines += ["", "tool:", "", *_quoted(observation)]
    return lines


def _quoted(text: str) -> list[str]:
    """Indent every line; characters that could move a cursor or hide text are written as escapes."""
    shown = "".join(
        char if char == "\n" or unicodedata.category(char) not in _HIDDEN else f"\\u{{{ord(char):x}}}" for char in text
    )
    return [f"    {line}" for line in shown.split("\n")]
