"""Synthetic rollouts with honest bookkeeping: token ids are the bytes of the texts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from experiment.decisions.tool_calls import parse_turn
from experiment.records.base import Record
from experiment.records.episode import Episode
from experiment.records.rollout import CallStatus, Rollout, RolloutEnd, Score, ToolEvent, TrainedRollout, Turn
from experiment.records.verdict import ItemOutcome
from experiment.sealing.arrays import encode_array
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import digest_bytes
from experiment.sealing.seeds import derive_seed

LOOKUP = '{"name":"nachschlagen","arguments":{"ort":"Ulm"}}'
CALCULATE = '{"name":"rechne","arguments":{"ausdruck":"12 * 7"}}'

# (text, status and observation of its call, finish) of each turn
Script = tuple[tuple[str, tuple[CallStatus, str] | None, str], ...]


def _call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


SOLVED: Script = (
    (_call(LOOKUP), ("delivered", "Ulm: 12"), "stop"),
    (_call(CALCULATE), ("delivered", "84"), "stop"),
    ("Antwort: 84", None, "stop"),
)
FAILURES: tuple[Script, ...] = (
    (("Antwort: 48", None, "stop"),),
    ((_call(LOOKUP), ("world_error", "Fehler: unbekannter Ort"), "stop"), ("Antwort: 7", None, "stop")),
    ((_call('{"name":"rechne",}'), ("invalid_json", "Fehler: kein JSON"), "stop"), ("Antwort: 1", None, "stop")),
    (("Ich denke nach und nach und nach", None, "length"),),
)


def ids(text: str) -> np.ndarray:
    """Token ids of a text in this double: its bytes."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def chance(*counters: int | str) -> float:
    """A number in [0, 1) that depends on nothing but the counters."""
    return (derive_seed(7, "small run", *counters) % 1_000_000) / 1_000_000


def play(episode: str, family: str, rollout: int, script: Script, seed_of: Callable[[int], int]) -> Rollout:
    """Play a script and count what happened; `seed_of` gives the seed of the n-th turn."""
    prompt = ids(f"Aufgabe {episode}")
    turns: list[Turn] = []
    context = prompt
    for number, (text, call, finish) in enumerate(script):
        sampled = ids(text)
        shown = ids("" if call is None else call[1])
        turns.append(
            Turn(
                seed=f"{seed_of(number):016x}",
                context_length=len(context),
                context=digest_bytes(context.astype("<i4").tobytes()),
                sampled_ids=encode_array(sampled),
                sampled_logprobs=encode_array(np.full(len(sampled), -0.5, dtype=np.float32)),
                text=text,
                finish="length" if finish == "length" else "stop",
                calls=() if call is None else (_event(text, call),),
                observation_ids=encode_array(shown),
                observation_spans=() if call is None else ((0, len(shown)),),
            )
        )
        context = np.concatenate([context, sampled, shown]).astype(np.int32)
    end: RolloutEnd = "length" if script[-1][2] == "length" else "answer"
    statuses = [event.status for turn in turns for event in turn.calls]
    solved = script is SOLVED
    return Rollout(
        episode=episode,
        family=family,
        rollout=rollout,
        prompt_ids=encode_array(prompt),
        turns=tuple(turns),
        end=end,
        score=Score(success=solved, format=1.0 if solved else 0.5, malformed_answer=end == "length"),
        tool_errors=statuses.count("world_error"),
        invalid_calls=statuses.count("invalid_json"),
        tokens_generated=sum(len(ids(text)) for text, _, _ in script),
        tokens_retained=len(context) - len(prompt),
    )


def _event(text: str, call: tuple[CallStatus, str]) -> ToolEvent:
    parsed = parse_turn(text, ())[0]
    return ToolEvent(name=parsed.name, arguments_json=parsed.arguments_json, status=call[0], observation=call[1])


def attempt(
    episode: Episode, rollout: int, skill: float, *counters: int | str, seed_of: Callable[[int], int]
) -> Rollout:
    """A rollout that succeeds with probability `skill`, by counters alone."""
    script = SOLVED
    if chance("success", episode.id, rollout, *counters) >= skill:
        script = FAILURES[int(chance("failure", episode.id, rollout, *counters) * len(FAILURES))]
    return play(episode.id, episode.family, rollout, script, seed_of)


def trained(group: Sequence[Rollout], *, format_weight: float, learns: bool) -> list[TrainedRollout]:
    """The group as the trainer saw it: reward, advantage scaled within the group, log-probabilities."""
    rewards = [each.score.success + format_weight * each.score.format if each.score else 0.0 for each in group]
    spread = statistics.stdev(rewards) + 1e-4
    return [
        TrainedRollout(
            rollout=each,
            reward=reward,
            advantage=encode_array(np.asarray([(reward - statistics.fmean(rewards)) / spread], dtype=np.float32)),
            trainer_logprobs=encode_array(np.full(each.tokens_retained, -0.5, dtype=np.float32)),
            observation_mask=encode_array(_learned(each) if learns else np.zeros(each.tokens_retained, dtype=np.uint8)),
        )
        for each, reward in zip(group, rewards, strict=True)
    ]


def _learned(rollout: Rollout) -> np.ndarray:
    pieces = [
        np.full(len(ids(text)), is_shown, dtype=np.uint8)
        for turn in rollout.turns
        for text, is_shown in ((turn.text, 0), ("".join(call.observation for call in turn.calls), 1))
    ]
    return np.concatenate(pieces)


def outcome(rollout: Rollout) -> ItemOutcome:
    """The rollout as the statistics see it."""
    if rollout.score is None:
        message = "a broken world has no outcome"
        raise ValueError(message)
    return ItemOutcome(
        item=rollout.episode,
        family=rollout.family,
        success=rollout.score.success,
        tool_errors=rollout.tool_errors,
        invalid_calls=rollout.invalid_calls,
        malformed=rollout.score.malformed_answer,
        capped=rollout.end == "length",
        tokens_generated=rollout.tokens_generated,
        tokens_retained=rollout.tokens_retained,
    )


def write_lines(path: Path, records: Sequence[Record]) -> None:
    """One canonical record per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_record(each) + b"\n" for each in records))
