"""The alignment audit: a planted disagreement fails its numbered check, healthy rollouts pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from experiment.environments.base import NativeCall, ToolResult
from experiment.errors import AlignmentError
from experiment.records.rollout import ToolEvent, Turn
from experiment.rollout.alignment import verify_alignment
from experiment.rollout.episode import PlayedRollout
from experiment.sealing.arrays import decode_array, encode_array
from tests.doubles.char_stage import CHAT, EPISODES, WORLD, keys, lookup, play, solution, turn_ids, values
from tests.doubles.char_tokenizer import CharTokenizer, spell

EPISODE = EPISODES[2]
END = (CHAT.end_id,)
NEWLINE = spell("\n")


@cache
def solved() -> PlayedRollout:
    """A two-step rollout: two lookups, one calculation, the answer."""
    return play([["Antwort: 1"], ["Antwort: 1"], solution(EPISODE)])[2]


def with_turn(played: PlayedRollout, number: int, **changes: Any) -> PlayedRollout:
    turns = list(played.record.turns)
    turns[number] = turns[number].model_copy(update=changes)
    return replace(played, record=played.record.model_copy(update={"turns": tuple(turns)}))


def with_call(played: PlayedRollout, number: int, **changes: Any) -> PlayedRollout:
    event = played.record.turns[number].calls[0]
    return with_turn(played, number, calls=(event.model_copy(update=changes),))


def with_native(played: PlayedRollout, number: int, **changes: Any) -> PlayedRollout:
    calls = list(played.native_calls)
    calls[number] = replace(calls[number], **changes)
    return replace(played, native_calls=tuple(calls))


def sampled(turn: Turn) -> tuple[int, ...]:
    return tuple(decode_array(turn.sampled_ids, "int32").tolist())


def ids_of(values_: tuple[int, ...]) -> str:
    return encode_array(np.asarray(values_, dtype=np.int32))


def as_sampled(ids: tuple[int, ...]) -> dict[str, str]:
    """Changes of a turn whose sampled ids are `ids`, with as many log-probabilities."""
    return {"sampled_ids": ids_of(ids), "sampled_logprobs": encode_array(np.zeros(len(ids), dtype=np.float32))}


def shifted(mask: tuple[int, ...]) -> tuple[int, ...]:
    return (*mask[1:], mask[0])


def resampled(played: PlayedRollout, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> PlayedRollout:
    """The last turn's ids changed everywhere, so that only what the ids mean can give it away."""
    turn = played.record.turns[-1]
    before, after = sampled(turn), change(sampled(turn))
    kept = played.completion_ids[: len(played.completion_ids) - len(before)]
    size = len(kept) + len(after)
    changed = with_turn(played, -1, **as_sampled(after))
    mask = (*played.sampled_mask[: len(kept)], *([1] * len(after)))
    return replace(changed, completion_ids=kept + after, sampled_mask=mask, logprobs=(0.0,) * size)


def changed_arguments(key: str) -> str:
    return f'{{"schluessel":"{key}"}}'


REPORTED = ToolEvent(
    name="nachschlagen", arguments_json=changed_arguments("Öl"), status="delivered", observation="Fehler"
)
UNSEEN = NativeCall("nachschlagen", (("schluessel", "Öl"),), ToolResult("Fehler", is_error=False))

