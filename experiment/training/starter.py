"""The starter job of a worker: makes the starting policy S0 and measures it.

Three supervised stages on scripted episodes, assistant tokens only: skill (a competent policy), habits (taught bad
habits, so that reinforcement learning has something real to remove), and a light fine-tune on a few solver
episodes that the verifier accepted, which is S0. Every content used is written down, so that preparation can keep
it out of all other sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from experiment.environments.base import Environment, ScriptedTurn
from experiment.environments.scripted import play_script
from experiment.errors import FaultError, UsageError
from experiment.policies.hf import HFPolicy
from experiment.records.base import Record
from experiment.records.episode import Episode
from experiment.records.job import FamilyScore, Progressed, StarterDone, StarterJob
from experiment.records.recipe import FineTune, Sampling, Starter
from experiment.rollout.chat import ChatFormat, turn_text
from experiment.rollout.episode import Attempt, RolloutLoop, shown
from experiment.sealing.canonical import encode
from experiment.sealing.files import write_atomic
from experiment.sealing.seeds import derive_seed
from experiment.training.blank import build_model, build_tokenizer
from experiment.training.determinism import configure

Emit = Callable[[Record], None]
_MICRO_BATCHES = 2
_THREADS = 8
"""Scripts that are played side by side."""
_Row = dict[str, list[int]]
CONTENTS_FILE = "supervised-contents.json"


_Script = tuple[Episode, tuple[ScriptedTurn, ...]]


@dataclass(frozen=True, slots=True)
class _Example:
    """One scripted dialogue to learn from, as its world answered it."""

    episode: Episode
    turns: tuple[ScriptedTurn, ...]
    environment: Environment
    results: tuple[tuple[str, ...], ...]
    """What each turn's calls gave back."""
    is_accepted: bool
    """The verifier's strict verdict."""


class _Examples:
    """Draws scripted dialogues, remembering every content that was used."""

    def __init__(self, world: Environment, retention: Environment, sampling: Sampling, emit: Emit) -> None:
        self._sampling = sampling
        self._world = world
        self._retention = retention
        self._emit = emit
        self.contents: set[str] = set()

    def draw(self, name: str, stage: FineTune) -> list[_Example]:
        """The examples of one stage, in a seeded order."""
        _require_habits(self._world, stage.habit_shares)
        questions = round(stage.episodes * stage.retention_share)
        episodes = self._fresh(self._retention, f"{name}-retention", questions, stage.seed)
        examples = self._play(name, self._retention, [(each, self._retention.solve(each)) for each in episodes])
        episodes = self._fresh(self._world, name, stage.episodes - questions, stage.seed)
        examples += self._play(name, self._world, [(each, self._turns(each, stage)) for each in episodes])
        return _shuffled(examples, stage.seed)

    def _turns(self, episode: Episode, stage: FineTune) -> tuple[ScriptedTurn, ...]:
        """The solver's turns, or those of a habit, in the stage's shares."""
        draw, bound = derive_seed(stage.seed, "habit", episode.id) / 2**63, 0.0
        # In the world's own order: a recipe's keys have none.
        for habit, script in self._world.habits.items():
            bound += stage.habit_shares.get(habit, 0.0)
            if draw < bound:
                return script(episode)
        return self._world.solve(episode)

    def verified(self, starter: Starter) -> list[_Example]:
        """`per_family` solver episodes of each family that the verifier accepted."""
        count = starter.per_family * len(self._world.families)
        episodes = self._fresh(self._world, "sft", count, starter.seed)
        examples = self._play("S0", self._world, [(each, self._world.solve(each)) for each in episodes])
        rejected = next((each.episode.id for each in examples if not each.is_accepted), None)
        if rejected is not None:
            message = f"the verifier rejects the scripted solver on {rejected}"
            raise UsageError(message)
        questions = self._fresh(self._retention, "sft-retention", starter.per_family, starter.seed)
        examples += self._play("S0", self._retention, [(each, self._retention.solve(each)) for each in questions])
        return _shuffled(examples, starter.seed)

    def _play(self, name: str, environment: Environment, scripts: Sequence[_Script]) -> list[_Example]:
        """Play scripts, some side by side, in their order."""
        played = []
        with ThreadPoolExecutor(_THREADS) as pool:
            for example in pool.map(partial(_play_example, environment, self._sampling), scripts):
                played.append(example)
                self._emit(Progressed(label=f"{name}: episodes", done=len(played), total=len(scripts)))
        return played

    def probe(self, starter: Starter) -> tuple[tuple[Episode, ...], tuple[Episode, ...]]:
        """Episodes for measuring pass@1, disjoint from everything that was learned."""
        seed = starter.seed + 1
        agent = self._fresh(self._world, "probe", starter.probe_episodes, seed)
        return agent, self._fresh(self._retention, "probe-retention", starter.probe_episodes, seed)

    def _fresh(self, environment: Environment, prefix: str, count: int, seed: int) -> tuple[Episode, ...]:
        if count == 0:
            return ()
        episodes = environment.generate(prefix=prefix, count=count, seed=seed, taken=frozenset(self.contents))
        self.contents |= {episode.content for episode in episodes}
        return episodes


