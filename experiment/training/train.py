"""The training job of a worker: one arm, from the start or a sealed checkpoint, up to a step."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from experiment.decisions.divergence import count_divergences
from experiment.decisions.families import family_rates
from experiment.environments.base import Environment
from experiment.errors import FaultError, PlanError
from experiment.records.base import Record
from experiment.records.entry import StepFacts
from experiment.records.job import CheckpointDone, Progressed, StepDone, TrainingDone, TrainJob, WorkerReady
from experiment.records.plan import Plan
from experiment.rollout.chat import ChatFormat
from experiment.rollout.evidence import write_evidence
from experiment.training.checkpoint import open_checkpoint, seal_checkpoint
from experiment.training.determinism import configure, observe
from experiment.training.models import load_baseline, load_tokenizer
from experiment.training.player import PlayedStep, StepPlayer, sampler_gaps, strict_results, trained_rollouts
from experiment.training.restoring import verify_readable
from experiment.training.sampler import build_sampler
from experiment.training.state import parts, reference_digest, trainer_state
from experiment.training.trainer import RecordedGRPOTrainer, build_trainer

Emit = Callable[[Record], None]


def train(job: TrainJob, plan: Plan, environment: Environment, emit: Emit, stop_requested: Callable[[], bool]) -> None:
    """Do the job's steps; everything that is exact about them is emitted and on disk.

    Raises:
        PlanError: The plan has no such arm.
        JournalError: The checkpoint to go on from is unsealed, changed or not readable.
        QualificationError: The restored state is not the sealed one.
        AlignmentError: A rollout may not train.
        FaultError: The loss is not finite, the world broke, or the trainer ended before the job's last step.
    """
    recipe = plan.recipe
    arm = next((each for each in recipe.arms if each.name == job.arm), None)
    if arm is None:
        message = f"{job.plan_path}: no arm '{job.arm}'"
        raise PlanError(message)
    sealed = _open(Path(job.resume_from)) if job.resume_from else None
    configure(recipe.compute, recipe.seed)
    emit(WorkerReady(environment=observe(recipe.compute)))
    tokenizer = load_tokenizer(recipe)
    model = load_baseline(recipe)
    chat = ChatFormat(tokenizer, environment.tools)
    player = StepPlayer(plan, arm, chat, environment, Path(job.recovery_dir))
    trainer = build_trainer(
        player,
        model=model,
        tokenizer=tokenizer,
        work_dir=job.work_dir,
        sealed_state=sealed,
    )
    trained = trainer.accelerator.unwrap_model(trainer.model)
    player.sample_from(build_sampler(recipe, trained, end_id=chat.end_id, pad_id=tokenizer.pad_token_id))
    recorder = _Recorder(job, plan, trainer, emit, stop_requested)
    trainer.add_callback(recorder)
    trainer.checkpoint_saved = recorder.seal
    trainer.train(resume_from_checkpoint=job.resume_from)
    done = trainer.state.global_step
    if not stop_requested():
        _require_all_steps(job, done)
    emit(
        TrainingDone(
            step=done,
            state=tuple(trainer_state(trainer).items()),
            reference=reference_digest(trained),
        )
    )


def _require_all_steps(job: TrainJob, done: int) -> None:
    """Return only if the job's last step is done: a trainer whose data ran out ends as quietly as one that is done."""
    if done < job.stop_at:
        message = f"arm {job.arm}: the trainer ended after step {done} of {job.stop_at}, though nobody asked it to stop"
        raise FaultError(message)


def _open(checkpoint: Path) -> dict[str, str]:
    """The digests of a sealed checkpoint's state, whose parts can all be read."""
    sealed = open_checkpoint(checkpoint)
    verify_readable(checkpoint)
    return sealed


