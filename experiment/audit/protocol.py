"""P1 to P3, P6 to P13: the records come in the one order that the protocol allows, and none is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiment.audit.case import Case
from experiment.decisions.inspection import inspected_items
from experiment.journal.chain import Entry
from experiment.records.entry import (
    AssessmentMade,
    BranchFinished,
    CheckpointSealed,
    Closed,
    EnvironmentObserved,
    EvaluationFinished,
    PolicyMerged,
    QualificationResult,
    SamplesExported,
    SelectionMade,
    StepRedone,
    TrainFinished,
    TrainStarted,
    TrainStep,
    WorkerEnvironment,
)
from experiment.records.verdict import EvaluationKey, Suite

_BRANCHES = frozenset({"straight", "repeated", "resumed"})
BASELINE = ("baseline", 0)


class Protocol:
    """Walks through the records once and knows, before each, what may come."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._inputs_verified = False
        self._branches: set[tuple[str, str]] = set()
        self._qualified: dict[str, bool] = {}
        self._running: set[str] = set()
        self._steps: dict[str, dict[int, str]] = {arm: {} for arm in case.arms}
        self._checkpoints: dict[tuple[str, int], str] = {}
        self._stopped: set[str] = set()
        self._played: set[EvaluationKey] = set()
        self._assessed: dict[str, int] = {}
        self._compared = False
        self._environment: WorkerEnvironment | None = None
        self._merged: set[tuple[str, int]] = set()
        self._exported = False
        self._rules: Mapping[str, Callable[[Any, str], None]] = {
            "inputs.verified": self._on_inputs,
            "resume": self._on_resume,
            "env.observed": self._on_environment,
            "merge.result": self._on_merge,
            "samples.exported": self._on_samples,
            "qual.branch": self._on_branch,
            "qual.result": self._on_qualification,
            "train.start": self._on_start,
            "train.step": self._on_step,
            "train.redone": self._on_redone,
            "ckpt.sealed": self._on_checkpoint,
            "train.stop": self._on_stop,
            "dev.result": self._on_dev,
            "select.decision": self._on_selection,
            "final.result": self._on_final,
            "stats.result": self._on_comparison,
            "close": self._on_close,
        }

    def walk(self) -> None:
        """Check every record against what came before it."""
        for entry in self._case.view.entries:
            rule = self._rules.get(entry.type)
            if rule is not None:
                rule(entry.body, _place(entry))
        self._case.notes.fact("phases reached", ", ".join(self._phases()) or "none")

    def _phases(self) -> list[str]:
        reached = {
            "inputs verified": self._inputs_verified,
            "qualified": self._all_qualified(),
            "trained": self._stopped == set(self._case.arms),
            "selected": set(self._assessed) == set(self._case.arms),
            "assessed": self._compared,
            "closed": self._case.view.is_closed,
        }
        return [name for name, is_reached in reached.items() if is_reached]

    def _require(self, holds: bool, id_: str, place: str, message: str) -> bool:  # noqa: FBT001
        return self._case.notes.require(holds, id_, place, message)

    def _know(self, arm: str, place: str) -> bool:
        """P1: a record is about an arm of the plan."""
        return self._require(arm in self._case.arms, "P-ARM", place, f"the plan has no arm '{arm}'")

    def _all_qualified(self) -> bool:
        return all(self._qualified.get(arm, False) for arm in self._case.arms)

    def _on_inputs(self, body: object, place: str) -> None:
        self._inputs_verified = True

    def _on_resume(self, body: object, place: str) -> None:
        # P3: whoever goes on after a restart has to say from where.
        self._running.clear()

    def _on_environment(self, body: EnvironmentObserved, place: str) -> None:
        """P11: one environment, with the plan's threads and libraries, before anything was computed."""
        found, plan = body.environment, self._case.plan
        self._require(self._environment is None, "P-TWICE", place, "the environment was recorded twice")
        self._require(not self._branches, "P-ORDER", place, "the environment was recorded after the first branch")
        threads = plan.recipe.compute.threads
        self._require(found.threads == threads, "P-ENVIRONMENT", place, f"{found.threads} threads, planned {threads}")
        planned = dict(plan.environment.distributions).get("torch", "").partition("+")[0]
        self._require(
            found.torch.partition("+")[0] == planned, "P-ENVIRONMENT", place, f"torch {found.torch}, planned {planned}"
        )
        self._require(found.deterministic, "P-ENVIRONMENT", place, "kernels were not restricted to deterministic ones")
        self._environment = found

    def _on_branch(self, body: BranchFinished, place: str) -> None:
        """P2: before its verdict each arm has each branch once, with exactly the planned steps."""
        if not self._know(body.arm, place):
            return
        self._require(self._inputs_verified, "P-ORDER", place, "qualification began before the inputs were verified")
        self._require(self._environment is not None, "P-ENVIRONMENT", place, "no worker said what it computes with")
        self._require(
            (body.arm, body.branch) not in self._branches, "P-TWICE", place, f"{body.arm}/{body.branch} ran twice"
        )
        self._require(body.arm not in self._qualified, "P-ORDER", place, "a branch follows its arm's verdict")
        planned = list(range(1, self._case.plan.recipe.qualification.steps + 1))
        found = [facts.step for facts in body.steps]
        self._require(found == planned, "P-QUALIFY", place, f"{body.branch} made steps {found}, planned are {planned}")
        self._branches.add((body.arm, body.branch))

    def _on_qualification(self, body: QualificationResult, place: str) -> None:
        if not self._know(body.arm, place):
            return
        self._require(body.arm not in self._qualified, "P-TWICE", place, f"arm '{body.arm}' was judged twice")
        ran = {branch for arm, branch in self._branches if arm == body.arm}
        self._require(ran == _BRANCHES, "P-QUALIFY", place, f"judged after branches {sorted(ran)} only")
        self._qualified[body.arm] = body.verdict.passed

    def _on_start(self, body: TrainStarted, place: str) -> None:
        """P1, P6: training begins when every arm has qualified, and goes on from a sealed state."""
        if not self._know(body.arm, place):
            return
        self._require(self._all_qualified(), "P-ORDER", place, "training began before every arm had qualified")
        self._require(body.arm not in self._stopped, "P-ORDER", place, f"arm '{body.arm}' had finished")
        if body.from_step == 0:
            self._require(body.checkpoint is None, "P-CHECKPOINT", place, "step 0 has no checkpoint")
        else:
            sealed = self._checkpoints.get((body.arm, body.from_step))
            self._require(
                sealed is not None and sealed == body.checkpoint,
                "P-CHECKPOINT",
                place,
                f"goes on from a state of step {body.from_step} that was not sealed",
            )
        self._running.add(body.arm)

    def _on_step(self, body: TrainStep, place: str) -> None:
        """P3: steps 1 to N of each arm, each once and in order."""
        if not self._know(body.arm, place):
            return
        done = self._steps[body.arm]
        step = body.facts.step
        self._require(body.arm in self._running, "P-ORDER", place, f"arm '{body.arm}' was not started")
        self._require(body.arm not in self._stopped, "P-ORDER", place, f"arm '{body.arm}' had finished")
        self._require(step == len(done) + 1, "P-STEP", place, f"step {step} of '{body.arm}' follows step {len(done)}")
        done[step] = body.facts.evidence

    def _on_redone(self, body: StepRedone, place: str) -> None:
        """P3: a step is done again only where a restart lost the state after it, and it comes out the same."""
        if not self._know(body.arm, place):
            return
        first = self._steps[body.arm].get(body.step)
        self._require(body.arm in self._running, "P-ORDER", place, f"arm '{body.arm}' was not started")
        self._require(first == body.evidence, "P-REDONE", place, f"step {body.step} of '{body.arm}' came out different")

    def _on_checkpoint(self, body: CheckpointSealed, place: str) -> None:
        """P6: a sealed state belongs to the last step that was done, and is a candidate only where planned."""
        if not self._know(body.arm, place):
            return
        key = (body.arm, body.step)
        self._require(key not in self._checkpoints, "P-TWICE", place, f"{body.arm}@{body.step} was sealed twice")
        self._require(
            body.step in self._steps[body.arm], "P-CHECKPOINT", place, f"{body.arm}@{body.step} was not trained yet"
        )
        is_planned = body.step in self._case.plan.recipe.checkpoints.candidates
        self._require(
            body.is_candidate == is_planned, "P-CHECKPOINT", place, f"{body.arm}@{body.step}: `is_candidate` is wrong"
        )
        self._checkpoints[key] = body.tree

    def _on_stop(self, body: TrainFinished, place: str) -> None:
        """P3, P6: an arm finishes after N steps, with every planned state sealed."""
        if not self._know(body.arm, place):
            return
        planned = len(self._case.plan.schedule)
        found = len(self._steps[body.arm])
        self._require(body.arm not in self._stopped, "P-TWICE", place, f"arm '{body.arm}' finished twice")
        self._require(
            body.steps == planned == found, "P-STEP", place, f"'{body.arm}' made {found} of {planned} planned steps"
        )
        checkpoints = self._case.plan.recipe.checkpoints
        needed = {step for step in range(1, planned + 1) if step % checkpoints.recovery_every == 0}
        needed |= {*checkpoints.candidates, checkpoints.diagnostic}
        missing = sorted(step for step in needed if (body.arm, step) not in self._checkpoints)
        self._require(not missing, "P-CHECKPOINT", place, f"'{body.arm}' has no sealed state of steps {missing}")
        self._stopped.add(body.arm)

    def _on_merge(self, body: PolicyMerged, place: str) -> None:
        """P12: the weights of a sealed state are accounted for once."""
        if not self._know(body.arm, place):
            return
        key = (body.arm, body.step)
        self._require(key in self._checkpoints, "P-MERGE", place, f"{body.arm}@{body.step} was not sealed")
        self._require(key not in self._merged, "P-TWICE", place, f"{body.arm}@{body.step} was accounted for twice")
        self._merged.add(key)

    def _require_merged(self, key: EvaluationKey, place: str) -> None:
        """P12: no result of a trained policy before its weights are accounted for."""
        is_known = (key.arm, key.step) == BASELINE or (key.arm, key.step) in self._merged
        self._require(is_known, "P-MERGE", place, f"the weights of {key.arm}@{key.step} were not accounted for")

    def _on_samples(self, body: SamplesExported, place: str) -> None:
        """P13: the preselected episodes, once, when everything was measured."""
        self._require(not self._exported, "P-TWICE", place, "samples were exported twice")
        self._require(self._compared, "P-ORDER", place, "samples were exported before the comparison")
        items = inspected_items(self._case.plan)
        is_planned = (body.agent, body.retention) == (items["agent"], items["retention"])
        self._require(is_planned, "P-SAMPLES", place, "exported other episodes than planned")
        self._exported = True

    def _on_dev(self, body: EvaluationFinished, place: str) -> None:
        """P7: DEV is played by the baseline and by candidates of a finished arm, before the arm's selection."""
        key = body.key
        self._once(key, "dev", place)
        self._require_merged(key, place)
        if (key.arm, key.step) == BASELINE:
            self._require(not self._assessed, "P-ORDER", place, "the baseline played DEV after a selection")
            return
        if not self._know(key.arm, place):
            return
        self._require(key.arm in self._stopped, "P-ORDER", place, f"arm '{key.arm}' had not finished training")
        self._require(key.arm not in self._assessed, "P-ORDER", place, f"arm '{key.arm}' was already selected from")
        self._require(
            key.step in self._case.plan.recipe.checkpoints.candidates and (key.arm, key.step) in self._checkpoints,
            "P-EVALUATION",
            place,
            f"{key.arm}@{key.step} is no sealed candidate",
        )

    def _once(self, key: EvaluationKey, stage: str, place: str) -> None:
        self._require(key.stage == stage, "P-EVALUATION", place, f"a {stage} record holds a {key.stage} result")
        self._require(key not in self._played, "P-TWICE", place, f"{_name(key)} was played twice")
        self._played.add(key)

    def _on_selection(self, body: SelectionMade, place: str) -> None:
        """P8: an arm is selected from once, when baseline and all its candidates have played DEV."""
        arm = body.verdict.arm
        if not self._know(arm, place):
            return
        self._require(arm not in self._assessed, "P-TWICE", place, f"arm '{arm}' was selected from twice")
        policies = [BASELINE, *((arm, step) for step in self._case.plan.recipe.checkpoints.candidates)]
        missing = [
            f"{name}@{step} {suite}"
            for name, step in policies
            for suite in ("agent", "retention")
            if not any((k.arm, k.step, k.suite, k.stage) == (name, step, suite, "dev") for k in self._played)
        ]
        self._require(not missing, "P-SELECT", place, f"selected without DEV results of {', '.join(missing)}")
        self._assessed[arm] = body.verdict.assessed_step

    def _on_final(self, body: EvaluationFinished, place: str) -> None:
        """P7, P8: final is opened after all selections, for the baseline and the assessed states alone."""
        key = body.key
        self._once(key, "final", place)
        self._require_merged(key, place)
        self._require(
            set(self._assessed) == set(self._case.arms), "P-ORDER", place, "final was opened before all selections"
        )
        self._require(not self._compared, "P-ORDER", place, "final was played after the comparison")
        self._require(
            (key.arm, key.step) == BASELINE or self._assessed.get(key.arm) == key.step,
            "P-EVALUATION",
            place,
            f"{key.arm}@{key.step} was not chosen for assessment",
        )

    def _on_comparison(self, body: AssessmentMade, place: str) -> None:
        """P9: the comparison is made once, with every planned final result."""
        self._require(not self._compared, "P-TWICE", place, "the comparison was made twice")
        assessment = self._case.plan.recipe.assessment
        seeds: dict[Suite, tuple[int, ...]] = {"agent": assessment.seeds, "retention": assessment.retention_seeds}
        missing = [
            f"{arm}@{step} {suite} seed {seed}"
            for arm, step in (BASELINE, *self._assessed.items())
            for suite, planned in seeds.items()
            for seed in planned
            if not any(
                (k.arm, k.step, k.suite, k.seed, k.stage) == (arm, step, suite, seed, "final") for k in self._played
            )
        ]
        self._require(not missing, "P-COMPARE", place, f"compared without {', '.join(missing)}")
        self._compared = True

    def _on_close(self, body: Closed, place: str) -> None:
        """P10: what the close record counts is there, and its outcome is the one that was reached."""
        total = len(self._case.view.entries)
        self._require(body.records == total, "P-CLOSE", place, f"counts {body.records} records of {total}")
        failed = any(not passed for passed in self._qualified.values())
        is_reached = self._compared if body.outcome == "assessed" else failed
        self._require(is_reached, "P-CLOSE", place, f"the outcome '{body.outcome}' was not reached")
        needs_samples = body.outcome == "assessed" and self._case.plan.recipe.assessment.inspected > 0
        self._require(
            self._exported or not needs_samples, "P-SAMPLES", place, "no samples were exported for a reviewer"
        )


def _place(entry: Entry) -> str:
    return f"record {entry.seq} ({entry.type})"


def _name(key: EvaluationKey) -> str:
    return f"{key.stage} {key.suite} of {key.arm}@{key.step}, seed {key.seed}"
