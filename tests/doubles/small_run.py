"""A small, complete run directory: synthetic measurements in real records through the real journal writer.

`draft_run` writes plan, evidence and checkpoints and lists the journal's records; `SmallRun.write` journals them.
A test may edit `records` in between, so that a journal with a true chain tells a false story.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from experiment.decisions.divergence import count_divergences
from experiment.decisions.equality import compare_branches
from experiment.decisions.merging import reference_part
from experiment.journal.chain import Artifact, Entry
from experiment.journal.reader import JournalView
from experiment.journal.writer import JournalWriter
from experiment.records.base import Record
from experiment.records.entry import (
    BranchFinished,
    CheckpointSealed,
    Closed,
    EnvironmentObserved,
    EvaluationFinished,
    FamilyRates,
    Genesis,
    InputsVerified,
    QualificationResult,
    StepFacts,
    TrainFinished,
    TrainStarted,
    TrainStep,
    WorkerEnvironment,
)
from experiment.records.plan import PLAN_SCHEMA, Plan, ScheduledStep
from experiment.records.recipe import Recipe
from experiment.records.rollout import Rollout, TrainedRollout
from experiment.records.verdict import (
    EvaluationKey,
)
from experiment.sealing.arrays import decode_array
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive, digest_bytes, digest_file
from experiment.sealing.seeds import derive_seed
from experiment.sealing.trees import seal_tree
from tests.doubles.small_assessment import REFERENCE, select_and_assess, skill
from tests.doubles.small_plan import small_plan, small_recipe
from tests.doubles.small_rollouts import attempt, chance, trained, write_lines

RUN = "small-run"
BRANCHES: tuple[Literal["straight", "repeated", "resumed"], ...] = ("straight", "repeated", "resumed")


@dataclass
class SmallRun:
    """A run directory whose evidence exists; `records` are what `write` will journal after the genesis record."""

    run_dir: Path
    plan: Plan
    digest: str
    records: list[tuple[str, Record, tuple[Artifact, ...]]] = field(default_factory=list)
    results: dict[tuple[str, int, str, str], list[EvaluationFinished]] = field(default_factory=dict)
    played: dict[EvaluationKey, list[Rollout]] = field(default_factory=dict)
    adapters: dict[tuple[str, int], str] = field(default_factory=dict)
    """By (arm, step): digest of a sealed adapter."""

    def add(self, type_: str, body: Record, artifacts: Sequence[Artifact] = ()) -> None:
        """List a record."""
        self.records.append((type_, body, tuple(artifacts)))

    def position(self, type_: str, number: int = 0) -> int:
        """Index of the n-th record of a type."""
        return [index for index, record in enumerate(self.records) if record[0] == type_][number]

    def replace(self, index: int, **changes: object) -> None:
        """Change fields of a listed record's body."""
        type_, body, artifacts = self.records[index]
        self.records[index] = (type_, body.model_copy(update=changes), artifacts)

    def artifact(self, path: str, role: str) -> Artifact:
        """Describe a file of the run directory."""
        file = self.run_dir / path
        return Artifact(path=path, b3=digest_file(file), size=file.stat().st_size, role=role)

    def copy(self) -> SmallRun:
        """The same files, with a list of records that can be edited apart."""
        return SmallRun(run_dir=self.run_dir, plan=self.plan, digest=self.digest, records=list(self.records))

    def genesis(self) -> Genesis:
        """The first record."""
        return Genesis(
            plan=self.digest,
            plan_schema=PLAN_SCHEMA,
            sources=digest_bytes(b"sources"),
            claim="plans/small/claim",
            journal_code=digest_bytes(b"journal"),
            host="host",
        )

    def closed(self) -> Closed:
        """The last record of a finished run."""
        passed = all(not isinstance(body, QualificationResult) or body.verdict.passed for _, body, _ in self.records)
        outcome: Literal["assessed", "qualification_failed"] = "assessed" if passed else "qualification_failed"
        return Closed(records=len(self.records) + 2, outcome=outcome, active_seconds=12.5)

    def view(self, *, close: bool = True) -> JournalView:
        """The journal as a reader would return it, without its bytes."""
        told = [("genesis", self.genesis(), ()), *self.records, *([("close", self.closed(), ())] if close else [])]
        entries = tuple(
            Entry(
                seq=number,
                type=type_,
                body=body,
                artifacts=artifacts,
                hash=digest_bytes(f"{number}".encode()),
                segment=0,
                t=f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}.000000Z",
                mono_us=1_000_000 * number,
                boot="boot",
            )
            for number, (type_, body, artifacts) in enumerate(told)
        )
        return JournalView(
            run=RUN,
            plan=self.digest,
            entries=entries,
            head=entries[-1].hash,
            is_closed=close,
            torn_bytes=0,
            segments=(),
            watermark=None,
        )

    def write(self, *, close: bool = True) -> str:
        """Journal genesis and all listed records; returns the head line."""
        writer = JournalWriter.create(self.run_dir, run=RUN, genesis=self.genesis())
        for type_, body, artifacts in self.records:
            writer.append(type_, body, artifacts)
        head = writer.mark()
        if close:
            return writer.close(self.closed())
        writer.release()
        return head


