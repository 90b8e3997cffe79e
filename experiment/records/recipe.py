"""What a person writes: the recipe, one TOML file (see `recipes/quickstart.toml`, which explains each key)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from experiment.records.base import Count, Digest, Name, Positive, Record
from experiment.records.world import World

Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Preregistration(Record):
    """The answers that make the run a test and not a search; all are frozen in the plan."""

    question: str
    hypothesis: str
    primary_outcome: str
    exclusions: str
    analysis: str
    already_seen: str


class EpisodeSet(Record):
    """A number of generated episodes; the same seed always yields the same episodes."""

    count: Positive
    seed: Count
    tier: str = "standard"
    """How hard they are, where the world knows more than one tier."""


class Episodes(Record):
    """The three disjoint sets of agent episodes."""

    train: EpisodeSet
    dev: EpisodeSet
    final: EpisodeSet


class Retention(Record):
    """The suite that must not get worse: German maths, generated or read from MGSM-format JSONL."""

    dev: EpisodeSet | str
    final: EpisodeSet | str


class Inputs(Record):
    """Paths of what the run consumes, relative to the workspace."""

    baseline: str
    """Folder of the merged starting policy (weights, config, tokenizer)."""
    tokenizer: str | None = None
    """Folder of the tokenizer, where it is not the baseline's own."""
    lock: str = "requirements/train.lock"
    """The lock file of the environment."""


class Sampling(Record):
    """How the policy is sampled, the same in training, DEV and final."""

    temperature: Annotated[float, Field(gt=0.0, le=5.0)] = 1.0
    max_turns: Annotated[int, Field(ge=1, le=64)]
    max_turn_tokens: Positive
    """Most tokens sampled in one turn."""
    max_completion_tokens: Positive
    """Most tokens kept after the prompt, observations and framing included."""
    max_observation_chars: Positive = 2000
    """A longer tool result is cut, with a mark."""
    batch_size: Positive
    """Rollouts generated together; has no influence on the result."""


class Lora(Record):
    """The adapter that is trained."""

    rank: Positive = 16
    alpha: Positive = 32
    dropout: Rate = 0.0
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class Training(Record):
    """What all arms share."""

    steps: Positive
    prompts_per_step: Positive
    rollouts_per_prompt: Annotated[int, Field(ge=2)]
    gradient_accumulation: Positive = 1
    learning_rate: Annotated[float, Field(gt=0.0)]
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 0
    kl: Annotated[float, Field(ge=0.0)]
    """Coefficient of the KL term to the baseline (TRL's beta)."""
    format_weight: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Weight of the partial format reward beside strict success."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    gradient_checkpointing: bool = False
    lora: Lora = Lora()


class Arm(Record):
    """One algorithm with its settings; baseline, episodes and seeds are the same for all arms."""

    name: Name
    algorithm: Literal["grpo", "echo"]
    observation_weight: Annotated[float, Field(ge=0.0, le=10.0)] | None = None
    """ECHO's lambda: weight of the cross-entropy on observation tokens."""
    observation_logits: Literal["plain", "tempered"] = "plain"
    """What that cross-entropy is taken of: the policy itself, or the policy at the sampling temperature."""
    drop_failed_observations: bool = True
    """ECHO filter: results of invalid or undelivered calls are not learned from."""

    @model_validator(mode="after")
    def _check_weight(self) -> Self:
        if (self.algorithm == "echo") != (self.observation_weight is not None):
            msg = f"arm '{self.name}': `observation_weight` belongs to algorithm \"echo\" and to no other"
            raise ValueError(msg)
        if self.name == "baseline":
            msg = "arm name 'baseline' is taken by the starting policy"
            raise ValueError(msg)
        return self


class Checkpoints(Record):
    """When the trainer's whole state is sealed, and which of those states may be selected."""

    recovery_every: Positive
    candidates: tuple[Positive, ...]
    diagnostic: Positive
    """Assessed once where no candidate is eligible; can never be promoted."""


class Qualification(Record):
    """The proof that stop and resume change nothing, made before training."""

    steps: Annotated[int, Field(ge=2)] = 4
    stop_at: Positive = 2


class Assessment(Record):
    """The one final measurement."""

    seeds: tuple[Count, ...]
    retention_seeds: tuple[Count, ...]
    resamples: Positive = 10_000
    inspected: Count = 10
    """How many final episodes of each suite, the first ones, are written out for a reviewer."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95


class Compute(Record):
    """What the run may use."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: Positive = 1
    """Threads of each worker; frozen, because another count changes arithmetic."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Worker processes at a time; has no influence on the result."""


class Health(Record):
    """Thresholds that warn or stop (see `decisions/health.py`)."""

    max_gap_nats: Annotated[float, Field(gt=0.0)] = 10.0
    """A token scored this differently by sampler and trainer marks its rollout as corrupted."""
    max_corrupted_share: Rate = 0.0
    """A larger share of corrupted rollouts in a step stops the run."""


class StarterModel(Record):
    """The shape of a policy made from nothing (Qwen3 architecture, own tokenizer)."""

    layers: Positive = 2
    hidden: Positive = 96
    heads: Positive = 3
    head_dim: Positive = 32
    intermediate: Positive = 256
    initial_std: Annotated[float, Field(gt=0.0)] = 0.05
    vocabulary: Positive = 700


EvenBatch = Annotated[int, Field(ge=2, multiple_of=2)]
"""Examples of a supervised step, which is made in two micro-batches."""


class FineTune(Record):
    """One supervised stage on scripted episodes, assistant tokens only."""

    episodes: Positive
    steps: Positive
    batch_size: EvenBatch = 8
    learning_rate: Annotated[float, Field(gt=0.0)]
    warmup_steps: Count = 0
    decay_share: Rate = 0.0
    """Share of the steps, at the end, over which the learning rate falls linearly to 0; constant before."""
    adam_beta2: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    seed: Count
    retention_share: Rate = 0.0
    """Share of retention questions among the examples."""
    habit_shares: dict[str, Rate] = Field(default_factory=dict)
    """Share of the world's examples that show a bad habit instead of the solver, by the habit's name."""


class Starter(Record):
    """How `baseline` makes the starting policy S0."""

    seed: Count
    threads: Positive = 1
    """Threads of the one worker that makes the policy."""
    model: StarterModel = StarterModel()
    skill: FineTune
    habits: FineTune | None = None
    """Taught after the skill, so that there is something to unlearn."""
    per_family: Positive = 25
    """Verified solver episodes per family in the last stage."""
    final_steps: Positive
    final_learning_rate: Annotated[float, Field(gt=0.0)]
    final_batch_size: EvenBatch = 8
    probe_episodes: Positive = 96
    """Episodes, outside all other sets, on which pass@1 is measured."""


class Recipe(Record):
    """One experiment, as its author writes it."""

    schema_version: Literal[1]
    name: Name
    supersedes: Digest | None = None
    """Digest of the plan that this one replaces, as in its `plan.seal`."""
    preregistration: Preregistration
    inputs: Inputs
    world: World
    episodes: Episodes
    retention: Retention
    sampling: Sampling
    training: Training
    arms: tuple[Arm, ...]
    checkpoints: Checkpoints
    qualification: Qualification = Qualification()
    assessment: Assessment
    seed: Count
    """Root of every derived seed."""
    budget_hours: Annotated[float, Field(gt=0.0)] = 8.0
    compute: Compute = Compute()
    health: Health = Health()
    starter: Starter | None = None
