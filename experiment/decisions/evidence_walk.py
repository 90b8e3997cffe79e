"""Walks two executions' rollout evidence side by side, in the order in which it came about.

First the prompts of a step's rollouts, by (episode position, rollout); then their turns, first turns first, because the
turns that are sampled together lend each other last bits through the shape of their batch; then how each rollout ended;
then what the trainer made of it. Every field of the records is visited, also one that is added later.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from experiment.errors import JournalError
from experiment.records.base import Record
from experiment.records.rollout import Rollout, ToolEvent, TrainedRollout, Turn
from experiment.sealing.arrays import decode_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiment.sealing.arrays import DType

ABSENT = "absent"

_EXCERPT = 40
"""Characters shown of a text from where it differs."""

_ARRAYS: dict[tuple[type[Record], str], DType] = {
    (Rollout, "prompt_ids"): "int32",
    (Turn, "sampled_ids"): "int32",
    (Turn, "sampled_logprobs"): "float32",
    (Turn, "observation_ids"): "int32",
    (TrainedRollout, "advantage"): "float32",
    (TrainedRollout, "trainer_logprobs"): "float32",
    (TrainedRollout, "observation_mask"): "uint8",
}

_BY_TOKEN: dict[tuple[type[Record], str], tuple[str, ...]] = {
    (Turn, "sampled_ids"): ("sampled_ids", "sampled_logprobs"),
    (TrainedRollout, "trainer_logprobs"): ("trainer_logprobs", "observation_mask"),
}
"""Arrays that run over the same tokens: the earliest token that differs in any of them is the first divergence."""

_MEMBERS: dict[type[Record], str] = {Turn: "turn", ToolEvent: "call"}

_FIELDS = tuple(Rollout.model_fields)
_PLAYED = _FIELDS[_FIELDS.index("turns") :]
"""Fields of a rollout that come about while it is played."""
_GIVEN = _FIELDS[: _FIELDS.index("turns") + 1]
"""Fields that are given before, and the turns."""


@dataclass(frozen=True, slots=True)
class Check:
    """One compared value; the executions agree where `expected` equals `found`."""

    place: str
    expected: str
    found: str


def walk_step(place: str, expected: Sequence[TrainedRollout], found: Sequence[TrainedRollout]) -> Iterator[Check]:
    """Yield what is compared between one step's evidence of two executions, first things first.

    Args:
        place: Names the step.
        expected: Evidence of the uninterrupted execution, ordered by (episode position, rollout).
        found: Evidence of the other one.

    Raises:
        JournalError: Where two arrays differ and one of them cannot be decoded.
    """
    for position, (left, right) in enumerate(zip_longest(expected, found)):
        if left is None or right is None:
            yield Check(f"{place}, rollout {position} of the step", _identity(left), _identity(right))
            return
        yield Check(f"{place}, rollout {position} of the step", _identity(left), _identity(right))
        yield from _walk_record(f"{place}, {_identity(left)}", left.rollout, right.rollout, without=_PLAYED)
    for turn in range(max((len(each.rollout.turns) for each in (*expected, *found)), default=0)):
        for left, right in zip(expected, found, strict=True):
            pair = left.rollout.turns[turn : turn + 1], right.rollout.turns[turn : turn + 1]
            yield from _walk_members(f"{place}, {_identity(left)}", *pair, start=turn)
    for left, right in zip(expected, found, strict=True):
        yield from _walk_record(f"{place}, {_identity(left)}", left.rollout, right.rollout, without=_GIVEN)
    for left, right in zip(expected, found, strict=True):
        yield from _walk_record(f"{place}, {_identity(left)}", left, right, without=("rollout",))


def _identity(trained: TrainedRollout | None) -> str:
    if trained is None:
        return ABSENT
    return f"episode {trained.rollout.episode}, rollout {trained.rollout.rollout}"


def _walk_record(place: str, left: Record, right: Record, *, without: tuple[str, ...] = ()) -> Iterator[Check]:
    """Yield the checks of two records of one class, field by field in declared order."""
    grouped = set(without)
    for name in type(left).model_fields:
        group = _BY_TOKEN.get((type(left), name), (name,))
        if name in grouped:
            continue
        grouped.update(group)
        if (type(left), name) in _ARRAYS:
            yield from _walk_arrays(place, left, right, group)
        else:
            yield from _walk_value(place, name, getattr(left, name), getattr(right, name))


def _walk_value(place: str, name: str, left: object, right: object) -> Iterator[Check]:
    """Yield the checks of two values of one field."""
    if isinstance(left, Record) and isinstance(right, Record):
        yield from _walk_record(place, left, right)
    elif isinstance(left, tuple) and isinstance(right, tuple) and any(isinstance(v, Record) for v in left + right):
        yield from _walk_members(place, left, right)
    elif isinstance(left, str) and isinstance(right, str):
        yield _check_text(f"{place} ({name})", left, right)
    else:
        yield Check(f"{place} ({name})", repr(left), repr(right))


def _walk_members(
    place: str, left: tuple[Record, ...], right: tuple[Record, ...], *, start: int = 0
) -> Iterator[Check]:
    """Yield the checks of two sequences of records: what is missing or extra comes where the shorter one ends."""
    for index, (one, other) in enumerate(zip_longest(left, right), start=start):
        member = _MEMBERS.get(type(one or other), "member")
        inner = f"{place}, {member} {index}"
        if one is None or other is None:
            yield Check(inner, ABSENT if one is None else "present", ABSENT if other is None else "present")
            return
        yield from _walk_record(inner, one, other)


def _check_text(place: str, left: str, right: str) -> Check:
    """Return the check of two texts, cut to what follows from the first character that differs."""
    if left == right:
        return Check(place, left, right)
    pairs = zip(left, right, strict=False)
    at = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))
    return Check(f"{place}, character {at}", repr(left[at : at + _EXCERPT]), repr(right[at : at + _EXCERPT]))


def _walk_arrays(place: str, left: Record, right: Record, names: tuple[str, ...]) -> Iterator[Check]:
    """Yield one check for each of some arrays that run over the same tokens, the earliest differing token first."""
    unequal = []
    for name in names:
        expected, found = getattr(left, name), getattr(right, name)
        if expected == found:
            yield Check(f"{place} ({name})", expected, found)
        else:
            token, *shown = _first_token(f"{place} ({name})", expected, found, _ARRAYS[type(left), name])
            unequal.append((token, Check(f"{place}, token {token} ({name})", *shown)))
    yield from (check for _, check in sorted(unequal, key=lambda entry: entry[0]))


def _first_token(place: str, expected: str, found: str, dtype: DType) -> tuple[int, str, str]:
    """Return the first index at which two arrays differ in any bit, and what each holds there."""
    try:
        left, right = decode_array(expected, dtype), decode_array(found, dtype)
    except ValueError as error:
        msg = f"{place}: an array is damaged: {error}"
        raise JournalError(msg) from error
    shared = min(left.size, right.size)
    bits = f"u{left.itemsize}"
    unequal = np.flatnonzero(left[:shared].view(bits) != right[:shared].view(bits))
    token = int(unequal[0]) if unequal.size else shared
    return token, _show(left, token), _show(right, token)


def _show(array: np.ndarray[Any, Any], token: int) -> str:
    """Return an element exactly; a float also as its bits, because two NaNs look the same."""
    if token >= array.size:
        return ABSENT
    element = array[token]
    if array.dtype.kind == "f":
        return f"{float(element)!r} (0x{int(element.view('u4')):08x})"
    return str(int(element))