def worker_environment(torch: str) -> WorkerEnvironment:
    """What every worker of a small run finds."""
    return WorkerEnvironment(
        threads=1, interop_threads=1, device="processor", capability="AVX2", torch=torch, deterministic=True
    )


def draft_run(
    workspace: Path, *, recipe: Recipe | None = None, lift: float = 0.5, fails_qualification: bool = False
) -> SmallRun:
    """Write a run's plan, evidence and checkpoints under `workspace/runs/small-run`.

    Args:
        workspace: An empty folder.
        recipe: The recipe; by default two arms of four steps.
        lift: How much probability of success the last step has more than the baseline's 0.3.
        fails_qualification: Whether the first arm's resumed branch differs.
    """
    plan = small_plan(recipe or small_recipe())
    run_dir = workspace / "runs" / RUN
    run_dir.mkdir(parents=True)
    data = encode_record(plan)
    (run_dir / "plan.json").write_bytes(data)
    run = SmallRun(run_dir=run_dir, plan=plan, digest=derive(CONTEXT_PLAN, data))
    run.add("inputs.verified", InputsVerified(inputs=1, size_bytes=5))
    run.add("env.observed", EnvironmentObserved(environment=worker_environment("2.15.0")))
    for number, arm in enumerate(plan.recipe.arms):
        _qualify(run, arm.name, lift, breaks=fails_qualification and number == 0)
    if not fails_qualification:
        for arm in plan.recipe.arms:
            _train(run, arm.name, lift)
        select_and_assess(run, lift)
    return run


def _group_lines(run: SmallRun, arm: str, scheduled: ScheduledStep, lift: float) -> list[TrainedRollout]:
    episodes = {each.id: each for each in run.plan.train}
    recipe, step = run.plan.recipe, scheduled.step
    chance_of_success = skill(run, step - 1, lift)

    def play(name: str, rollout: int) -> Rollout:
        def seed_of(turn: int) -> int:
            return derive_seed(recipe.seed, "train", step, name, rollout, turn)

        return attempt(episodes[name], rollout, chance_of_success, arm, step, seed_of=seed_of)

    return [
        line
        for name in scheduled.episodes
        for line in trained(
            [play(name, rollout) for rollout in range(recipe.training.rollouts_per_prompt)],
            format_weight=recipe.training.format_weight,
            learns=arm.startswith("echo"),
        )
    ]


def _facts(run: SmallRun, arm: str, step: int, evidence: str, lines: Sequence[TrainedRollout]) -> StepFacts:
    share = step / run.plan.recipe.training.steps
    wave = 0.05 * chance(arm, step, "metric")
    rollouts = [line.rollout for line in lines]
    metrics = {
        "corrupted_rollouts": 0.0,
        "entropy": 0.8 - 0.3 * share + wave,
        "gap_max_nats": 0.0,
        "gap_sum_nats": 0.0,
        "kl": 0.02 * share + wave / 10,
        "observation_tokens": float(sum(decode_array(line.observation_mask, "uint8").sum() for line in lines)),
        "reward": math.fsum(line.reward or 0.0 for line in lines) / len(lines),
        "rollouts": float(len(lines)),
        "sampled_tokens": float(sum(each.tokens_generated for each in rollouts)),
        "strict": sum(each.score is not None and each.score.success for each in rollouts) / len(lines),
    }
    if arm.startswith("echo"):
        metrics["observation_ce"] = 1.6 - 0.9 * share + wave
    return StepFacts(
        step=step,
        evidence=evidence,
        learning_rate=run.plan.schedule[step - 1].learning_rate,
        loss=0.1 - 0.05 * share + wave,
        grad_norm=0.5 + wave,
        metrics=tuple(sorted(metrics.items())),
    )