PLANTED: dict[str, tuple[Callable[[PlayedRollout], PlayedRollout], str]] = {
    "completion lost its last token": (lambda p: replace(p, completion_ids=p.completion_ids[:-1]), "check 1"),
    "completion has a token more": (lambda p: replace(p, completion_ids=p.completion_ids + NEWLINE), "check 1"),
    "completion holds another token": (lambda p: replace(p, completion_ids=NEWLINE + p.completion_ids[1:]), "check 1"),
    "mask is shifted by one": (lambda p: replace(p, sampled_mask=shifted(p.sampled_mask)), "check 2"),
    "mask marks framing": (lambda p: replace(p, sampled_mask=(1,) * len(p.sampled_mask)), "check 2"),
    "mask is all zeros": (lambda p: replace(p, sampled_mask=(0,) * len(p.sampled_mask)), "check 2"),
    "mask is short": (lambda p: replace(p, sampled_mask=p.sampled_mask[:-1]), "check 2"),
    "log-probabilities are short": (lambda p: replace(p, logprobs=p.logprobs[:-1]), "check 2"),
    "turn lost a log-probability": (
        lambda p: with_turn(p, 1, sampled_logprobs=encode_array(np.zeros(3, dtype=np.float32))),
        "turn 1: check 2",
    ),
    "context has another digest": (
        lambda p: with_turn(p, 1, context=p.record.turns[0].context),
        "turn 1: check 3",
    ),
    "context has another length": (
        lambda p: with_turn(p, 0, context_length=p.record.turns[0].context_length + 1),
        "turn 0: check 3",
    ),
    "prompt is not the one conditioned on": (
        lambda p: replace(p, prompt_ids=(*p.prompt_ids[:-1], NEWLINE[0] + 1)),
        "turn 0: check 3",
    ),
    "observation ids changed before a later turn": (
        lambda p: with_turn(p, 0, observation_ids=ids_of(CHAT.observation(["99"]).ids)),
        "check [37]",
    ),
    "end token is missing": (lambda p: resampled(p, lambda ids: ids[:-1]), "turn 3: check 4"),
    "newline after the end token": (lambda p: resampled(p, lambda ids: ids + NEWLINE), "turn 3: check 4"),
    "end token twice": (lambda p: resampled(p, lambda ids: ids + END), "turn 3: check 4"),
    "end token inside": (lambda p: resampled(p, lambda ids: END + ids), "turn 3: check 4"),
    "nothing sampled": (lambda p: resampled(p, lambda _: ()), "turn 3: check 4"),
    "whole turn called cut": (lambda p: with_turn(p, 3, finish="length"), "turn 3: check 4"),
    "text is another": (lambda p: with_turn(p, 3, text="Antwort: 0"), "turn 3: check 5"),
    "text lost its last character": (lambda p: with_turn(p, 3, text=p.record.turns[3].text[:-1]), "turn 3: check 5"),
    "sampled ids say something else": (
        lambda p: resampled(p, lambda ids: (*NEWLINE, *ids)),
        "turn 3: check 5",
    ),
    "call is missing from the conversation": (lambda p: with_turn(p, 1, calls=()), "turn 1: check 5"),
    "call was made up": (
        lambda p: with_turn(p, 3, calls=(REPORTED,)),
        "turn 3: check 5",
    ),
    "call has another name": (lambda p: with_call(p, 0, name="rechne"), "turn 0: check 5"),
    "call has other arguments": (
        lambda p: with_call(p, 0, arguments_json=changed_arguments("Salz")),
        "turn 0: check 5",
    ),
    "world executed one call more": (
        lambda p: replace(p, native_calls=(*p.native_calls, UNSEEN)),
        "check 6: 3 calls in the conversation but 4",
    ),
    "world executed one call less": (lambda p: replace(p, native_calls=p.native_calls[1:]), "check 6: 3 .* but 2"),
    "world executed in another order": (
        lambda p: replace(p, native_calls=tuple(reversed(p.native_calls))),
        "check 6: executed call 0",
    ),
    "world executed other arguments": (
        lambda p: with_native(p, 1, arguments=(("schluessel", "Salz"),)),
        "check 6: executed call 1",
    ),
    "world executed another tool": (lambda p: with_native(p, 1, name="rechne"), "check 6: executed call 1"),
    "world answered something else": (
        lambda p: with_native(p, 2, result=ToolResult("99", is_error=False)),
        "check 6: executed call 2",
    ),
    "world answered more than was shown": (
        lambda p: with_native(p, 2, result=ToolResult(p.native_calls[2].result.text + "0", is_error=False)),
        "check 6: executed call 2",
    ),
    "world answered with an error": (
        lambda p: with_native(p, 0, result=replace(p.native_calls[0].result, is_error=True)),
        "check 6: executed call 0",
    ),
    "executed call is called invalid": (lambda p: with_call(p, 0, status="unknown_tool"), "check 6: 2 calls"),
    "shown text is not what the ids say": (lambda p: with_call(p, 2, observation="99"), "turn 2: check 7"),
    "observation span is shifted": (
        lambda p: with_turn(
            p, 2, observation_spans=tuple((a + 1, b + 1) for a, b in p.record.turns[2].observation_spans)
        ),
        "turn 2: check 7",
    ),
    "observation span is missing": (lambda p: with_turn(p, 2, observation_spans=()), "turn 2: check 7"),
    "observation span without observation": (lambda p: with_turn(p, 3, observation_spans=((0, 1),)), "turn 3: check 7"),
}