class _Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes evidence, reports steps, decides when to save and when to stop."""

    def __init__(
        self,
        job: TrainJob,
        plan: Plan,
        trainer: RecordedGRPOTrainer,
        emit: Emit,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._job = job
        self._plan = plan
        self._trainer = trainer
        self._emit = emit
        self._stop_requested = stop_requested
        self._stops = False
        self._started = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Say that the model is loaded and steps begin."""
        self._started = time.perf_counter()
        self._emit(Progressed(label=self._job.arm, done=state.global_step, total=self._job.stop_at))
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Save at the plan's steps and wherever the job stops."""
        every = self._plan.recipe.checkpoints.recovery_every
        self._stops = state.global_step >= self._job.stop_at or self._stop_requested()
        planned = {*self._plan.recipe.checkpoints.candidates, self._plan.recipe.checkpoints.diagnostic}
        control.should_save = self._stops or state.global_step % every == 0 or state.global_step in planned
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Stop only now: asked for earlier, a stop would be part of the checkpoint and of its seal."""
        control.should_training_stop = self._stops
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
        """Write the step's evidence and report the step."""
        # Checkpoints hold the log, and equal states have equal seals: what a clock said is left out.
        state.log_history[-1].pop("step_time", None)
        step = self._trainer.played
        if "grad_norm" not in (logs or {}) or step is None:
            return control  # the summary after the last step
        path = Path(self._job.evidence_dir) / f"step-{state.global_step:06d}.jsonl"
        digest = write_evidence(path, trained_rollouts(step))
        facts = _facts(self._trainer, step, logs, digest, self._plan.recipe.health.max_gap_nats)
        self._emit(
            StepDone(
                facts=facts,
                families=family_rates(strict_results(step), self._plan.recipe.training.rollouts_per_prompt),
                ends=tuple(sorted(Counter(each.record.end for each in step.rollouts).items())),
                divergences=count_divergences(each.record for each in step.rollouts),
                seconds=time.perf_counter() - self._started,
                rollout_seconds=step.seconds,
                evidence_path=str(path),
                evidence_bytes=path.stat().st_size,
            )
        )
        self._started = time.perf_counter()
        if facts.not_finite:
            message = f"arm {self._job.arm}, step {state.global_step}: {', '.join(facts.not_finite)} not finite"
            raise FaultError(message)
        return control

    def seal(self, saved: Path) -> None:
        """Seal what the trainer saved and report it."""
        state = trainer_state(self._trainer)
        step = self._trainer.state.global_step
        final = Path(self._job.checkpoint_dir) / f"step-{step:06d}"
        seal = seal_checkpoint(saved, final, state)
        self._emit(CheckpointDone(step=step, path=str(final), tree=seal.tree, state=parts(state)))


def _facts(
    trainer: RecordedGRPOTrainer, step: PlayedStep, logs: dict[str, Any], evidence: str, max_gap: float
) -> StepFacts:
    """Everything exact about a step; values that are not finite are named instead of written."""
    gap, worst_sum, _ = sampler_gaps(step)
    rewards = [each for each in step.rewards if each is not None]
    judged = [each.record.score for each in step.rollouts if each.record.score is not None]
    metrics = {
        "corrupted_rollouts": float(_corrupted(step, max_gap)),
        "entropy": _number(logs["entropy"]),
        "gap_max_nats": gap,
        "gap_sum_nats": worst_sum,
        "kl": _number(logs.get("kl", 0.0)),
        "observation_tokens": float(sum(map(sum, step.observation_masks))),
        "reward": math.fsum(rewards) / len(rewards) if rewards else 0.0,
        "rollouts": float(len(step.rollouts)),
        "sampled_tokens": float(sum(each.record.tokens_generated for each in step.rollouts)),
        "strict": sum(each.success for each in judged) / len(judged) if judged else 0.0,
    }
    if trainer.observation_weight is not None and metrics["observation_tokens"]:
        metrics["observation_ce"] = trainer.observation_ce
    numbers = {"loss": logs["loss"], "grad_norm": logs["grad_norm"], **metrics}
    bad = tuple(sorted(name for name, value in numbers.items() if not math.isfinite(value)))
    return StepFacts(
        step=step.step,
        evidence=evidence,
        learning_rate=logs["learning_rate"],
        loss=None if "loss" in bad else logs["loss"],
        grad_norm=None if "grad_norm" in bad else logs["grad_norm"],
        not_finite=bad,
        metrics=tuple(sorted((name, value) for name, value in metrics.items() if name not in bad)),
    )


def _number(logged: float | None) -> float:
    """A logged mean; TRL leaves values that are not numbers out of it, and logs None where no other is left."""
    return math.nan if logged is None else logged


def _corrupted(step: PlayedStep, max_gap: float) -> int:
    """Rollouts with a token that sampler and trainer score more than `max_gap` nats apart."""
    count = 0
    for index, played in enumerate(step.rollouts):
        mask = np.asarray(played.sampled_mask, dtype=bool)
        gap = np.abs(step.trainer_logprobs[index] - np.asarray(played.logprobs, dtype=np.float32))[mask]
        count += bool((gap > max_gap).any())
    return count
