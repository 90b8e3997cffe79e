"""The last two stages of a small run: DEV and final results, selections, comparisons, and what goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from experiment.decisions.assessment import compare
from experiment.decisions.inspection import build_samples, inspected_items
from experiment.decisions.selection import score_candidate, select
from experiment.records.entry import (
    AssessmentMade,
    EvaluationFinished,
    PolicyMerged,
    SamplesExported,
    SelectionMade,
)
from experiment.records.episode import Episode
from experiment.records.rollout import Rollout
from experiment.records.verdict import (
    CandidateScore,
    Comparison,
    EvaluationKey,
    MergeFacts,
    SelectionVerdict,
    Suite,
)
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import digest_bytes
from experiment.sealing.seeds import derive_seed
from tests.doubles.small_rollouts import attempt, outcome, write_lines

if TYPE_CHECKING:
    from tests.doubles.small_run import SmallRun

REFERENCE = digest_bytes(b"reference")


def merge_facts(adapter: str) -> MergeFacts:
    """What a worker finds when it puts a sound adapter on the baseline."""
    return MergeFacts(
        base=REFERENCE,
        adapter=adapter,
        weights=digest_bytes(f"merged {adapter}".encode()),
        form="merged",
        tensors=20,
        targeted=14,
        changed_tensors=14,
        elements=1000,
        changed=900,
        vanishing=500,
        largest=0.125,
        strays=0,
    )


def skill(run: SmallRun, step: int, lift: float) -> float:
    """Probability of success after some steps."""
    return 0.3 + lift * step / run.plan.recipe.training.steps


def _evaluate(run: SmallRun, key: EvaluationKey, items: Sequence[Episode], level: float) -> EvaluationFinished:
    root = run.plan.recipe.seed

    def play(episode: Episode) -> Rollout:
        def seed_of(turn: int) -> int:
            return derive_seed(root, key.stage, key.suite, key.seed, episode.id, turn)

        return attempt(episode, 0, level, key.arm, key.step, key.seed, seed_of=seed_of)

    rollouts = [play(each) for each in items]
    path = f"evidence/{key.stage}/{key.arm}@{key.step}/{key.suite}-{key.seed}.jsonl"
    write_lines(run.run_dir / path, rollouts)
    artifact = run.artifact(path, "evidence")
    body = EvaluationFinished(
        key=key, evidence=artifact.b3, outcomes=tuple(outcome(each) for each in rollouts), seconds=4.0
    )
    run.add(f"{key.stage}.result", body, [artifact])
    run.results.setdefault((key.arm, key.step, key.suite, key.stage), []).append(body)
    run.played[key] = rollouts
    return body


def _evaluate_dev(run: SmallRun, arm: str, step: int, lift: float) -> tuple[EvaluationFinished, EvaluationFinished]:
    assessment = run.plan.recipe.assessment

    def key(suite: Suite) -> EvaluationKey:
        seeds = assessment.seeds if suite == "agent" else assessment.retention_seeds
        return EvaluationKey(arm=arm, step=step, suite=suite, stage="dev", seed=seeds[0])

    level = skill(run, step, lift)
    return (
        _evaluate(run, key("agent"), run.plan.dev, level),
        _evaluate(run, key("retention"), run.plan.retention_dev, 0.6 + (0.3 if step else 0.0)),
    )


def _evaluate_final(run: SmallRun, arm: str, step: int, lift: float) -> None:
    assessment = run.plan.recipe.assessment
    for seed in assessment.seeds:
        key = EvaluationKey(arm=arm, step=step, suite="agent", stage="final", seed=seed)
        _evaluate(run, key, run.plan.final, skill(run, step, lift))
    for seed in assessment.retention_seeds:
        key = EvaluationKey(arm=arm, step=step, suite="retention", stage="final", seed=seed)
        _evaluate(run, key, run.plan.retention_final, 0.6 + (0.3 if step else 0.0))


def select_and_assess(run: SmallRun, lift: float) -> None:
    """Play DEV, select, play final, compare, and export the samples."""
    checkpoints = run.plan.recipe.checkpoints
    agent, retention = _evaluate_dev(run, "baseline", 0, lift)
    baseline = score_candidate(0, agent.outcomes, retention.outcomes, None)
    verdicts = []
    for arm in run.plan.recipe.arms:
        scores: list[CandidateScore] = []
        for step in checkpoints.candidates:
            run.add(
                "merge.result", PolicyMerged(arm=arm.name, step=step, facts=merge_facts(run.adapters[arm.name, step]))
            )
            agent, retention = _evaluate_dev(run, arm.name, step, lift)
            scores.append(score_candidate(step, agent.outcomes, retention.outcomes, baseline))
        verdicts.append(select(arm.name, baseline, scores, checkpoints.diagnostic))
        run.add("select.decision", SelectionMade(verdict=verdicts[-1]))
    _evaluate_final(run, "baseline", 0, lift)
    for verdict in verdicts:
        _evaluate_final(run, verdict.arm, verdict.assessed_step, lift)
    run.add("stats.result", AssessmentMade(comparisons=tuple(_comparisons(run, verdicts))))
    _export(run, verdicts)


def _export(run: SmallRun, verdicts: Sequence[SelectionVerdict]) -> None:
    assessment, items = run.plan.recipe.assessment, inspected_items(run.plan)
    seeds: dict[Suite, int] = {"agent": assessment.seeds[0], "retention": assessment.retention_seeds[0]}
    policies = [("baseline", 0), *((each.arm, each.assessed_step) for each in verdicts)]
    played = {
        (f"{arm}@{step}" if step else arm, suite): run.played[
            EvaluationKey(arm=arm, step=step, suite=suite, stage="final", seed=seed)
        ]
        for arm, step in policies
        for suite, seed in seeds.items()
    }
    path = "samples/samples.jsonl"
    (run.run_dir / "samples").mkdir()
    data = b"".join(encode_record(each) + b"\n" for each in build_samples(run.plan, played))
    (run.run_dir / path).write_bytes(data)
    body = SamplesExported(agent=items["agent"], retention=items["retention"], samples=digest_bytes(data))
    run.add("samples.exported", body, [run.artifact(path, "samples")])


def _comparisons(run: SmallRun, verdicts: Sequence[SelectionVerdict]) -> list[Comparison]:
    recipe = run.plan.recipe
    sides = [("baseline", 0, True)] + [(v.arm, v.assessed_step, v.selected_step is not None) for v in verdicts]
    return [
        compare(
            run.results[before_arm, before_step, suite, "final"],
            run.results[after_arm, after_step, suite, "final"],
            root_seed=recipe.seed,
            resamples=recipe.assessment.resamples,
            confidence=recipe.assessment.confidence,
            promoted=before_ok and after_ok,
        )
        for (before_arm, before_step, before_ok), (after_arm, after_step, after_ok) in combinations(sides, 2)
        for suite in (("agent", "retention") if before_step == 0 else ("agent",))
    ]