def make_starter(job: StarterJob, world: Environment, retention: Environment, emit: Emit) -> None:
    """Write model, tokenizer and the contents used to the job's folder, and report pass@1.

    Raises:
        UsageError: The recipe has no starter, asks for more distinct episodes than there are, or for an unknown habit.
        ServiceError: What the world is played in broke.
        FaultError: The world broke while the policy was measured.
    """
    recipe = job.recipe
    if recipe.starter is None:
        message = f"recipe '{recipe.name}': no [starter] section"
        raise UsageError(message)
    starter = recipe.starter
    configure(recipe.compute.model_copy(update={"threads": starter.threads}), starter.seed)
    examples = _Examples(world, retention, recipe.sampling, emit)
    skill = examples.draw("skill", starter.skill)
    tokenizer = build_tokenizer(_texts(skill), starter.model.vocabulary)
    model = build_model(starter.model, tokenizer)
    final = FineTune(
        episodes=1,
        steps=starter.final_steps,
        batch_size=starter.final_batch_size,
        learning_rate=starter.final_learning_rate,
        seed=starter.seed,
    )
    stages = [_Stage("skill", starter.skill, skill)]
    if starter.habits is not None:
        stages.append(_Stage("habits", starter.habits, examples.draw("habits", starter.habits)))
    stages.append(_Stage("S0", final, examples.verified(starter)))
    for stage in stages:
        model = _fine_tune(stage, model, tokenizer, job, emit)
    output = Path(job.output_dir)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    write_atomic(output / CONTENTS_FILE, encode(sorted(examples.contents)))
    emit(_measure(job, examples.probe(starter), model, tokenizer, (world, retention)))


def _shuffled(examples: Sequence[_Example], seed: int) -> list[_Example]:
    return sorted(examples, key=lambda example: derive_seed(seed, "order", example.episode.id))


def _texts(examples: Iterable[_Example]) -> Iterable[str]:
    """Plain texts of prompts, turns and tool results, for the tokenizer."""
    for example in examples:
        yield from (message.content for message in example.episode.messages)
        for turn, results in zip(example.turns, example.results, strict=True):
            yield turn_text(turn).replace("<tool_call>", "").replace("</tool_call>", "")
            yield from results


def _require_habits(world: Environment, shares: Mapping[str, float]) -> None:
    for habit in shares:
        if habit not in world.habits:
            message = f"world {world.name} has no habit '{habit}', it has {', '.join(world.habits) or 'none'}"
            raise UsageError(message, remedy="Correct or remove it in the recipe's `habit_shares`.")


def _play_example(environment: Environment, sampling: Sampling, script: _Script) -> _Example:
    episode, turns = script
    played = play_script(environment, episode, turns)
    results = tuple(tuple(shown(text, sampling) for text in texts) for texts in played.results)
    return _Example(episode, turns, environment, results, played.score.success)


def _tokenize(example: _Example, chats: dict[str, ChatFormat]) -> _Row:
    """Ids exactly as a rollout would have them, with labels on the assistant's own tokens."""
    chat = chats[example.environment.name]
    ids = list(chat.prompt_ids(example.episode.messages))
    labels = [-100] * len(ids)
    for turn, results in zip(example.turns, example.results, strict=True):
        sampled = chat.turn_ids(turn)
        ids += sampled
        labels += sampled
        if turn.calls:
            observation = chat.observation(results)
            ids += observation.ids
            labels += [-100] * len(observation.ids)
    return {"input_ids": ids, "labels": labels}


