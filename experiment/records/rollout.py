"""Rollout evidence: what was sampled, conditioned on, executed, observed and scored."""

from __future__ import annotations

from typing import Literal

from experiment.records.base import Base64, Count, Digest, Record

CallStatus = Literal[
    "delivered",
    "world_error",
    "invalid_json",
    "incomplete",
    "unknown_tool",
    "wrong_arguments",
    "too_large",
    "not_executed",
    "undelivered",
    "infrastructure",
]
"""What became of a tool call.

`delivered` and `world_error` reached the world and the agent saw the answer. `invalid_json`, `incomplete`
(a field is missing), `unknown_tool`, `wrong_arguments` and `too_large` are invalid native dispatches: they never
reached the world. `not_executed` is a call in a turn that a limit cut. `undelivered` was executed, but its answer
no longer fitted into the token limit. `infrastructure` is a broken world: no score is written.
"""

INVALID_STATUSES: frozenset[str] = frozenset(
    {"invalid_json", "incomplete", "unknown_tool", "wrong_arguments", "too_large"}
)

RolloutEnd = Literal["answer", "turn_limit", "length", "fault"]
"""Why a rollout ended: a turn without calls, the turn limit, the token limit, or a broken world."""


class ToolEvent(Record):
    """One tool call of a turn and what the agent was shown for it."""

    name: str
    arguments_json: str
    """The arguments as canonical JSON; the raw text, cut, where they could not be parsed."""
    status: CallStatus
    observation: str


class Turn(Record):
    """One sampled assistant turn with the tokens that followed it."""

    seed: str
    """Counter-derived seed of the turn's noise, 16 hexadecimal digits."""
    context_length: Count
    context: Digest
    """Digest of the ids (int32, little-endian) that conditioned the turn's first token."""
    sampled_ids: Base64
    """int32, shape (sampled tokens,)."""
    sampled_logprobs: Base64
    """float32, log-probabilities at the sampling temperature, shape (sampled tokens,)."""
    text: str
    finish: Literal["stop", "length"]
    calls: tuple[ToolEvent, ...]
    observation_ids: Base64
    """int32: framing and observation tokens appended after the turn; empty after the last turn."""
    observation_spans: tuple[tuple[int, int], ...]
    """Per call, the half-open span of pure tool output inside `observation_ids`."""


class Score(Record):
    """The verifier's view of a finished rollout."""

    success: bool
    """Strict success: right tools, right order, exact final answer."""
    format: float
    """Partial credit for form in [0, 1]; never counts as success."""
    malformed_answer: bool


class Rollout(Record):
    """One attempt at an episode."""

    schema_version: Literal[1] = 1
    episode: str
    family: str
    rollout: Count
    prompt_ids: Base64
    turns: tuple[Turn, ...]
    end: RolloutEnd
    score: Score | None
    """None where the world broke: such a rollout has no verdict and never counts as a failure."""
    tool_errors: Count
    invalid_calls: Count
    tokens_generated: Count
    """Tokens physically sampled, discarded tails included."""
    tokens_retained: Count
    """Tokens after the prompt that are kept, observations and framing included."""


class TrainedRollout(Record):
    """A rollout together with what the trainer made of it."""

    rollout: Rollout
    reward: float | None
    advantage: Base64
    """float32 scalar."""
    trainer_logprobs: Base64
    """float32, the trainer's log-probabilities of the completion, shape (retained tokens,)."""
    observation_mask: Base64
    """uint8, 1 where ECHO's cross-entropy applies, shape (retained tokens,); all zero in a GRPO arm."""


class NativeEvent(Record):
    """One call as the world itself logged it."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    text: str
    is_error: bool


class MisalignedRollout(Record):
    """A rollout whose records disagree, with every source that was compared; it neither trained nor counted."""

    problem: str
    rollout: Rollout
    completion_ids: Base64
    """int32, what the trainer would have been given."""
    sampled_mask: Base64
    """uint8, 1 where the trainer would have taken a token as sampled."""
    logprobs: Base64
    """float32."""
    native_calls: tuple[NativeEvent, ...]
