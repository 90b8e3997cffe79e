"""R1: evidence files, read line by line; what is kept of a rollout is small, so memory does not grow with tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from experiment.decisions.divergence import divergences_of
from experiment.decisions.tool_calls import parse_turn
from experiment.records.base import Record
from experiment.records.rollout import INVALID_STATUSES, Rollout, TrainedRollout, Turn
from experiment.records.verdict import ItemOutcome
from experiment.sealing.arrays import decode_array
from experiment.sealing.canonical import decode_record
from experiment.sealing.digests import digest_bytes

_MAX_LINE = 64 << 20
"""Longest line that is read, bytes; far above what a rollout of any planned length needs."""

_READABLE_WITHOUT_TOOLS = frozenset({"too_large", "invalid_json", "incomplete"})
"""Kinds of invalid calls that follow from the text alone."""

_EXECUTED = frozenset({"delivered", "world_error", "undelivered"})
"""Kinds of calls that the world has seen."""

T = TypeVar("T", bound=Record)
Array = np.ndarray[Any, Any]


class EvidenceError(Exception):
    """Something in an evidence file cannot be evidence; the message names the place in the file and the reason."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token arrays of a rollout, each of shape (retained tokens,)."""

    is_sampled: Array
    """Boolean: the policy sampled the token."""
    is_observed: Array
    """Boolean: the token is pure tool output."""
    logprobs: Array
    """float32, the sampler's; 0 where nothing was sampled."""


@dataclass(frozen=True, slots=True)
class Played:
    """What the checks need of one rollout."""

    episode: str
    family: str
    rollout: int
    end: str
    seeds: tuple[str, ...]
    """Seed of each turn, 16 hexadecimal digits."""
    outcome: ItemOutcome | None
    """None where the world broke, so that there is no verdict."""
    format: float
    """The verifier's partial credit; 0 without a verdict."""
    generated: int
    """Tokens physically sampled."""
    divergences: tuple[str, ...]
    """Per turn and class, how its text departs from what a template would write."""
    problems: tuple[str, ...]
    """Where the rollout contradicts itself."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What the checks need of one rollout that trained."""

    played: Played
    reward: float | None
    advantage: float
    learned: int
    """Observation tokens that the cross-entropy was applied to."""
    worst_gap: float
    """Largest difference between sampler and trainer on a sampled token, nats."""


def read_played(path: Path) -> list[Played]:
    """Read the rollouts of an evaluation.

    Raises:
        EvidenceError: A line is not a canonical record of a rollout.
    """
    return [_played(record)[0] for record in _read(path, Rollout)]


def read_trained(path: Path) -> list[Trained]:
    """Read the rollouts of a training step.

    Raises:
        EvidenceError: A line is not a canonical record of a trained rollout, or its arrays do not fit.
    """
    return [_trained(record) for record in _read(path, TrainedRollout)]


def read_trained_records(path: Path) -> list[TrainedRollout]:
    """Read the whole records of one training step, for the token-by-token comparison of branches.

    Raises:
        EvidenceError: A line is not a canonical record of a trained rollout.
    """
    return list(_read(path, TrainedRollout))


def _read(path: Path, cls: type[T]) -> Iterator[T]:
    number = 0
    with path.open("rb") as stream:
        while line := stream.readline(_MAX_LINE):
            number += 1
            if not line.endswith(b"\n"):
                message = f"line {number} has no end within {_MAX_LINE} bytes"
                raise EvidenceError(message)
            try:
                yield decode_record(cls, line[:-1])
            except ValueError as error:
                message = f"line {number}: {' '.join(str(error).split())[:300]}"
                raise EvidenceError(message) from None


def _played(rollout: Rollout) -> tuple[Played, Tokens | None]:
    tokens: Tokens | None = None
    problems: list[str] = []
    try:
        tokens = _tokens(rollout)
    except (EvidenceError, ValueError) as error:
        problems.append(str(error))
    else:
        problems += _miscounted(rollout, tokens)
    played = Played(
        episode=rollout.episode,
        family=rollout.family,
        rollout=rollout.rollout,
        end=rollout.end,
        seeds=tuple(turn.seed for turn in rollout.turns),
        outcome=outcome_of(rollout),
        format=0.0 if rollout.score is None else rollout.score.format,
        generated=rollout.tokens_generated,
        divergences=tuple(name for turn in rollout.turns for name in divergences_of(turn)),
        problems=tuple(problems),
    )
    return played, tokens


def outcome_of(rollout: Rollout) -> ItemOutcome | None:
    """Derive what the statistics may see of a rollout from its turns and its score."""
    if rollout.score is None:
        return None
    statuses = [event.status for turn in rollout.turns for event in turn.calls]
    return ItemOutcome(
        item=rollout.episode,
        family=rollout.family,
        success=rollout.score.success,
        tool_errors=statuses.count("world_error"),
        invalid_calls=sum(status in INVALID_STATUSES for status in statuses),
        malformed=rollout.score.malformed_answer,
        capped=rollout.end == "length",
        tokens_generated=rollout.tokens_generated,
        tokens_retained=rollout.tokens_retained,
    )


