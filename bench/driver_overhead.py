"""What the driver and its records cost over a plain TRL script that plays the same rollouts and makes the same updates.

Run from the repository root, where the recipe's baseline is: `python bench/driver_overhead.py`, and, if wanted, recipe,
number of pairs and number of steps.

- *plain*: TRL's `GRPOTrainer` with the recipe's settings and a `rollout_func` around our rollout loop; keeps nothing.
- *driven*: stage 2 as a run does it: the worker's `train`, with the alignment audit, evidence, digests and sealed
  checkpoints, and the driver's part, from the lines that workers send to the journal. Both in this one process, one
  after the other, where a run has them in two processes, side by side.

The two take turns, a step each; the first step of each is left out, and so is the first pair of trainings. After every
pair, adapters and optimizers must be equal bit for bit. Ratios are of processor time, because other work on the machine
does not count in it. What the driven training waits for the disk is added from its own clock in a ratio of its own; on
a machine that does other things too it is too long. Prints the share of each part, and `ratio: X`.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

from experiment.environments.catalogue import build_world
from experiment.journal.writer import JournalWriter
from experiment.pipeline import stage2_train
from experiment.pipeline.context import RunContext
from experiment.pipeline.prepare import build_plan
from experiment.pipeline.recipes import load_recipe
from experiment.pipeline.workers import Chain
from experiment.records.base import Record
from experiment.records.entry import BranchFinished, Genesis
from experiment.records.job import EVENTS, StepDone, TrainingDone
from experiment.records.plan import Plan
from experiment.rollout.chat import ChatFormat
from experiment.rollout.episode import Attempt, RolloutLoop
from experiment.sealing.canonical import decode, encode, encode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive
from experiment.sealing.seeds import derive_seed
from experiment.training import player as player_module
from experiment.training import sampler as sampler_module
from experiment.training import train as train_module
from experiment.training.determinism import configure
from experiment.training.models import load_baseline, load_tokenizer, lora_config
from experiment.training.player import StepPlayer, reward_of
from experiment.training.sampler import build_sampler
from experiment.training.state import reference_digest, trainer_state
from experiment.training.trainer import RecordedGRPOTrainer, build_config, verified

IMPORTED = time.process_time()
FSYNC = os.fsync


@dataclass(slots=True)
class Spent:
    """Processor and wall time of a training's turns: one a step, without the first step, and what follows the last."""

    turns_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    has_begun: bool = False

    @property
    def cpu_s(self) -> float:
        """Processor time of all turns."""
        return sum(self.turns_s)


class Turns:
    """Lets two trainings in two threads go on by turns, a step each, and counts what each takes."""

    def __init__(self, first: str, second: str) -> None:
        self.spent = {first: Spent(), second: Spent()}
        self._waiting = [first, second]
        self._change = threading.Condition()

    def begin(self, name: str) -> None:
        """Wait for the first turn."""
        with self._change:
            self._change.wait_for(lambda: self._waiting[0] == name)
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def step_done(self, name: str) -> None:
        """Count the turn, let the other training make a step, and go on."""
        self._count(name)
        stream = (
            torch.get_rng_state()
        )  # the order of the trainer's batches is drawn from it; processes would not share it
        with self._change:
            self._waiting.append(self._waiting.pop(0))
            self._change.notify_all()
        self.begin(name)
        torch.set_rng_state(stream)

    def end(self, name: str) -> None:
        """Count the turn and give up the next ones."""
        self._count(name)
        with self._change:
            self._waiting.remove(name)
            self._change.notify_all()

    def _count(self, name: str) -> None:
        spent = self.spent[name]
        if spent.has_begun:
            spent.turns_s.append(time.process_time() - self._cpu)
            spent.wall_s += time.perf_counter() - self._wall
        spent.has_begun = True


class Parts:
    """Processor time by part, each without the parts inside it; and the time that `fsync` waited."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = defaultdict(float)
        self.waited_s = 0.0
        self._inside = [0.0]

    def clear(self) -> None:
        """Forget what has been measured."""
        self.cpu_s.clear()
        self.waited_s = 0.0

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time is counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            self._inside.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.process_time() - started
                self.cpu_s[part] += spent - self._inside.pop()
                self._inside[-1] += spent

        return counted

    def fsync(self, fd: int) -> None:
        """`os.fsync`, whose waiting is counted."""
        wall, cpu = time.perf_counter(), time.process_time()
        FSYNC(fd)
        self.waited_s += time.perf_counter() - wall - (time.process_time() - cpu)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count while the block runs."""
        before = [(owner, name, getattr(owner, name)) for _, owner, name in COUNTED]
        for part, owner, name in COUNTED:
            setattr(owner, name, self.wrap(part, getattr(owner, name)))
        os.fsync = self.fsync
        try:
            yield
        finally:
            os.fsync = FSYNC
            for owner, name, function in before:
                setattr(owner, name, function)


