"""P7, R1, R4: each evaluation against the plan's sets and seeds, and against its own rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.audit.case import Case
from experiment.audit.evidence import EvidenceError, Played, name_of, read_played
from experiment.audit.findings import Level
from experiment.journal.chain import Entry
from experiment.records.entry import EvaluationFinished
from experiment.records.episode import Episode
from experiment.records.plan import Plan
from experiment.records.verdict import EvaluationKey
from experiment.sealing.seeds import derive_seed


def check_evaluations(case: Case, level: Level) -> None:
    """Check every DEV and final result that the journal reports."""
    read = 0
    for entry in case.view.entries:
        if not isinstance(entry.body, EvaluationFinished):
            continue
        key = entry.body.key
        place = f"{key.stage} {key.suite} of {key.arm}@{key.step}, seed {key.seed}"
        _check_seed(case, key, place)
        _check_items(case, entry.body, place)
        played = _read(case, entry, entry.body, place)
        if played is not None:
            read += len(played)
            _check_seeds(case, key, place, played)
            if level == "recompute":
                _check_outcomes(case, entry.body, place, played)
    case.notes.fact("evaluation rollouts read", read)


def planned_episodes(plan: Plan, key: EvaluationKey) -> tuple[Episode, ...]:
    """The frozen episodes of a key."""
    if key.suite == "agent":
        return plan.dev if key.stage == "dev" else plan.final
    return plan.retention_dev if key.stage == "dev" else plan.retention_final


def _check_seed(case: Case, key: EvaluationKey, place: str) -> None:
    """P7: final has the planned generation seeds, DEV the first of them."""
    assessment = case.plan.recipe.assessment
    seeds = assessment.seeds if key.suite == "agent" else assessment.retention_seeds
    planned = seeds[:1] if key.stage == "dev" else seeds
    case.notes.require(key.seed in planned, "P-EVALUATION", place, f"planned seeds are {list(planned)}")


def _check_items(case: Case, body: EvaluationFinished, place: str) -> None:
    """P7: exactly the planned items, of the planned families, each judged once."""
    planned = sorted((episode.id, episode.family) for episode in planned_episodes(case.plan, body.key))
    found = sorted((outcome.item, outcome.family) for outcome in body.outcomes)
    differing = sorted(set(planned) ^ set(found)) or [item for item in found if found.count(item) > 1]
    named = f", for example {differing[0][0]}" if differing else ""
    case.notes.require(found == planned, "P-EVALUATION", place, f"judged other items than planned{named}")


def _read(case: Case, entry: Entry, body: EvaluationFinished, place: str) -> list[Played] | None:
    path = case.evidence(entry, body.evidence)
    if path is None:
        return None
    try:
        return read_played(path)
    except (EvidenceError, OSError) as error:
        case.notes.find("R-EVIDENCE", f"{place}, evidence", str(error))
        return None


def _check_seeds(case: Case, key: EvaluationKey, place: str, played: Sequence[Played]) -> None:
    """P7: each turn was sampled with the seed that root seed, stage, suite, generation seed and item determine."""
    root = case.plan.recipe.seed
    for each in played:
        seeds = tuple(
            f"{derive_seed(root, key.stage, key.suite, key.seed, each.episode, turn):016x}"
            for turn in range(len(each.seeds))
        )
        case.notes.require(
            each.seeds == seeds, "P-SEED", f"{place}, {name_of(each)}", "was not sampled with the plan's seeds"
        )


def _check_outcomes(case: Case, body: EvaluationFinished, place: str, played: Sequence[Played]) -> None:
    """R1, R4: rollouts agree with themselves, and each outcome is the one its rollout has."""
    for each in played:
        for problem in each.problems:
            case.notes.find("R-EVIDENCE", f"{place}, {name_of(each)}", problem)
    derived = tuple(each.outcome for each in played if each.outcome is not None)
    if derived == body.outcomes:
        return
    recorded = {outcome.item: outcome for outcome in body.outcomes}
    changed = next((each.item for each in derived if recorded.get(each.item) != each), "their order")
    case.notes.find("R-OUTCOME", place, f"the outcomes do not follow from the rollouts, first {changed}")