def _qualify(run: SmallRun, arm: str, lift: float, *, breaks: bool) -> None:
    steps = run.plan.schedule[: run.plan.recipe.qualification.steps]
    bodies: list[BranchFinished] = []
    evidence: dict[str, list[list[TrainedRollout]]] = {branch: [] for branch in BRANCHES}
    for branch in BRANCHES:
        facts, artifacts = [], []
        for scheduled in steps:
            lines = _group_lines(run, arm, scheduled, lift)
            path = f"qualification/{arm}/{branch}/evidence/step-{scheduled.step:06d}.jsonl"
            write_lines(run.run_dir / path, lines)
            artifact = run.artifact(path, "evidence")
            step = _facts(run, arm, scheduled.step, artifact.b3, lines)
            if breaks and branch == "resumed" and scheduled.step == 2:
                step = step.model_copy(update={"loss": (step.loss or 0.0) + 2**-30})
            facts.append(step)
            artifacts.append(artifact)
            evidence[branch].append(lines)
        body = BranchFinished(
            arm=arm,
            branch=branch,
            steps=tuple(facts),
            state=(("adapter", digest_bytes(b"adapter")), ("optimizer", digest_bytes(b"optimizer"))),
            reference=REFERENCE,
        )
        run.add("qual.branch", body, artifacts)
        bodies.append(body)
    states: dict[str, dict[str, str]] = {body.branch: dict(body.state) for body in bodies}
    verdict = compare_branches(bodies[0], bodies[1:], evidence, states)
    run.add("qual.result", QualificationResult(arm=arm, verdict=verdict))


def _rates(lines: Sequence[TrainedRollout]) -> tuple[FamilyRates, ...]:
    groups: dict[tuple[str, str], list[bool]] = {}
    for line in lines:
        solved = line.rollout.score is not None and line.rollout.score.success
        groups.setdefault((line.rollout.family, line.rollout.episode), []).append(solved)
    return tuple(
        FamilyRates(
            family=family,
            rollouts=sum(len(group) for (name, _), group in groups.items() if name == family),
            successes=sum(sum(group) for (name, _), group in groups.items() if name == family),
            groups=sum(name == family for name, _ in groups),
            all_fail=sum(name == family and not any(group) for (name, _), group in groups.items()),
            all_pass=sum(name == family and all(group) for (name, _), group in groups.items()),
        )
        for family in sorted({name for name, _ in groups})
    )


def _train(run: SmallRun, arm: str, lift: float) -> None:
    run.add("train.start", TrainStarted(arm=arm, from_step=0, checkpoint=None))
    checkpoints = run.plan.recipe.checkpoints
    for scheduled in run.plan.schedule:
        lines = _group_lines(run, arm, scheduled, lift)
        path = f"evidence/train/{arm}/step-{scheduled.step:06d}.jsonl"
        write_lines(run.run_dir / path, lines)
        artifact = run.artifact(path, "evidence")
        ends = [line.rollout.end for line in lines]
        body = TrainStep(
            arm=arm,
            facts=_facts(run, arm, scheduled.step, artifact.b3, lines),
            families=_rates(lines),
            ends=tuple(sorted((end, ends.count(end)) for end in set(ends))),
            divergences=count_divergences(line.rollout for line in lines),
            seconds=5.0 + chance(arm, scheduled.step, "seconds"),
            rollout_seconds=3.0,
        )
        run.add("train.step", body, [artifact])
        if scheduled.step % checkpoints.recovery_every == 0 or scheduled.step in checkpoints.candidates:
            _checkpoint(run, arm, scheduled.step)
    run.add("train.stop", TrainFinished(arm=arm, steps=len(run.plan.schedule)))


def _checkpoint(run: SmallRun, arm: str, step: int) -> None:
    path = f"checkpoints/{arm}/step-{step:06d}"
    partial = run.run_dir / f"{path}.partial"
    partial.mkdir(parents=True)
    (partial / "adapter.bin").write_bytes(f"{arm} {step}".encode())
    seal = seal_tree(partial, run.run_dir / path)
    run.adapters[arm, step] = digest_bytes(f"{arm} {step}".encode())
    run.add(
        "ckpt.sealed",
        CheckpointSealed(
            arm=arm,
            step=step,
            path=path,
            tree=seal.tree,
            state=(("adapter", run.adapters[arm, step]), reference_part(REFERENCE)),
            is_candidate=step in run.plan.recipe.checkpoints.candidates,
        ),
    )