def _tokens(rollout: Rollout) -> Tokens:
    """R1: every turn was conditioned on exactly the tokens that are recorded before it."""
    context = decode_array(rollout.prompt_ids, "int32")
    pieces: list[tuple[Array, Array, Array]] = []
    for number, turn in enumerate(rollout.turns):
        if turn.context_length != len(context) or turn.context != digest_bytes(context.astype("<i4").tobytes()):
            message = f"turn {number} was not conditioned on what is recorded before it"
            raise EvidenceError(message)
        _check_calls(turn, number)
        sampled, shown = decode_array(turn.sampled_ids, "int32"), decode_array(turn.observation_ids, "int32")
        pieces.append(_turn_tokens(turn, len(sampled), len(shown), number))
        context = np.concatenate([context, sampled, shown])
    if not pieces:
        message = "has no turn"
        raise EvidenceError(message)
    is_sampled, is_observed, logprobs = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return Tokens(is_sampled=is_sampled, is_observed=is_observed, logprobs=logprobs)


def _check_calls(turn: Turn, number: int) -> None:
    """R1: the recorded calls are those in the turn's text, in order, and none was executed in a turn that was cut.

    A call's kind may depend on the world's tools.
    """
    written = parse_turn(turn.text, ())
    broke = any(event.status == "infrastructure" for event in turn.calls)
    expected = [(call.name, call.arguments_json) for call in written[: len(turn.calls) if broke else None]]
    unread = [call.status for call in written if call.status in _READABLE_WITHOUT_TOOLS]
    recorded = [event.status for event in turn.calls if event.status in _READABLE_WITHOUT_TOOLS]
    if [(event.name, event.arguments_json) for event in turn.calls] != expected or (not broke and unread != recorded):
        message = f"turn {number}: the recorded calls are not those in its text"
        raise EvidenceError(message)
    if turn.finish == "length" and any(event.status in _EXECUTED for event in turn.calls):
        message = f"turn {number} was cut, and a call of it was executed"
        raise EvidenceError(message)


def _turn_tokens(turn: Turn, sampled: int, shown: int, number: int) -> tuple[Array, Array, Array]:
    logprobs = decode_array(turn.sampled_logprobs, "float32")
    starts = [0, *(end for _, end in turn.observation_spans)]
    spans = zip(starts, turn.observation_spans, strict=False)
    is_inside = all(previous <= start <= end <= shown for previous, (start, end) in spans)
    if len(logprobs) != sampled or not is_inside or (shown and len(turn.observation_spans) != len(turn.calls)):
        message = f"turn {number} has log-probabilities or observation spans that do not fit its tokens"
        raise EvidenceError(message)
    observed = np.zeros(sampled + shown, dtype=bool)
    for start, end in turn.observation_spans:
        observed[sampled + start : sampled + end] = True
    return (
        np.arange(sampled + shown) < sampled,
        observed,
        np.concatenate([logprobs, np.zeros(shown, dtype=np.float32)]),
    )


def _miscounted(rollout: Rollout, tokens: Tokens) -> list[str]:
    """R1: the counts of a rollout are those of its turns."""
    statuses = [event.status for turn in rollout.turns for event in turn.calls]
    wrong = {
        "tokens_retained": rollout.tokens_retained != len(tokens.is_sampled),
        "tokens_generated": rollout.tokens_generated < int(tokens.is_sampled.sum()),
        "tool_errors": rollout.tool_errors != statuses.count("world_error"),
        "invalid_calls": rollout.invalid_calls != sum(status in INVALID_STATUSES for status in statuses),
        "score": (rollout.score is None) != (rollout.end == "fault"),
        "end": rollout.end not in _possible_ends(rollout),
    }
    return [f"`{name}` does not follow from the turns" for name, is_wrong in wrong.items() if is_wrong]


def _possible_ends(rollout: Rollout) -> set[str]:
    """How a rollout whose last turn is recorded so may have ended."""
    last = rollout.turns[-1]
    statuses = {event.status for event in last.calls}
    if "infrastructure" in statuses:
        return {"fault"}
    # A world may also break when it is asked for its verdict, however the rollout ended.
    if last.finish == "length" or "undelivered" in statuses:
        return {"length", "fault"}
    return {"turn_limit", "length", "fault"} if last.calls else {"answer", "fault"}


def _trained(record: TrainedRollout) -> Trained:
    """R1: the trainer's arrays have one element per retained token; only tool output may be learned from."""
    played, tokens = _played(record.rollout)
    if tokens is None:
        return Trained(played=played, reward=record.reward, advantage=0.0, learned=0, worst_gap=0.0)
    try:
        scored = decode_array(record.trainer_logprobs, "float32")
        mask = decode_array(record.observation_mask, "uint8")
        advantage = decode_array(record.advantage, "float32")
    except ValueError as error:
        message = f"{name_of(played)}: {error}"
        raise EvidenceError(message) from None
    size = len(tokens.is_sampled)
    if len(scored) != size or len(mask) != size or len(advantage) != 1:
        message = f"{name_of(played)}: the trainer's arrays do not have one element per retained token"
        raise EvidenceError(message)
    if bool((mask > tokens.is_observed).any()):
        message = f"{name_of(played)}: a token that is no tool output was learned as an observation"
        raise EvidenceError(message)
    if played.outcome is None and mask.any():
        message = f"{name_of(played)}: has no verdict, and tokens of it were learned"
        raise EvidenceError(message)
    gaps = np.abs(scored - tokens.logprobs)[tokens.is_sampled]
    return Trained(
        played=played,
        reward=record.reward,
        advantage=float(advantage[0]),
        learned=int(mask.sum()),
        worst_gap=float(gaps.max(initial=0.0)),
    )


def name_of(played: Played) -> str:
    """How findings name a rollout."""
    return f"episode {played.episode}, rollout {played.rollout}"
