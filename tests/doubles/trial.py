"""One arm's qualification in a folder laid out like a run's: a straight branch, and one to break and to judge."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiment.decisions import equality
from experiment.environments.base import Environment
from experiment.pipeline.stage1_qualify import STATE_FILE, branch_dir, decide_equality
from experiment.pipeline.stage1_qualify import Branch as BranchName
from experiment.records.entry import BranchFinished
from experiment.records.job import TrainingDone
from experiment.records.plan import Plan
from experiment.records.recipe import Lora
from experiment.records.verdict import Divergence, EqualityVerdict
from experiment.sealing.canonical import encode
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.tiny_training import Branch, tiny_plan

ARM = "echo"
STEPS, STOP_AT = 4, 2


def trial_plan(baseline: Path, *, steps: int = STEPS) -> Plan:
    """Sampling at temperature 1, dropout, a falling learning rate and two backward passes a step."""
    return tiny_plan(
        baseline,
        steps=steps,
        schedule="linear",
        warmup_steps=1,
        gradient_accumulation=2,
        lora=Lora(rank=4, alpha=8, dropout=0.1),
    )


@dataclass(frozen=True)
class Trial:
    """A folder with two branches: `straight` is finished, `resumed` was stopped half way."""

    run_dir: Path
    straight: Branch
    stopped: Branch

    @property
    def plan(self) -> Plan:
        """What all branches do."""
        return self.straight.plan

    def copy(self, run_dir: Path) -> Trial:
        """The same in another folder."""
        shutil.copytree(self.run_dir, run_dir, dirs_exist_ok=True)
        moved = [
            Branch(run_dir / each.folder.relative_to(self.run_dir), each.plan, each.arm, each.world, list(each.events))
            for each in (self.straight, self.stopped)
        ]
        return Trial(run_dir, *moved)

    def begin(self, name: BranchName, world: Environment | None = None) -> Branch:
        """A branch without a step."""
        folder = branch_dir(self.run_dir, ARM, name)
        shutil.rmtree(folder, ignore_errors=True)
        return Branch(folder, self.plan, ARM, world or LenientWorld())

    def resume(self) -> Branch:
        """The stopped branch, resumed by a fresh trainer and done."""
        return self.stopped.train(STEPS, self.stopped.checkpoint(STOP_AT))

    def judge(self, branch: Branch, **changes: str) -> EqualityVerdict:
        """The verdict on the straight branch and another one, whose record may be changed before."""
        return decide_equality(self.run_dir, finish(self.straight), (finish(branch).model_copy(update=changes),))

    def first_divergence(self, branch: Branch) -> Divergence:
        """Where another branch first parts from the straight one."""
        (divergence,) = self.judge(branch).divergences
        return divergence

    def judge_without(self, branch: Branch, *walks: str) -> str:
        """What the verdict says where parts of the comparison are left out.

        Args:
            branch: The branch to judge.
            walks: Functions of `decisions/equality.py` that shall compare nothing, or `reference`.
        """
        unseen = {"reference": finish(self.straight).reference} if "reference" in walks else {}
        with pytest.MonkeyPatch.context() as patch:
            for walk in set(walks) - {"reference"}:
                patch.setattr(equality, walk, lambda *_: iter(()))
            verdict = self.judge(branch, **unseen)
        return "it passes" if verdict.passed else f"next found at {verdict.divergences[0].place}"


def draft_trial(run_dir: Path, plan: Plan) -> Trial:
    """Train both branches, the second one up to its stop."""
    names: tuple[BranchName, BranchName] = ("straight", "resumed")
    straight, stopped = (Branch(branch_dir(run_dir, ARM, name), plan, ARM) for name in names)
    return Trial(run_dir, straight.train(STEPS), stopped.train(STOP_AT))


def finish(branch: Branch) -> BranchFinished:
    """The journal's record of a branch; its last state is written where the verdict looks for it."""
    done = branch.of(TrainingDone)[-1]
    (branch.folder / STATE_FILE).write_bytes(encode(dict(done.state)))
    names: dict[str, BranchName] = {"straight": "straight", "repeated": "repeated", "resumed": "resumed"}
    return BranchFinished(
        arm=branch.arm,
        branch=names[branch.folder.name],
        steps=tuple(each.facts for each in branch.steps),
        state=done.state,
        reference=done.reference,
    )
