"""A small but complete plan, with generated episodes and without any model."""

from __future__ import annotations

from experiment.environments.german_tools.environment import GermanTools
from experiment.records.episode import Episode, Message
from experiment.records.plan import FrozenEnvironment, FrozenInput, Plan, PowerRow, ScheduledStep
from experiment.records.recipe import (
    Arm,
    Assessment,
    Checkpoints,
    Episodes,
    EpisodeSet,
    FineTune,
    Inputs,
    Preregistration,
    Qualification,
    Recipe,
    Retention,
    Sampling,
    Starter,
    Training,
)
from experiment.records.world import GermanToolsWorld
from experiment.sealing.digests import digest_bytes

FAMILIES = ("nachschlagen", "rechnen", "beides")
ROLLOUTS = 2
PROMPTS = 3


def episode(prefix: str, number: int, world: str, families: tuple[str, ...]) -> Episode:
    """The n-th episode of a set."""
    family = families[number % len(families)]
    name = f"{prefix}-{number:04d}"
    return Episode(
        id=name,
        world=world,
        family=family,
        seed=number,
        messages=(Message(role="user", content=f"Aufgabe {name}"),),
        task_json='{"answer":"84"}',
        content=digest_bytes(name.encode()),
    )


def episode_set(prefix: str, count: int, world: str, families: tuple[str, ...]) -> tuple[Episode, ...]:
    """`count` episodes, families in turn."""
    return tuple(episode(prefix, number, world, families) for number in range(count))


def small_recipe(*, steps: int = 4, arms: tuple[Arm, ...] | None = None, final: int = 6) -> Recipe:
    """A recipe with two arms; the last two multiples of `steps / 2` are candidates."""
    fine_tune = FineTune(episodes=10, steps=10, learning_rate=0.001, seed=1)
    return Recipe(
        schema_version=1,
        name="small",
        preregistration=Preregistration(
            question="Does training on its own rollouts make the agent solve more episodes?",
            hypothesis="Both arms solve more FINAL episodes than the baseline.",
            primary_outcome="Strict success on the FINAL episodes.",
            exclusions="None.",
            analysis="Paired difference, cluster bootstrap by item.",
            already_seen="Nothing of the FINAL set.",
        ),
        inputs=Inputs(baseline="models/small"),
        world=GermanToolsWorld(name="german_tools", families=FAMILIES),
        episodes=Episodes(
            train=EpisodeSet(count=PROMPTS * 4, seed=1),
            dev=EpisodeSet(count=6, seed=2),
            final=EpisodeSet(count=final, seed=3),
        ),
        retention=Retention(dev=EpisodeSet(count=4, seed=4), final=EpisodeSet(count=5, seed=5)),
        sampling=Sampling(max_turns=4, max_turn_tokens=200, max_completion_tokens=1000, batch_size=8),
        training=Training(
            steps=steps,
            prompts_per_step=PROMPTS,
            rollouts_per_prompt=ROLLOUTS,
            learning_rate=0.0001,
            schedule="linear",
            kl=0.01,
        ),
        arms=arms or (Arm(name="grpo", algorithm="grpo"), Arm(name="echo", algorithm="echo", observation_weight=0.05)),
        checkpoints=Checkpoints(recovery_every=steps // 2, candidates=(steps // 2, steps), diagnostic=steps),
        qualification=Qualification(steps=2, stop_at=1),
        assessment=Assessment(seeds=(11, 12), retention_seeds=(21, 22), resamples=500),
        seed=5,
        starter=Starter(
            seed=1, skill=fine_tune, habits=fine_tune, per_family=5, final_steps=10, final_learning_rate=0.001
        ),
    )


def small_plan(recipe: Recipe) -> Plan:
    """The plan of a small recipe; its inputs do not exist in the workspace."""
    sets = recipe.episodes
    train = episode_set("train", sets.train.count, "german_tools", FAMILIES)
    steps = recipe.training.steps
    schedule = tuple(
        ScheduledStep(
            step=step,
            episodes=tuple(train[((step - 1) * PROMPTS + each) % len(train)].id for each in range(PROMPTS)),
            learning_rate=recipe.training.learning_rate * (steps - step + 1) / steps,
        )
        for step in range(1, steps + 1)
    )
    retention = recipe.retention
    return Plan(
        name=recipe.name,
        recipe=recipe,
        inputs=(FrozenInput(role="lock", path="lock.txt", kind="file", digest=digest_bytes(b"lock\n"), size_bytes=5),),
        environment=FrozenEnvironment(
            python="3.11.0",
            implementation="CPython",
            machine="x86_64",
            distributions=(("numpy", "2.0.0"), ("torch", "2.15.0")),
        ),
        tools=GermanTools().tools,
        chat_template=digest_bytes(b"template"),
        train=train,
        dev=episode_set("dev", sets.dev.count, "german_tools", FAMILIES),
        final=episode_set("final", sets.final.count, "german_tools", FAMILIES),
        retention_dev=_maths("retention-dev", retention.dev),
        retention_final=_maths("retention-final", retention.final),
        supervised=(),
        baseline_successes=29,
        baseline_attempts=96,
        schedule=schedule,
        power=(PowerRow(discordant=0.2, items=sets.final.count, detectable=0.5),),
        predecessors=(),
    )


def _maths(prefix: str, size: EpisodeSet | str) -> tuple[Episode, ...]:
    count = size.count if isinstance(size, EpisodeSet) else 4
    return episode_set(prefix, count, "math_qa", ("mathe",))
