"""The rollout loop: a policy plays episodes of a world, token ids in, token ids out.

One loop serves training, DEV and final. All live rollouts are sampled together; the calls of one turn run in
their order, the calls of different rollouts run concurrently; results are kept by (episode, rollout), never by
order of completion. A call is executed only when its turn ended properly and its answer can still be read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from experiment.decisions.tool_calls import ParsedCall, parse_turn
from experiment.environments.base import Environment, NativeCall, Session
from experiment.errors import FaultError, ServiceError
from experiment.policies.base import Policy, SampledTurn, TurnRequest
from experiment.records.episode import Episode
from experiment.records.recipe import Sampling
from experiment.records.rollout import INVALID_STATUSES, CallStatus, Rollout, RolloutEnd, Score, ToolEvent, Turn
from experiment.rollout.chat import ChatFormat
from experiment.rollout.context import context_digest
from experiment.sealing.arrays import encode_array

_THREADS = 64
"""Most rollouts whose calls run side by side."""
_CUT_MARK = " […]"
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout to play."""

    episode: Episode
    rollout: int


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """A finished rollout, its tokens as the trainer gets them, and the world's own log."""

    record: Rollout
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampled_mask: tuple[int, ...]
    """1 where the policy sampled the token, 0 for framing and observations."""
    logprobs: tuple[float, ...]
    """The sampler's log-probabilities; 0.0 where nothing was sampled."""
    native_calls: tuple[NativeCall, ...]


@dataclass(slots=True)
class _Live:
    """A rollout while it is played."""

    attempt: Attempt
    session: Session
    prompt_ids: tuple[int, ...]
    completion_ids: list[int] = field(default_factory=list)
    sampled_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    generated: int = 0
    end: RolloutEnd | None = None