@dataclass(frozen=True, slots=True)
class _Stage:
    """One supervised stage."""

    name: str
    settings: FineTune
    examples: Sequence[_Example]


def _in_batches(rows: Sequence[_Row], settings: FineTune) -> list[_Row]:
    """The rows of all steps in order; within a step by length, so that its micro-batches need little padding."""
    ordered: list[_Row] = []
    for step in range(settings.steps):
        start = step * settings.batch_size
        batch = [rows[(start + offset) % len(rows)] for offset in range(settings.batch_size)]
        ordered += sorted(batch, key=lambda row: len(row["input_ids"]))
    return ordered


def _fine_tune(stage: _Stage, model: Any, tokenizer: Any, job: StarterJob, emit: Emit) -> Any:
    name, settings, examples = stage.name, stage.settings, stage.examples
    environments = {example.environment.name: example.environment for example in examples}
    chats = {key: ChatFormat(tokenizer, environment.tools) for key, environment in environments.items()}
    rows = _in_batches([_tokenize(example, chats) for example in examples], settings)
    decay = round(settings.steps * settings.decay_share)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=f"{job.output_dir}.work/{name}",
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch_size // _MICRO_BATCHES,
            gradient_accumulation_steps=_MICRO_BATCHES,
            train_sampling_strategy="sequential",
            learning_rate=settings.learning_rate,
            lr_scheduler_type="warmup_stable_decay" if decay else "constant",
            lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear"} if decay else {},
            warmup_steps=settings.warmup_steps,
            adam_beta2=settings.adam_beta2,
            max_length=None,
            bf16=False,
            use_cpu=job.recipe.compute.device == "cpu",
            gradient_checkpointing=False,
            full_determinism=True,
            seed=settings.seed % 2**32,
            logging_steps=max(1, settings.steps // 8),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[_StepProgress(name, settings.steps, emit)],
    )
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model)


class _StepProgress(TrainerCallback):  # type: ignore[misc]
    """Reports supervised steps."""

    def __init__(self, label: str, total: int, emit: Emit) -> None:
        self._label, self._total, self._emit = label, total, emit

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Report a step."""
        self._emit(Progressed(label=self._label, done=state.global_step, total=self._total))
        return control


def _measure(
    job: StarterJob,
    probes: tuple[tuple[Episode, ...], tuple[Episode, ...]],
    model: Any,
    tokenizer: Any,
    environments: tuple[Environment, Environment],
) -> StarterDone:
    """pass@1 by family and on the retention suite.

    Raises:
        FaultError: An episode has no verdict; a missing verdict never counts as a failure.
    """
    sampling = job.recipe.sampling
    scores: dict[str, list[bool]] = {}
    for suite, episodes, environment in zip(("agent", "retention"), probes, environments, strict=True):
        chat = ChatFormat(tokenizer, environment.tools)
        policy = HFPolicy(
            model.eval(), end_id=chat.end_id, pad_id=tokenizer.pad_token_id, temperature=sampling.temperature
        )
        loop = RolloutLoop(policy, chat, environment, sampling)
        played = loop.play(
            [Attempt(episode, 0) for episode in episodes],
            partial(_probe_seed, job.recipe.seed, suite),
        )
        for each in played:
            if each.record.score is None:
                message = f"the probe of the starting policy: {each.record.episode} has no verdict, its world broke"
                raise FaultError(message)
            family = each.record.family if suite == "agent" else "retention"
            scores.setdefault(family, []).append(each.record.score.success)
    rows = {name: FamilyScore(family=name, episodes=len(r), successes=sum(r)) for name, r in scores.items()}
    retention = rows.pop("retention")
    return StarterDone(families=tuple(rows.values()), retention=retention)


def _probe_seed(root: int, suite: str, attempt: Attempt, turn: int) -> int:
    return derive_seed(root, "probe", suite, attempt.episode.id, turn)