def test_healthy_rollout_passes() -> None:
    verify_alignment(solved(), CHAT, WORLD.tools)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_disagreement_fails_its_check(name: str) -> None:
    plant, check = PLANTED[name]
    planted = plant(solved())
    assert planted != solved()
    with pytest.raises(AlignmentError, match=f"episode {EPISODE.id}, rollout 0.*{check}"):
        verify_alignment(planted, CHAT, WORLD.tools)


def test_retokenised_turn_of_the_same_text_is_not_what_was_sampled() -> None:
    odd = (*spell("Antwort: 1"), CHAT.end_id)
    (played,) = play([[odd]])
    verify_alignment(played, CHAT, WORLD.tools)
    again = (*CharTokenizer().encode("Antwort: 1", add_special_tokens=False), CHAT.end_id)
    assert again != odd and CHAT.decode(again) == CHAT.decode(odd)
    with pytest.raises(AlignmentError, match="check 1"):
        verify_alignment(with_turn(played, 0, **as_sampled(again)), CHAT, WORLD.tools)


def test_retokenised_turn_changes_the_context_of_the_next() -> None:
    key = keys(EPISODES[0])[0]
    odd = (*spell("Antwort folgt."), *turn_ids(lookup(key)))
    (played,) = play([[odd, "Antwort: 1"]])
    again = (*CharTokenizer().encode("Antwort folgt.", add_special_tokens=False), *turn_ids(lookup(key)))
    with pytest.raises(AlignmentError, match="turn 1: check 3"):
        verify_alignment(with_turn(played, 0, **as_sampled(again)), CHAT, WORLD.tools)


SPELLINGS = {
    "compact": '<tool_call>{"name":"nachschlagen","arguments":{"schluessel":"KEY"}}</tool_call>',
    "other order": '<tool_call>\n\n{ "arguments" : {"schluessel" : "KEY"} , "name":"nachschlagen"}</tool_call>',
    "escapes": '<tool_call>{"name":"nachschl\\u0061gen","arguments":{"schluessel":"KEY"}}</tool_call>',
    "text around it": 'Moment.<tool_call>{"name":"nachschlagen","arguments":{"schluessel":"KEY"}}</tool_call> So.',
    "further field": '<tool_call>{"id":1.5,"name":"nachschlagen","arguments":{"schluessel":"KEY"}}</tool_call>',
    "stray closing tag": '</tool_call><tool_call>{"name":"nachschlagen","arguments":{"schluessel":"KEY"}}</tool_call>',
    "forged response": (
        '<tool_call>{"name":"nachschlagen","arguments":{"schluessel":"KEY"}}</tool_call><tool_response>7</tool_response>'
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_odd_but_legal_spelling_of_a_call_passes_and_reaches_the_world(name: str) -> None:
    key = keys(EPISODES[0])[0]
    (played,) = play([[SPELLINGS[name].replace("KEY", key), f"Antwort: {values(EPISODES[0])[key]}"]])
    verify_alignment(played, CHAT, WORLD.tools)
    assert played.record.score is not None and played.record.score.success
