"""No verdict is no zero: in the trainer's advantages, in the audit's replay, in evaluations and in the probe."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiment.audit.case import Case
from experiment.audit.findings import Notes
from experiment.audit.steps import StepChecks
from experiment.decisions.assessment import compare
from experiment.environments.base import ScriptedTurn
from experiment.environments.math_qa.environment import MathQA
from experiment.errors import FaultError
from experiment.journal.chain import Artifact, Entry
from experiment.journal.reader import JournalView
from experiment.policies.base import SampledTurn, TurnRequest
from experiment.records.base import Record
from experiment.records.entry import TrainStep
from experiment.records.episode import Episode
from experiment.records.job import EvaluatedPolicy, EvaluateJob, EvaluationDone, StarterDone, StarterJob
from experiment.records.rollout import Rollout, TrainedRollout
from experiment.records.verdict import EvaluationKey
from experiment.rollout.chat import ChatFormat
from experiment.sealing.arrays import decode_array
from experiment.sealing.canonical import decode_record
from experiment.sealing.seeds import derive_seed
from experiment.training import evaluate as evaluation
from experiment.training import starter
from experiment.training import train as training
from experiment.training.evaluate import evaluate
from experiment.training.models import load_baseline, load_tokenizer
from tests.doubles.lenient_world import LenientWorld
from tests.doubles.tiny_training import WORLD, Branch, Scripts, scripted_sampler, tiny_plan
from tests.unit.decisions.outcomes import evaluations

SAMPLING = {"max_turns": 3, "max_turn_tokens": 80, "max_completion_tokens": 300}


def call(key: str) -> str:
    return f'<tool_call>{{"name": "nachschlagen", "arguments": {{"schluessel": "{key}"}}}}</tool_call>'


def scripted(branch: Branch, scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> Branch:
    """Let a branch's rollouts come from scripts; everything else stays the training job's own."""
    chat = ChatFormat(load_tokenizer(branch.plan.recipe), branch.world.tools)
    sampler = scripted_sampler(branch.plan, chat, scripts)
    monkeypatch.setattr(training, "build_sampler", lambda *_, **__: sampler)
    return branch


def audited(branch: Branch) -> list[str]:
    """What the auditor's replay says about the branch's only step."""
    (step,) = branch.steps
    body = TrainStep(
        arm=branch.arm,
        facts=step.facts,
        families=step.families,
        ends=step.ends,
        divergences=step.divergences,
        seconds=step.seconds,
        rollout_seconds=step.rollout_seconds,
    )
    path = Path(step.evidence_path).relative_to(branch.folder).as_posix()
    artifact = Artifact(path, step.facts.evidence, step.evidence_bytes, "evidence")
    entry = Entry(0, "train.step", body, (artifact,), "0" * 64, 0, "2026-01-01T00:00:00.000000Z", 0, "boot")
    view = JournalView("run", "0" * 64, (entry,), "0" * 64, False, 0, (), None)
    case = Case(run_dir=branch.folder, view=view, plan=branch.plan, notes=Notes())
    StepChecks(case, "recompute").check_all()
    return [f"{finding.id} {finding.place}: {finding.message}" for finding in case.notes.report().findings]


def test_group_of_one_none_zero_one_has_the_advantages_of_a_group_of_three(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING, format_weight=0.0)
    branch = Branch(tmp_path, plan, world=LenientWorld(frozenset({"kaputt"})))
    scripts = [["Antwort: 14"], [call("kaputt")], ["Antwort: 3"], ["Antwort: 16"]]
    scripted(branch, lambda _: scripts, monkeypatch).train(1)
    (path,) = (tmp_path / "evidence").iterdir()
    rows = [decode_record(TrainedRollout, line) for line in path.read_bytes().splitlines()]
    spread = statistics.stdev([1.0, 0.0, 1.0]) + 1e-4
    expected = {1.0: (1 - 2 / 3) / spread, 0.0: -2 / 3 / spread, None: 0.0}
    for group in (rows[:4], rows[4:]):
        assert sorted(str(each.reward) for each in group) == ["0.0", "1.0", "1.0", "None"]
        for each in group:
            (advantage,) = decode_array(each.advantage, "float32").tolist()
            assert advantage == pytest.approx(expected[each.reward], abs=1e-5)
            assert (each.reward is None) == (each.rollout.score is None) == (each.rollout.end == "fault")
    assert audited(branch) == []


def test_shares_of_groups_that_failed_or_passed_altogether_are_reported_by_family(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan(baseline, sampling=SAMPLING)
    branch = Branch(tmp_path, plan, world=LenientWorld())
    failed, passed = plan.schedule[0].episodes

    def scripts(episode: Episode) -> list[list[str]]:
        return [["Antwort: 3"]] if episode.id == failed else [["Antwort: 14"]]

    scripted(branch, scripts, monkeypatch).train(1)
    families = {episode.id: episode.family for episode in plan.train}
    (step,) = branch.steps
    assert {each.family: (each.groups, each.all_fail, each.all_pass) for each in step.families} == {
        families[failed]: (1, 1, 0),
        families[passed]: (1, 0, 1),
    }
    assert dict(step.facts.metrics)["strict"] == 0.5
    assert audited(branch) == []


@dataclass(frozen=True)
class Failing:
    """Answers each prompt, but asks for a broken key in the turns with the given seeds."""

    chat: ChatFormat
    broken: frozenset[int]

    def sample(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        texts = [call("kaputt") if each.seed in self.broken else "Antwort: 14" for each in requests]
        turns = [self.chat.turn_ids(ScriptedTurn(text=text, calls=())) for text in texts]
        return [SampledTurn(ids, (0.0,) * len(ids), "stop") for ids in turns]


def test_service_that_dies_on_ten_of_two_hundred_and_fifty_six_items_leaves_no_result(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = WORLD.generate(prefix="final", count=256, seed=9, taken=frozenset())
    plan = tiny_plan(baseline, sampling=SAMPLING).model_copy(update={"final": final})
    chat = ChatFormat(load_tokenizer(plan.recipe), WORLD.tools)
    key = EvaluationKey(arm="baseline", step=0, suite="agent", stage="final", seed=1)
    job = EvaluateJob(
        plan_path="plan.json",
        policies=(EvaluatedPolicy(checkpoint=None, tree=None, keys=(key,)),),
        evidence_dir=str(tmp_path),
        recovery_dir=str(tmp_path / "recovery"),
    )

    root, worlds = plan.recipe.seed, {"agent": LenientWorld(frozenset({"kaputt"}))}
    events: list[Record] = []

    def play(*episodes: Episode) -> None:
        seeds = frozenset(derive_seed(root, "final", "agent", 1, episode.id, 0) for episode in episodes)
        monkeypatch.setattr(evaluation, "HFPolicy", lambda *_, **__: Failing(chat, seeds))
        evaluate(job, plan, worlds, events.append, lambda: False)

    with pytest.raises(FaultError, match=r": 10 episodes have no verdict, the first is final-0007"):
        play(*final[7:250:26])
    # Neither 246 of 246 nor 246 of 256: there is no result, and the evidence says of which items there is none.
    assert not any(isinstance(event, EvaluationDone) for event in events)
    path = tmp_path / "baseline@0/agent-1.jsonl"
    records = [decode_record(Rollout, line) for line in path.read_bytes().splitlines()]
    assert [record.episode for record in records] == [episode.id for episode in final]
    silent = [record.episode for record in records if record.score is None]
    assert silent == [f"final-{number:04d}" for number in range(7, 250, 26)]
    path.unlink()  # a resume moves it to `recovery/`
    play()
    (result,) = [event for event in events if isinstance(event, EvaluationDone)]
    assert [outcome.item for outcome in result.outcomes] == [episode.id for episode in final]
    assert all(outcome.success for outcome in result.outcomes)


def test_probe_of_the_starting_policy_counts_no_broken_world_as_a_failure(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_plan(baseline, sampling=SAMPLING).recipe
    job = StarterJob(recipe=recipe, output_dir=str(tmp_path))
    tokenizer, model = load_tokenizer(recipe), load_baseline(recipe)
    world, maths = LenientWorld(frozenset({"kaputt"})), MathQA()
    probes = (
        world.generate(prefix="probe", count=6, seed=1, taken=frozenset()),
        maths.generate(prefix="maths", count=2, seed=1, taken=frozenset()),
    )
    chat = ChatFormat(tokenizer, world.tools)

    def measure(*broken: Episode) -> StarterDone:
        seeds = frozenset(derive_seed(recipe.seed, "probe", "agent", episode.id, 0) for episode in broken)
        monkeypatch.setattr(starter, "HFPolicy", lambda *_, **__: Failing(chat, seeds))
        return starter._measure(job, probes, model, tokenizer, (world, maths))

    with pytest.raises(FaultError, match="probe-0004 has no verdict"):
        measure(probes[0][4])
    assert [(each.episodes, each.successes) for each in measure().families] == [(2, 2)] * 3


ALONE = """
from experiment.decisions.assessment import compare
from tests.unit.decisions.outcomes import evaluations
before = evaluations({1: "1100110010", 2: "1010110010"})
after = evaluations({1: "1110110111", 2: "1011010110"}, arm="grpo", step=4)
print(compare(before, after, root_seed=5, resamples=2000, confidence=0.95, promoted=True).model_dump_json())
"""


def test_interval_after_training_in_the_same_process_is_that_of_a_process_of_its_own(
    baseline: Path, tmp_path: Path, repository: Path
) -> None:
    Branch(tmp_path, tiny_plan(baseline)).train(1)
    before = evaluations({1: "1100110010", 2: "1010110010"})
    after = evaluations({1: "1110110111", 2: "1011010110"}, arm="grpo", step=4)
    here = compare(before, after, root_seed=5, resamples=2000, confidence=0.95, promoted=True)
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=repository, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(here.model_dump_json())
    assert not here.interval.degenerate