class RolloutLoop:
    """Plays attempts with one policy in one world."""

    def __init__(self, policy: Policy, chat: ChatFormat, environment: Environment, sampling: Sampling) -> None:
        self._policy = policy
        self._chat = chat
        self._environment = environment
        self._sampling = sampling

    def play(self, attempts: Sequence[Attempt], turn_seed: Callable[[Attempt, int], int]) -> list[PlayedRollout]:
        """Play every attempt to its end.

        Args:
            attempts: What to play; the result has the same order.
            turn_seed: Seed of an attempt's n-th turn, 63 bits.

        Raises:
            ServiceError: What the world is played in broke, so that none of the rollouts counts.
        """
        with ExitStack() as stack, ThreadPoolExecutor(max_workers=max(1, min(_THREADS, len(attempts)))) as pool:
            lives = [
                _Live(attempt, self._open(attempt, stack), self._chat.prompt_ids(attempt.episode.messages))
                for attempt in attempts
            ]
            while live := [each for each in lives if each.end is None]:
                for start in range(0, len(live), self._sampling.batch_size):
                    self._advance(live[start : start + self._sampling.batch_size], turn_seed, pool)
            return [self._finish(each) for each in lives]

    def _open(self, attempt: Attempt, stack: ExitStack) -> Session:
        """A fresh session, which is closed when the stack is."""
        session = self._environment.open(attempt.episode)
        stack.callback(session.close)
        return session

    def _advance(
        self, batch: Sequence[_Live], turn_seed: Callable[[Attempt, int], int], pool: ThreadPoolExecutor
    ) -> None:
        """Sample one turn of every rollout in the batch and execute its calls."""
        requests = [
            TurnRequest(
                context_ids=each.prompt_ids + tuple(each.completion_ids),
                seed=turn_seed(each.attempt, len(each.turns)),
                max_tokens=min(
                    self._sampling.max_turn_tokens, self._sampling.max_completion_tokens - len(each.completion_ids)
                ),
            )
            for each in batch
        ]
        sampled = self._policy.sample(requests)
        list(pool.map(self._take_turn, batch, requests, sampled))

    def _take_turn(self, live: _Live, request: TurnRequest, sampled: SampledTurn) -> None:
        """Record a sampled turn, execute its calls, and append what the world answered."""
        text = self._chat.decode(sampled.ids)
        parsed = parse_turn(text, self._environment.tools)
        events, end = self._execute(live, parsed, sampled)
        live.completion_ids.extend(sampled.ids)
        live.sampled_mask.extend([1] * len(sampled.ids))
        live.logprobs.extend(sampled.logprobs)
        live.generated += len(sampled.ids)
        observation_ids: tuple[int, ...] = ()
        spans: tuple[tuple[int, int], ...] = ()
        if end is None:
            observation = self._chat.observation([event.observation for event in events])
            if len(live.completion_ids) + len(observation.ids) < self._sampling.max_completion_tokens:
                observation_ids, spans = observation.ids, observation.spans
            else:
                end = "length"
                events = [_withhold(event) for event in events]
        live.completion_ids.extend(observation_ids)
        live.sampled_mask.extend([0] * len(observation_ids))
        live.logprobs.extend([0.0] * len(observation_ids))
        live.turns.append(
            Turn(
                seed=f"{request.seed:016x}",
                context_length=len(request.context_ids),
                context=context_digest(request.context_ids),
                sampled_ids=encode_array(np.asarray(sampled.ids, dtype=np.int32)),
                sampled_logprobs=encode_array(np.asarray(sampled.logprobs, dtype=np.float32)),
                text=text,
                finish=sampled.finish,
                calls=tuple(events),
                observation_ids=encode_array(np.asarray(observation_ids, dtype=np.int32)),
                observation_spans=spans,
            )
        )
        live.end = end

    def _execute(
        self, live: _Live, parsed: Sequence[ParsedCall], sampled: SampledTurn
    ) -> tuple[list[ToolEvent], RolloutEnd | None]:
        """Execute a turn's calls in order; the second value is why the rollout ends here, if it does."""
        if sampled.finish == "length":
            return [_event(call, call.status or "not_executed", "") for call in parsed], "length"
        if not parsed:
            return [], "answer"
        if len(live.turns) + 1 >= self._sampling.max_turns:
            return [_event(call, call.status or "not_executed", "") for call in parsed], "turn_limit"
        events = []
        for call in parsed:
            event = self._dispatch(live.session, call)
            events.append(event)
            if event.status == "infrastructure":
                return events, "fault"
        return events, None

    def _dispatch(self, session: Session, call: ParsedCall) -> ToolEvent:
        """Execute one call, or tell the agent why it was not dispatched."""
        if call.status is not None or call.arguments is None:
            status: CallStatus = call.status or "wrong_arguments"
            return _event(call, status, _REFUSALS[status])
        try:
            result = session.call(call.name, dict(call.arguments))
            status = "world_error" if result.is_error else "delivered"
            return _event(call, status, self._shown(_require_text(result.text)))
        except ServiceError:
            raise
        except FaultError as fault:
            return _event(call, "infrastructure", self._shown(str(fault)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool does ends its own rollout alone
            return _event(call, "infrastructure", self._shown(f"{type(error).__name__}: {error}"))

    def _shown(self, text: str) -> str:
        return shown(text, self._sampling)

    def _judge(self, live: _Live) -> Score | None:
        """The verifier's view; None where the world broke, in a call or when it was asked for the verdict."""
        if live.end == "fault":
            return None
        try:
            return live.session.verify(live.turns[-1].text if live.end == "answer" else "")
        except ServiceError:
            raise
        except FaultError:
            return None

    def _finish(self, live: _Live) -> PlayedRollout:
        """Judge a rollout and freeze it."""
        if live.end is None:
            message = f"rollout {live.attempt.episode.id}/{live.attempt.rollout} was judged before it ended"
            raise FaultError(message)
        calls = [event for turn in live.turns for event in turn.calls]
        score = self._judge(live)
        record = Rollout(
            episode=live.attempt.episode.id,
            family=live.attempt.episode.family,
            rollout=live.attempt.rollout,
            prompt_ids=encode_array(np.asarray(live.prompt_ids, dtype=np.int32)),
            turns=tuple(live.turns),
            end=live.end if score is not None else "fault",
            score=score,
            tool_errors=sum(event.status == "world_error" for event in calls),
            invalid_calls=sum(event.status in INVALID_STATUSES for event in calls),
            tokens_generated=live.generated,
            tokens_retained=len(live.completion_ids),
        )
        return PlayedRollout(
            record=record,
            prompt_ids=live.prompt_ids,
            completion_ids=tuple(live.completion_ids),
            sampled_mask=tuple(live.sampled_mask),
            logprobs=tuple(live.logprobs),
            native_calls=tuple(live.session.native_calls()),
        )


def shown(text: str, sampling: Sampling) -> str:
    """A tool's result as the agent sees it and a record can carry it, cut with a mark where it is too long."""
    text, limit = _clean(text), sampling.max_observation_chars
    return text if len(text) <= limit else text[:limit] + _CUT_MARK


def is_shown(observation: str, text: str) -> bool:
    """Whether `observation` is what the agent is shown for a tool result: all of it, or its start with the mark."""
    whole, kept = _clean(text), observation.removesuffix(_CUT_MARK)
    return observation == whole or (kept != observation and len(kept) < len(whole) and whole.startswith(kept))


def _require_text(text: object) -> str:
    """The text of a tool result; a list would otherwise be read as parts of a message, a number not at all."""
    if not isinstance(text, str):
        message = f"the tool gave back {type(text).__name__} instead of text"
        raise FaultError(message)
    return text


def _clean(text: str) -> str:
    """The text as token ids and records can carry it: no lone surrogates, and NFC, which tokenizers may enforce."""
    return unicodedata.normalize("NFC", _SURROGATES.sub("\ufffd", text))


_REFUSALS: dict[CallStatus, str] = {
    "invalid_json": "Fehler: Der Aufruf ist kein gültiges JSON.",
    "incomplete": "Fehler: Dem Aufruf fehlt name oder arguments.",
    "unknown_tool": "Fehler: Dieses Werkzeug gibt es nicht.",
    "wrong_arguments": "Fehler: Die Argumente passen nicht zum Werkzeug.",
    "too_large": "Fehler: Der Aufruf ist zu groß.",
}


def _event(call: ParsedCall, status: CallStatus, observation: str) -> ToolEvent:
    return ToolEvent(name=call.name, arguments_json=call.arguments_json, status=status, observation=observation)


def _withhold(event: ToolEvent) -> ToolEvent:
    """Mark an executed call whose answer no longer fits; invalid calls keep their kind."""
    if event.status in INVALID_STATUSES:
        return event
    return event.model_copy(update={"status": "undelivered"})
