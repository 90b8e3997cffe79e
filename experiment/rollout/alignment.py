"""The alignment audit: every rollout passes it before it may train or count.

Independent sources must agree: the world's own log of executed calls, the sampled ids, the context each turn was
conditioned on, and the masks handed to the trainer. Numbered checks:

1. The completion is the turns' sampled ids and observation ids, in order, and nothing else.
2. The mask is 1 exactly on sampled ids; ids, mask and log-probabilities have one length.
3. Each turn's context is the prompt and everything before it, by length and digest.
4. A turn ends with the end-of-turn token if and only if it finished with `stop`, and holds no other one.
5. A turn's text is the decoding of its ids, and its calls are what the parser reads in that text.
6. The calls that reached the world are the world's own log, in order, with equal arguments and answers; none stands in
   a turn that was cut.
7. Each observation span decodes to the text that the agent was shown, and holds no control token.

Agreement is exact on ids, contexts, masks and executed calls. Rendering a parsed message again and comparing it
with the sampled ids is deliberately not a check: healthy policies write calls in more than one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from experiment.decisions.tool_calls import parse_turn
from experiment.errors import AlignmentError
from experiment.records.episode import ToolSpec
from experiment.records.rollout import MisalignedRollout, NativeEvent, Turn
from experiment.rollout.chat import ChatFormat
from experiment.rollout.context import context_digest
from experiment.rollout.episode import PlayedRollout, is_shown
from experiment.sealing.arrays import decode_array, encode_array
from experiment.sealing.canonical import decode, encode_record
from experiment.sealing.files import write_atomic

_REACHED_WORLD = frozenset({"delivered", "world_error", "undelivered"})


def verify_alignment(played: PlayedRollout, chat: ChatFormat, tools: Sequence[ToolSpec]) -> None:
    """Return only if all numbered checks hold.

    Raises:
        AlignmentError: Names the rollout, the turn and the first check that failed.
    """
    where = f"episode {played.record.episode}, rollout {played.record.rollout}"
    ids: list[int] = []
    mask: list[int] = []
    for number, turn in enumerate(played.record.turns):
        problem = _turn_problem(turn, played.prompt_ids + tuple(ids), chat, tools)
        if problem:
            message = f"{where}, turn {number}: {problem}"
            raise AlignmentError(message)
        sampled = decode_array(turn.sampled_ids, "int32").tolist()
        observed = decode_array(turn.observation_ids, "int32").tolist()
        ids += sampled + observed
        mask += [1] * len(sampled) + [0] * len(observed)
    problem = _whole_problem(played, ids, mask)
    if problem:
        message = f"{where}: {problem}"
        raise AlignmentError(message)


def require_aligned(played: Sequence[PlayedRollout], chat: ChatFormat, tools: Sequence[ToolSpec], keep: Path) -> None:
    """Return only if every rollout is aligned; the first that is not is kept with all that was compared.

    Args:
        played: The rollouts.
        chat: The tokenizer's format.
        tools: The world's tools.
        keep: Where to write it; the rollout's place and `.json` are added to the name.

    Raises:
        AlignmentError: Names the rollout, the turn, the first check that failed, and the file.
    """
    for each in played:
        try:
            verify_alignment(each, chat, tools)
        except AlignmentError as error:
            path = keep.with_name(f"misaligned-{keep.name}-{each.record.episode}-{each.record.rollout}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, encode_record(_misaligned(each, str(error))))
            message = f"{error}; all of it is kept in {path}"
            raise AlignmentError(message) from error


def _misaligned(played: PlayedRollout, problem: str) -> MisalignedRollout:
    return MisalignedRollout(
        problem=problem,
        rollout=played.record,
        completion_ids=encode_array(np.asarray(played.completion_ids, dtype=np.int32)),
        sampled_mask=encode_array(np.asarray(played.sampled_mask, dtype=np.uint8)),
        logprobs=encode_array(np.asarray(played.logprobs, dtype=np.float32)),
        native_calls=tuple(
            NativeEvent(name=call.name, arguments=call.arguments, text=call.result.text, is_error=call.result.is_error)
            for call in played.native_calls
        ),
    )


def _turn_problem(turn: Turn, context: Sequence[int], chat: ChatFormat, tools: Sequence[ToolSpec]) -> str | None:
    sampled = decode_array(turn.sampled_ids, "int32").tolist()
    logprobs = decode_array(turn.sampled_logprobs, "float32")
    if turn.context_length != len(context) or turn.context != context_digest(context):
        return "check 3: the conditioning context is not the prompt and everything before the turn"
    if len(sampled) != len(logprobs):
        return f"check 2: {len(sampled)} sampled ids but {len(logprobs)} log-probabilities"
    if not sampled or (sampled[-1] == chat.end_id) != (turn.finish == "stop") or chat.end_id in sampled[:-1]:
        return f"check 4: the end-of-turn token does not agree with finish '{turn.finish}'"
    if chat.decode(sampled) != turn.text:
        return "check 5: the text is not the decoding of the sampled ids"
    parsed = [(call.name, call.arguments_json) for call in parse_turn(turn.text, tools)]
    recorded = [(event.name, event.arguments_json) for event in turn.calls]
    if recorded != parsed[: len(recorded)] or (len(recorded) < len(parsed) and not _has_fault(turn)):
        return "check 5: the recorded calls are not the calls in the text"
    return _observation_problem(turn, chat)


def _observation_problem(turn: Turn, chat: ChatFormat) -> str | None:
    observed = decode_array(turn.observation_ids, "int32").tolist()
    if not observed:
        return "check 7: observation spans without observation ids" if turn.observation_spans else None
    if len(turn.observation_spans) != len(turn.calls):
        return f"check 7: {len(turn.calls)} calls but {len(turn.observation_spans)} observation spans"
    for (start, end), event in zip(turn.observation_spans, turn.calls, strict=True):
        if chat.decode(observed[start:end]) != event.observation:
            return f"check 7: the observation of call '{event.name}' is not what its ids say"
        if chat.control_ids.intersection(observed[start:end]):
            return f"check 7: the observation of call '{event.name}' holds control tokens"
    return None


def _whole_problem(played: PlayedRollout, ids: Sequence[int], mask: Sequence[int]) -> str | None:
    if tuple(ids) != played.completion_ids:
        return "check 1: the completion is not the concatenation of the turns"
    if tuple(mask) != played.sampled_mask or len(played.logprobs) != len(ids):
        return "check 2: the mask does not mark exactly the sampled ids"
    if (cut := _executed_cut_turn(played.record.turns)) is not None:
        return f"check 6: turn {cut} was cut, and a call of it was executed"
    reached = [
        event
        for event in chain.from_iterable(turn.calls for turn in played.record.turns)
        if event.status in _REACHED_WORLD
    ]
    native_calls = played.native_calls
    if played.record.end == "fault" and len(native_calls) == len(reached) + 1:
        native_calls = native_calls[:-1]  # a world that broke may have logged the call that it broke at
    if len(reached) != len(native_calls):
        return f"check 6: {len(reached)} calls in the conversation but {len(native_calls)} in the world's log"
    for index, (event, native) in enumerate(zip(reached, native_calls, strict=True)):
        same_call = event.name == native.name and decode(event.arguments_json.encode()) == dict(native.arguments)
        same_kind = event.status == "undelivered" or (event.status == "world_error") == native.result.is_error
        if not (same_call and same_kind and is_shown(event.observation, native.result.text)):
            return f"check 6: executed call {index} ('{native.name}') differs from the conversation's"
    return None


def _executed_cut_turn(turns: Sequence[Turn]) -> int | None:
    """Number of the first turn that a limit cut and of which the world has seen a call."""
    cut = (number for number, turn in enumerate(turns) if turn.finish == "length" and _reached(turn))
    return next(cut, None)


def _reached(turn: Turn) -> bool:
    return any(event.status in _REACHED_WORLD for event in turn.calls)


def _has_fault(turn: Turn) -> bool:
    return any(event.status == "infrastructure" for event in turn.calls)
