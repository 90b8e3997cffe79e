"""What `prepare` froze: the plan, canonical JSON, sealed."""

from __future__ import annotations

from typing import Literal

from experiment.records.base import Count, Digest, Name, Positive, Record
from experiment.records.episode import Episode, ToolSpec
from experiment.records.recipe import Recipe

PLAN_SCHEMA = "experiment-plan/1"


class FrozenInput(Record):
    """One consumed file or folder; a changed byte makes the plan unusable."""

    role: Literal[
        "sources", "recipe", "lock", "baseline", "tokenizer", "retention_dev", "retention_final", "supervised", "rows"
    ]
    path: str
    """Relative to the workspace."""
    kind: Literal["file", "tree"]
    digest: Digest
    """BLAKE3 of the file, or the tree id of the folder."""
    size_bytes: Count


class FrozenEnvironment(Record):
    """Interpreter and distributions; a drift is refused at `run`."""

    python: str
    implementation: str
    machine: str
    distributions: tuple[tuple[str, str], ...]
    """(name, version), sorted, of everything installed."""


class ScheduledStep(Record):
    """One optimizer step: which episodes it samples and at which learning rate it updates."""

    step: Positive
    episodes: tuple[str, ...]
    learning_rate: float


class PowerRow(Record):
    """Smallest paired difference detectable at 80 % power, for one share of discordant items."""

    discordant: float
    items: Positive
    detectable: float


class Plan(Record):
    """A frozen experiment; equal recipes on equal inputs give equal bytes."""

    schema_id: Literal["experiment-plan/1"] = "experiment-plan/1"
    name: Name
    recipe: Recipe
    inputs: tuple[FrozenInput, ...]
    environment: FrozenEnvironment
    chat_template: Digest
    world_facts: tuple[tuple[str, str], ...] = ()
    """(name, value), sorted, of what the world's answers depend on besides sources and distributions."""
    tools: tuple[ToolSpec, ...]
    """The world's tools as the policy sees them."""
    train: tuple[Episode, ...]
    dev: tuple[Episode, ...]
    final: tuple[Episode, ...]
    retention_dev: tuple[Episode, ...]
    retention_final: tuple[Episode, ...]
    supervised: tuple[Digest, ...]
    """Content digests of the episodes the baseline was fine-tuned on."""
    baseline_successes: Count
    baseline_attempts: Count
    """pass@1 of the baseline as its provenance says, for the monitors; 0 of 0 where it was not measured."""
    schedule: tuple[ScheduledStep, ...]
    power: tuple[PowerRow, ...]
    predecessors: tuple[Digest, ...]
    """Earlier plans of this workspace, sorted, that had a run and share final episodes with this one."""
