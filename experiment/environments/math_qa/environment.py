"""German word problems with one number as the answer: no tools, one turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from experiment.environments.base import STANDARD, NativeCall, Script, ScriptedTurn, ToolResult
from experiment.environments.generation import generate_distinct, make_episode, require_tier
from experiment.environments.german_tools.numbers import format_number, parse_number
from experiment.environments.german_tools.task import ANSWER_MARK, parse_answer
from experiment.environments.math_qa.questions import FAMILIES, MGSM_FAMILY, WORLD, make_question, question_space
from experiment.environments.math_qa.rows import read_row
from experiment.errors import FaultError, UsageError
from experiment.records.episode import Episode, ToolSpec
from experiment.records.rollout import Score


class MathSession:
    """One attempt at one question."""

    def __init__(self, answer: Decimal) -> None:
        self._answer = answer

    def call(self, name: str, arguments: Mapping[str, str]) -> ToolResult:
        """Refuse, because the world declares no tools.

        Raises:
            FaultError: Always.
        """
        msg = f"world {WORLD}: call of '{name}' with parameters {sorted(arguments)} is not declared"
        raise FaultError(msg)

    def native_calls(self) -> Sequence[NativeCall]:
        """Return the executed calls: none."""
        return ()

    def close(self) -> None:
        """Do nothing: a session holds nothing but its log."""

    def verify(self, final_text: str) -> Score:
        """Compare the number in the last line; `format` is one half for a well-formed wrong answer.

        Text before the last line is ignored, so that a policy may reason first.
        """
        value = parse_answer(final_text.rstrip().rpartition("\n")[2])
        is_right = value == self._answer
        return Score(
            success=is_right,
            format=((value is not None) + is_right) / 2,
            malformed_answer=value is None,
        )


class MathQA:
    """Questions with small numbers, generated here or read from a file (`load_mgsm`)."""

    @property
    def name(self) -> str:
        """Name of the world."""
        return WORLD

    @property
    def families(self) -> tuple[str, ...]:
        """The generated families, easiest first; questions from a file have a family of their own."""
        return FAMILIES

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """No tools."""
        return ()

    @property
    def habits(self) -> Mapping[str, Script]:
        """None: questions are answered well or not at all."""
        return {}

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Make `count` episodes with ids `prefix-0000…`, families in turn, none with a content in `taken`.

        Results lie in 0 … 20.

        Raises:
            UsageError: A family has fewer distinct questions than asked for, or a tier other than the one there is.
        """
        require_tier(WORLD, (STANDARD,), tier)
        spaces = tuple(question_space(family) for family in FAMILIES)
        return generate_distinct(WORLD, spaces, prefix=prefix, count=count, seed=seed, taken=taken)

    def open(self, episode: Episode) -> MathSession:
        """Start a fresh session.

        Raises:
            UsageError: The episode belongs to another world, or has no readable answer.
        """
        return MathSession(parse_number(_read_answer(episode)))

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Return the one turn with the exact answer."""
        return (ScriptedTurn(text=f"{ANSWER_MARK}{_read_answer(episode)}", calls=()),)


def _read_answer(episode: Episode) -> str:
    """Return the canonical answer."""
    if episode.world != WORLD:
        msg = f"episode '{episode.id}' belongs to world {episode.world}, not to {WORLD}"
        raise UsageError(msg)
    try:
        return format_number(parse_number(json.loads(episode.task_json)["answer"]))
    except (ValueError, LookupError, TypeError) as error:
        msg = f"episode '{episode.id}': task has no readable answer ({error})"
        raise UsageError(msg) from error


def load_mgsm(path: Path, prefix: str) -> tuple[Episode, ...]:
    """Read a JSON Lines file of questions; every line is one episode of the family `mgsm`, in file order.

    Fields: `question`; the number as `answer_number`, or else as `answer` (a JSON number, or a German number in
    a string); `id`, where the file has ids (else the line's position, from `0000`). Ids get the `prefix`.
    Other fields, and an `answer` that explains the number in words, are ignored.

    Raises:
        UsageError: The file is missing or empty, or a line is not exactly what is said above: byte order mark,
            carriage return, blank line, invalid UTF-8 or JSON, duplicate key, NaN, text that is not NFC, an
            unreadable or contradictory number, or an id or a question that an earlier line has.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise UsageError(msg) from error
    if not data:
        msg = f"{path}: has no lines"
        raise UsageError(msg)
    lines = data.removesuffix(b"\n").split(b"\n")
    episodes: list[Episode] = []
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = read_row(line)
            label = f"{number - 1:04d}" if row.label is None else row.label
            for claim in (f"id {label}", f"question {row.question}"):
                _claim(claim, number, first_lines)
            draft = make_question(MGSM_FAMILY, row.question, row.answer)
        except ValueError as error:
            msg = f"{path}, line {number}: {error}"
            raise UsageError(msg) from error
        episodes.append(make_episode(WORLD, draft, episode_id=f"{prefix}-{label}", seed=number - 1))
    return tuple(episodes)


def _claim(what: str, line: int, first_lines: dict[str, int]) -> None:
    if first_lines.setdefault(what, line) != line:
        msg = f"{what!r} is also in line {first_lines[what]}"
        raise ValueError(msg)
