"""A policy of a few thousand weights, a plan for it, and jobs on both: the real training stack in a second or two."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from experiment.environments.base import Environment, ScriptedTurn
from experiment.environments.german_tools.environment import GermanTools
from experiment.pipeline.schedule import build_schedule
from experiment.records.base import Record
from experiment.records.episode import Episode
from experiment.records.job import StepDone, TrainingDone, TrainJob
from experiment.records.plan import Plan
from experiment.records.recipe import Arm, Checkpoints, Inputs, Lora, Sampling, StarterModel
from experiment.records.world import GermanToolsWorld
from experiment.rollout.chat import ChatFormat, turn_text
from experiment.sealing.canonical import encode_record
from experiment.training.blank import build_model, build_tokenizer
from experiment.training.determinism import configure
from experiment.training.models import load_baseline, load_tokenizer
from experiment.training.player import StepPlayer
from experiment.training.sampler import Sampler
from experiment.training.train import train
from tests.doubles.drawn_scripts import DrawnScripts
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.small_plan import small_plan, small_recipe

WORLD = GermanTools()
EPISODES = WORLD.generate(prefix="train", count=24, seed=3, taken=frozenset())
SHAPE = StarterModel(layers=2, hidden=32, heads=2, head_dim=16, intermediate=64, initial_std=0.05, vocabulary=420)
ECHO = Arm(name="echo", algorithm="echo", observation_weight=0.05)
GRPO = Arm(name="grpo", algorithm="grpo")
ARMS = (GRPO, ECHO, Arm(name="echo-zero", algorithm="echo", observation_weight=0.0))
DRAWING_SEED = 614
"""With this root, the first step draws each of four scripts once in each group."""

_Event = TypeVar("_Event", bound=Record)


def write_policy(folder: Path, *, steps: int = 60) -> None:
    """Save a tokenizer and a model that has learned how turns look, so that it calls tools and ends its turns."""
    torch.manual_seed(5)
    texts = [turn_text(turn) for episode in EPISODES for turn in WORLD.solve(episode)]
    texts = [text.replace("<tool_call>", "").replace("</tool_call>", "") for text in texts]
    tokenizer = build_tokenizer(texts + [each.messages[-1].content for each in EPISODES], SHAPE.vocabulary)
    model = build_model(SHAPE, tokenizer)
    chat = ChatFormat(tokenizer, WORLD.tools)
    rows = [_dialogue(chat, number) for number in range(len(EPISODES))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        chosen = [rows[(step * 8 + each) % len(rows)] for each in range(8)]
        _fit(model, optimizer, chosen, tokenizer.pad_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _dialogue(chat: ChatFormat, number: int) -> list[int]:
    episode = EPISODES[number]
    session = WORLD.open(episode)
    ids = list(chat.prompt_ids(episode.messages))
    for turn in WORLD.solve(episode):
        ids += chat.turn_ids(turn)
        if turn.calls:
            ids += chat.observation([session.call(name, dict(given)).text for name, given in turn.calls]).ids
    return ids


def _fit(model: Any, optimizer: Any, rows: Sequence[list[int]], pad: int) -> None:
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def tiny_plan(baseline: Path, *, steps: int = 4, sampling: dict[str, Any] | None = None, **training: Any) -> Plan:
    """A plan for the tiny policy: two prompts a step, four rollouts each, every step sealed."""
    recipe = small_recipe(steps=steps, arms=ARMS)
    defaults = {
        "prompts_per_step": 2,
        "rollouts_per_prompt": 4,
        "learning_rate": 1e-2,
        "schedule": "constant",
        "kl": 0.1,
        "lora": Lora(rank=4, alpha=8),
    }
    recipe = recipe.model_copy(
        update={
            "seed": DRAWING_SEED,
            "inputs": Inputs(baseline=str(baseline)),
            "world": GermanToolsWorld(name="german_tools"),
            "sampling": Sampling(
                **{"max_turns": 3, "max_turn_tokens": 40, "max_completion_tokens": 150, "batch_size": 16}
                | (sampling or {})
            ),
            "training": recipe.training.model_copy(update=defaults | training),
            "checkpoints": Checkpoints(recovery_every=1, candidates=(steps,), diagnostic=steps),
        }
    )
    plan = small_plan(recipe)
    return plan.model_copy(update={"train": EPISODES, "schedule": build_schedule(recipe, EPISODES)})


@dataclass
class Branch:
    """One execution of a plan's arm in a folder of its own."""

    folder: Path
    plan: Plan
    arm: str = "echo"
    world: Environment = field(default_factory=LenientWorld)
    events: list[Record] = field(default_factory=list)

    def job(self, stop_at: int, resume_from: Path | None = None) -> TrainJob:
        """The job of training up to a step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "plan.json"
        path.write_bytes(encode_record(self.plan))
        return TrainJob(
            plan_path=str(path),
            arm=self.arm,
            evidence_dir=str(self.folder / "evidence"),
            checkpoint_dir=str(self.folder / "checkpoints"),
            recovery_dir=str(self.folder / "recovery"),
            work_dir=str(self.folder / "work"),
            resume_from=str(resume_from) if resume_from else None,
            stop_at=stop_at,
        )

    def train(self, stop_at: int, resume_from: Path | None = None) -> Branch:
        """Train in this process, collecting the events."""
        train(self.job(stop_at, resume_from), self.plan, self.world, self.events.append, lambda: False)
        return self

    def of(self, kind: type[_Event]) -> list[_Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def steps(self) -> list[StepDone]:
        """The steps done."""
        return self.of(StepDone)

    @property
    def state(self) -> dict[str, str]:
        """Every digest of the last state."""
        return dict(self.of(TrainingDone)[-1].state)

    def checkpoint(self, step: int) -> Path:
        """The folder of a sealed checkpoint."""
        return self.folder / "checkpoints" / f"step-{step:06d}"

    def evidence(self) -> dict[str, bytes]:
        """The bytes of every evidence file."""
        return {path.name: path.read_bytes() for path in sorted((self.folder / "evidence").iterdir())}


Scripts = Callable[[Episode], Sequence[Sequence[str | tuple[int, ...]]]]
"""For an episode some scripts, which differ in their first turn; a turn is a text or exactly these ids."""


def scripted_sampler(plan: Plan, chat: ChatFormat, scripts: Scripts) -> Sampler:
    """Samples turns from scripts instead of a model."""

    def ids(turn: str | tuple[int, ...]) -> tuple[int, ...]:
        return turn if isinstance(turn, tuple) else chat.turn_ids(ScriptedTurn(text=turn, calls=()))

    table = {
        chat.prompt_ids(episode.messages): [[ids(turn) for turn in script] for script in scripts(episode)]
        for episode in plan.train
    }
    return Sampler(DrawnScripts(table), lambda: None)


def scripted_player(plan: Plan, arm: Arm, world: Environment, scripts: Scripts) -> tuple[StepPlayer, Any, Any]:
    """A player whose rollouts come from scripts, with model and tokenizer; the process is freshly seeded."""
    configure(plan.recipe.compute, plan.recipe.seed)
    tokenizer, model = load_tokenizer(plan.recipe), load_baseline(plan.recipe)
    chat = ChatFormat(tokenizer, world.tools)
    player = StepPlayer(plan, arm, chat, world, Path(plan.recipe.inputs.baseline) / "recovery")
    player.sample_from(scripted_sampler(plan, chat, scripts))
    return player, model, tokenizer


def mixed_scripts(episode: Episode) -> list[list[str]]:
    """A solution, a guess, an invalid call, and two lookups in one turn."""
    key = json.loads(episode.task_json)["lookups"][0]
    lookups = ScriptedTurn(
        text="", calls=(("nachschlagen", (("schluessel", key),)), ("nachschlagen", (("schluessel", "nichts"),)))
    )
    return [
        [turn_text(turn) for turn in WORLD.solve(episode)],
        ["Antwort: 3"],
        ["<tool_call>{}</tool_call>", "Antwort: 14"],
        [turn_text(lookups), "Antwort: 15"],
    ]