PLAIN = "as in the plain script"
COUNTED = (
    ("alignment audit", player_module, "require_aligned"),
    ("sampler verified", sampler_module, "verify_merged"),
    ("observation masks", StepPlayer, "_observation_mask"),
    ("kept by the trainer", RecordedGRPOTrainer, "_compute_loss"),
    (PLAIN, GRPOTrainer, "_compute_loss"),
    ("kept by the trainer", RecordedGRPOTrainer, "_generate_and_score_completions"),
    (PLAIN, GRPOTrainer, "_generate_and_score_completions"),
    ("evidence", train_module, "trained_rollouts"),
    ("evidence", train_module, "write_evidence"),
    ("facts of the step", train_module, "_facts"),
    ("facts of the step", train_module, "family_rates"),
    ("facts of the step", train_module, "count_divergences"),
    ("state digests", train_module, "trainer_state"),
    ("state digests", train_module, "reference_digest"),
    ("saving, TRL's own", GRPOTrainer, "_save_checkpoint"),
    ("sealing", train_module, "seal_checkpoint"),
    ("journal", JournalWriter, "append"),
    ("journal", JournalWriter, "mark"),
    ("checkpoints verified by the driver", stage2_train, "verify_tree"),
)
"""Part, and the function that does it, as the module that calls it names it."""


class PlainScript:
    """What somebody writes who only wants to train."""

    def __init__(self, plan: Plan, work_dir: Path) -> None:
        self._plan, recipe = plan, plan.recipe
        configure(recipe.compute, recipe.seed)
        tokenizer, world = load_tokenizer(recipe), build_world(recipe.world)
        rows = [{"prompt": episode} for step in plan.schedule for episode in step.episodes]
        self.trainer = GRPOTrainer(
            model=load_baseline(recipe),
            args=build_config(plan, str(work_dir)),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=lora_config(recipe.training.lora),
            reward_funcs=[verified],
            rollout_func=self._play,
        )
        torch.utils.deterministic.fill_uninitialized_memory = False
        chat = ChatFormat(tokenizer, world.tools)
        trained = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self._sampler = build_sampler(recipe, trained, end_id=chat.end_id, pad_id=tokenizer.pad_token_id)
        self._loop = RolloutLoop(self._sampler.policy, chat, world, recipe.sampling)
        self._episodes = {episode.id: episode for episode in plan.train}

    def _play(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        step, recipe = trainer.state.global_step + 1, self._plan.recipe
        self._sampler.refresh()
        group = recipe.training.rollouts_per_prompt
        played = self._loop.play(
            [Attempt(self._episodes[each], index % group) for index, each in enumerate(prompts)],
            lambda each, turn: derive_seed(recipe.seed, "train", step, each.episode.id, each.rollout, turn),
        )
        return {
            "prompt_ids": [list(each.prompt_ids) for each in played],
            "completion_ids": [list(each.completion_ids) for each in played],
            "logprobs": [list(each.logprobs) for each in played],
            "env_mask": [list(each.sampled_mask) for each in played],
            "verified_reward": [reward_of(each.record, recipe.training.format_weight) for each in played],
        }


class EndOfStep(TrainerCallback):
    """Ends a turn when a step has been logged."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
        """End the turn, but not for the summary after the last step."""
        if "grad_norm" in (logs or {}):
            self._end()
        return control


def train_plainly(plan: Plan, folder: Path, turns: Turns) -> dict[str, str]:
    """Train with the plain script; returns where it left the trainer."""
    turns.begin("plain")
    try:
        script = PlainScript(plan, folder / "work")
        script.trainer.add_callback(EndOfStep(lambda: turns.step_done("plain")))
        script.trainer.train()
    finally:
        turns.end("plain")
    return trainer_state(script.trainer)


class InThisProcess:
    """Does a worker's job where a pool would start a process for it."""

    def __init__(self, plan: Plan, parts: Parts, turns: Turns) -> None:
        self._plan, self._parts, self._turns = plan, parts, turns
        self.state: dict[str, str] = {}

    def run(
        self, chains: Sequence[Chain], on_event: Callable[[str, Record], None], may_go_on: Callable[[], None]
    ) -> None:
        """Do all jobs; every event becomes a line and is read again, as between two processes."""
        write, take = self._parts.wrap("worker to driver", _write), self._parts.wrap("driver, the rest", on_event)
        read, world = self._parts.wrap("worker to driver", _read), build_world(self._plan.recipe.world)

        def emit(event: Record, key: str) -> None:
            take(key, read(write(event)))
            may_go_on()
            if isinstance(event, StepDone):
                self._turns.step_done("driven")
                if event.facts.step == 1:
                    self._parts.clear()
            elif isinstance(event, TrainingDone):
                self.state = dict(event.state)

        for chain in chains:
            for make in chain.jobs:
                for job in make():
                    train_module.train(job, self._plan, world, lambda event, key=chain.key: emit(event, key), _never)


def _write(event: Record) -> bytes:
    return encode({"event": type(event).__name__, "body": event.model_dump(mode="json")}) + b"\n"


def _read(line: bytes) -> Record:
    event: Any = decode(line.rstrip(b"\n"))
    return EVENTS[event["event"]].model_validate_json(encode(event["body"]))


def _never() -> bool:
    return False


class Unwatched:
    """A watcher that looks away."""

    def stage(self, *_: object) -> None:
        """Ignore it."""

    progress = note = stage


def train_driven(plan: Plan, folder: Path, turns: Turns, parts: Parts) -> dict[str, str]:
    """Train as a run does it; returns where it left the trainer."""
    turns.begin("driven")
    try:
        journal = begin_journal(plan, folder)
        pool = InThisProcess(plan, parts, turns)
        context = RunContext(plan, folder / "plan.json", folder, journal, pool, Unwatched())  # type: ignore[arg-type]
        stage2_train.train(context)
    finally:
        turns.end("driven")
    journal.release()
    return pool.state


def begin_journal(plan: Plan, folder: Path) -> JournalWriter:
    """A journal as it is when training begins; there was no qualification to compare steps with."""
    digest = derive(CONTEXT_PLAN, encode_record(plan))
    genesis = Genesis(
        plan=digest, plan_schema=plan.schema_id, sources=digest, claim="claim", journal_code=digest, host="host"
    )
    journal = JournalWriter.create(folder, run="bench", genesis=genesis)
    arm = plan.recipe.arms[0].name
    reference = reference_digest(load_baseline(plan.recipe))
    branch = BranchFinished(arm=arm, branch="straight", steps=(), state=(), reference=reference)
    journal.append("qual.branch", branch)
    return journal


def measure_pair(plan: Plan, number: int) -> tuple[Spent, Spent, Parts]:
    """One training of each kind, in folders that are gone afterwards."""
    parts, names = Parts(), ("plain", "driven")
    turns = Turns(*(names if number % 2 else reversed(names)))
    gc.collect()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir="runs") as name,
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        parts.watch(),
        ThreadPoolExecutor(2) as threads,
    ):
        folder = Path(name)
        futures = (
            threads.submit(train_plainly, plan, folder / "plain", turns),
            threads.submit(train_driven, plan, folder / "driven", turns, parts),
        )
        plain, driven = (each.result() for each in futures)
    trained = {name for name in plain if name.partition("/")[0] in {"adapter", "optimizer"}}
    differing = sorted(name for name in trained if plain[name] != driven.get(name))
    if differing or not trained:
        print(f"the two trainings differ, first in {(differing or ['everything'])[0]}")
        raise SystemExit(1)
    return turns.spent["plain"], turns.spent["driven"], parts


