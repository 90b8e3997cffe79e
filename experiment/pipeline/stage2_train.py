"""Stage 2: every arm trains to the end, with sealed checkpoints that any restart goes on from.

Steps after the last checkpoint are done again after a restart and have to come out the same, bit for bit. The first
steps have to equal the qualification's, which ran the same prefix. A difference stops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from experiment.decisions.health import Finding, PassRate, check_step
from experiment.decisions.merging import reference_part
from experiment.errors import FaultError, QualificationError
from experiment.journal.progress import fold_progress
from experiment.pipeline.context import RunContext
from experiment.pipeline.workers import Chain, Task
from experiment.records.base import Record
from experiment.records.entry import (
    CheckpointSealed,
    StepFacts,
    StepRedone,
    TrainFinished,
    TrainStarted,
    TrainStep,
    Warned,
)
from experiment.records.job import CheckpointDone, Progressed, StepDone, TrainingDone, TrainJob
from experiment.sealing.trees import verify_tree


def train(context: RunContext) -> None:
    """Leave all steps and checkpoints of all arms in the journal.

    Raises:
        QualificationError: A step that was done before came out differently.
        FaultError: A worker broke or did too little, or a monitor stopped the run.
        StoppedError: A stop was requested; what was done is sealed.
    """
    progress = fold_progress(context.journal.entries)
    arms = [arm.name for arm in context.plan.recipe.arms if arm.name not in progress.trained]
    if not arms:
        return
    training = context.plan.recipe.training
    detail = f"{training.steps} steps of {training.prompts_per_step} x {training.rollouts_per_prompt} rollouts"
    context.watcher.stage("train", f"{', '.join(arms)}: {detail}")
    recorders = {arm: _ArmRecorder(context, arm) for arm in arms}
    for recorder in recorders.values():
        recorder.refuse_stopped()
    unfinished = [arm for arm, recorder in recorders.items() if not recorder.finish()]
    chains = [Chain((arm,), [_job(context, arm)]) for arm in unfinished]
    context.work(chains, lambda key, event: recorders[key].take(event))
    _require_trained(context)


def _require_trained(context: RunContext) -> None:
    """Return only if every arm is trained: a worker that does too little ends like one that does its job."""
    recipe, trained = context.plan.recipe, fold_progress(context.journal.entries).trained
    for arm in recipe.arms:
        if arm.name not in trained:
            message = f"arm {arm.name}: its worker ended in good order before step {recipe.training.steps}"
            raise FaultError(message)


def _job(context: RunContext, arm: str) -> Callable[[], Sequence[Task]]:
    def make() -> Sequence[Task]:
        checkpoint = fold_progress(context.journal.entries).last_checkpoint(arm)
        if checkpoint is not None:
            # The seal alone would also fit another arm's checkpoint in this place.
            verify_tree(context.run_dir / checkpoint.path, checkpoint.tree)
        body = TrainStarted(
            arm=arm,
            from_step=checkpoint.step if checkpoint else 0,
            checkpoint=checkpoint.tree if checkpoint else None,
        )
        context.append("train.start", body)
        task = TrainJob(
            plan_path=str(context.run_dir / "plan.json"),
            arm=arm,
            evidence_dir=str(context.run_dir / "evidence" / "train" / arm),
            checkpoint_dir=str(context.run_dir / "checkpoints" / arm),
            recovery_dir=context.recovery_dir,
            work_dir=str(context.run_dir / "work" / f"train-{arm}"),
            resume_from=str(context.run_dir / checkpoint.path) if checkpoint else None,
            stop_at=context.plan.recipe.training.steps,
        )
        return [task]

    return make


class _ArmRecorder:
    """Turns one arm's worker events into journal records."""

    def __init__(self, context: RunContext, arm: str) -> None:
        progress = fold_progress(context.journal.entries)
        self._context = context
        self._arm = arm
        self._history = progress.history(arm)
        straight = progress.branches[arm, "straight"]
        self._qualified = {facts.step: facts for facts in straight.steps}
        self._reference = straight.reference
        self._total = context.plan.recipe.training.steps

    def refuse_stopped(self) -> None:
        """Return only if no monitor has stopped this arm: a restart is no way around a stop rule.

        Raises:
            FaultError: The last step was one after which the arm must not go on.
        """
        stops = [finding.message for finding in self._findings() if finding.stops] if self._history else []
        if stops:
            message = f"arm {self._arm}, {stops[0]}; this stopped the run for good"
            raise FaultError(message, remedy="Find the cause, and prepare a fresh plan that names this one.")

    def finish(self) -> bool:
        """Record the end of an arm whose last state was sealed before it could be; returns whether it is so."""
        checkpoint = fold_progress(self._context.journal.entries).last_checkpoint(self._arm)
        is_done = checkpoint is not None and checkpoint.step == self._total
        if is_done:
            self._context.append("train.stop", TrainFinished(arm=self._arm, steps=self._total))
        return is_done

    def take(self, event: Record) -> None:
        """Record one event.

        Raises:
            QualificationError: A step done before came out differently.
            FaultError: A monitor stops the run.
        """
        if isinstance(event, Progressed):
            self._context.watcher.progress(f"train/{self._arm}", self._arm, event.done, self._total)
        elif isinstance(event, StepDone):
            self._take_step(event)
        elif isinstance(event, CheckpointDone):
            self._take_checkpoint(event)
        elif isinstance(event, TrainingDone) and event.step == self._total:
            self._context.append("train.stop", TrainFinished(arm=self._arm, steps=event.step))
            self._context.journal.mark()

    def _take_step(self, event: StepDone) -> None:
        step = event.facts.step
        self._check_same(self._qualified.get(step), event.facts, "the qualification")
        self._check_rate(event.facts)
        self._context.watcher.progress(f"train/{self._arm}", _summary(self._arm, event.facts), step, self._total)
        if step <= len(self._history):
            self._check_same(self._history[step - 1].facts, event.facts, "the interrupted session")
            redone = StepRedone(arm=self._arm, step=step, evidence=event.facts.evidence)
            self._context.append("train.redone", redone)
            return
        if step != len(self._history) + 1:
            message = f"arm {self._arm}: step {step} arrived after step {len(self._history)}"
            raise FaultError(message)
        body = TrainStep(
            arm=self._arm,
            facts=event.facts,
            families=event.families,
            ends=event.ends,
            divergences=event.divergences,
            seconds=event.seconds,
            rollout_seconds=event.rollout_seconds,
        )
        artifact = self._context.artifact(event.evidence_path, event.facts.evidence, event.evidence_bytes, "evidence")
        self._context.append("train.step", body, [artifact])
        self._history.append(body)
        self._watch_health()

    def _findings(self) -> tuple[Finding, ...]:
        plan = self._context.plan
        rate = None
        if plan.baseline_attempts:
            rate = PassRate(plan.baseline_successes, plan.baseline_attempts)
        return check_step(self._history, plan.recipe.health, rate)

    def _watch_health(self) -> None:
        for finding in self._findings():
            message = f"arm {self._arm}, {finding.message}"
            self._context.append("warn", Warned(kind=finding.kind, message=message))
            self._context.watcher.note(message)
            if finding.stops:
                raise FaultError(message)

    def _take_checkpoint(self, event: CheckpointDone) -> None:
        verify_tree(Path(event.path), event.tree)
        if reference_part(self._reference) not in event.state:
            message = f"arm {self._arm}, step {event.step}: the weights below the adapter are not those that qualified"
            raise QualificationError(message)
        marks = self._context.plan.recipe.checkpoints
        body = CheckpointSealed(
            arm=self._arm,
            step=event.step,
            path=Path(event.path).relative_to(self._context.run_dir).as_posix(),
            tree=event.tree,
            state=event.state,
            is_candidate=event.step in marks.candidates,
        )
        self._context.append("ckpt.sealed", body)
        self._context.watcher.note(f"head {self._context.journal.mark()}")

    def _check_rate(self, facts: StepFacts) -> None:
        planned = self._context.plan.schedule[facts.step - 1].learning_rate
        if facts.learning_rate != planned:
            message = f"arm {self._arm}, step {facts.step}: learning rate {facts.learning_rate!r}, planned {planned!r}"
            raise QualificationError(message)

    def _check_same(self, before: StepFacts | None, now: StepFacts, where: str) -> None:
        if before is None or before == now:
            return
        names = [name for name in StepFacts.model_fields if getattr(before, name) != getattr(now, name)]
        message = f"arm {self._arm}, step {now.step}: {', '.join(names)} differ from {where}"
        raise QualificationError(message)


def _summary(arm: str, facts: StepFacts) -> str:
    metrics = dict(facts.metrics)
    return f"{arm}  strict {metrics.get('strict', 0.0):.2f}  reward {metrics.get('reward', 0.0):.2f}"
