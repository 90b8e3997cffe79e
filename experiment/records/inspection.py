"""What a reviewer reads of a run, and what a reviewer said."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from experiment.records.base import Count, Digest, Name, Record
from experiment.records.episode import Message
from experiment.records.rollout import RolloutEnd
from experiment.records.verdict import Suite

Mark = Literal["ok", "not ok"]
ReviewerKind = Literal["human", "agent"]
Text = Annotated[str, StringConstraints(strip_whitespace=False, max_length=4000)]


class SampledAnswer(Record):
    """How one policy played an episode."""

    policy: str
    """For example `grpo@64`."""
    turns: tuple[tuple[str, tuple[str, ...]], ...]
    """Per turn its text and what the agent was shown for its calls."""
    end: RolloutEnd
    success: bool


class Sample(Record):
    """One preselected episode with every assessed policy's answer to it."""

    suite: Suite
    episode: str
    family: str
    messages: tuple[Message, ...]
    answers: tuple[SampledAnswer, ...]


class InspectedSample(Record):
    """A reviewer's finding on one answer."""

    suite: Suite
    episode: str
    policy: str
    language: Mark
    format: Mark
    note: Text


class Inspection(Record):
    """One reviewer's inspection; a chain that begins at the closed journal's head."""

    v: Literal[1] = 1
    run: Name
    number: Count
    prev: Digest
    """Hash of the inspection before; of the journal's last record for the first."""
    t: str
    """RFC 3339 UTC."""
    reviewer: Annotated[str, StringConstraints(min_length=2, max_length=200)]
    kind: ReviewerKind
    samples: Digest
    """BLAKE3 of the samples' file that was read."""
    findings: tuple[InspectedSample, ...]
    remarks: Text