def describe(name: str, values: Sequence[float]) -> str:
    """Median and range."""
    return f"{name}: {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Print the parts and the ratios."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "recipes/quickstart.toml")
    pairs, steps = (int(sys.argv[place]) if len(sys.argv) > place else default for place, default in ((2, 7), (3, 20)))
    changes = [f"training.steps={steps}", f"checkpoints.candidates=[{steps}]", f"checkpoints.diagnostic={steps}"]
    plan = build_plan(load_recipe(path, [*changes, 'arms=[{name="grpo", algorithm="grpo"}]']), path, "bench")
    gc.freeze()
    print(f"imports: {IMPORTED:.1f} s of processor time, not counted")
    found = []
    for number in range(pairs + 1):
        plain, driven, parts = measure_pair(plan, number)
        print(
            f"pair {number}: plain {plain.cpu_s:.2f} s, driven {driven.cpu_s:.2f} s, "
            f"waited {parts.waited_s * 1e3:.0f} ms; wall {plain.wall_s:.2f} s, {driven.wall_s:.2f} s",
            flush=True,
        )
        found.append((plain, driven, parts))
    kept = found[1:]
    timed = statistics.median(plain.cpu_s for plain, _, _ in kept)
    print(
        f"\n{steps - 1} steps, plain: {timed / (steps - 1) * 1e3:.0f} ms of processor time each; of that, driven adds"
    )
    names = sorted({name for _, _, parts in kept for name in parts.cpu_s if name != PLAIN})
    shares = {
        name: statistics.median(parts.cpu_s[name] / plain.cpu_s for plain, _, parts in kept) for name in names
    } | {"waiting for the disk": statistics.median(parts.waited_s / plain.cpu_s for plain, _, parts in kept)}
    for name, share in sorted(shares.items(), key=lambda each: -each[1]):
        print(f"  {share:7.2%}  {name}")
    print(f"  {sum(shares.values()):7.2%}  together\n")
    print(describe("wall, other work included", [driven.wall_s / plain.wall_s for plain, driven, _ in kept]))
    waited = [(driven.cpu_s + parts.waited_s) / plain.cpu_s for plain, driven, parts in kept]
    print(describe("processor and waiting for the disk", waited))
    each = [
        after / before
        for plain, driven, _ in kept
        for before, after in zip(plain.turns_s[:-1], driven.turns_s[:-1], strict=True)
    ]
    print(f"processor, median of {len(each)} single steps without a checkpoint: {statistics.median(each):.3f}")
    ratios = [driven.cpu_s / plain.cpu_s for plain, driven, _ in kept]
    print(describe("processor", ratios))
    print(f"ratio: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
