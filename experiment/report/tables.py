"""The report's tables: one content for HTML, Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiment.records.entry import TrainStep
from experiment.records.verdict import Comparison, EvaluationKey, SideTotals
from experiment.report.facts import RunFacts
from experiment.report.wording import percent, points, policy


@dataclass(frozen=True, slots=True)
class Cell:
    """One value: as people read it, and as a program does."""

    text: str
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its caption."""

    name: str
    """File name of the CSV, without its ending."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def text(value: str) -> Cell:
    """A cell of words."""
    return Cell(value, value)


def number(value: int) -> Cell:
    """A cell with a whole number, thousands apart."""
    return Cell(f"{value:,}".replace(",", "\u202f"), value)


def share(value: float) -> Cell:
    """A cell with a share in percent."""
    return Cell(percent(value), value)


def write_csv(table: Table, folder: Path) -> Path:
    """Write a table's values with full precision."""
    path = folder / f"{table.name}.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows([_plain(cell.value) for cell in row] for row in table.rows)
    return path


def _plain(value: object) -> object:
    # Text that a spreadsheet would take for a formula is kept as text.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value


def comparison_table(run: RunFacts, suite: str) -> Table:
    """The paired comparisons of a suite, with intervals."""
    is_retention = suite == "retention"
    columns = ["after", "before", "difference, points", "low", "high", "before, solved", "after, solved"]
    columns += ["retained" if is_retention else "standing", "won", "lost", "tied", "sign test p", "items", "seeds"]
    return Table(
        name=f"final-{suite}",
        caption="Paired by item; generation seeds are averaged within an item, which is the unit of the bootstrap.",
        columns=tuple(columns),
        rows=tuple(_comparison_row(each) for each in run.comparisons if each.suite == suite),
    )


def _comparison_row(found: Comparison) -> tuple[Cell, ...]:
    if found.retained is None:
        standing = text("promoted" if found.promoted else "diagnostic")
    else:
        standing = Cell("yes" if found.retained else "no", found.retained)
    return (
        text(policy(found.after_arm, found.after_step)),
        text(policy(found.before_arm, found.before_step)),
        Cell(points(found.difference), found.difference),
        Cell(points(found.interval.low), found.interval.low),
        Cell(points(found.interval.high), found.interval.high),
        share(found.before),
        share(found.after),
        standing,
        number(found.wins),
        number(found.losses),
        number(found.ties),
        Cell(f"{found.sign_test_p:.2g}", found.sign_test_p),
        number(found.items),
        number(len(found.seeds)),
    )


def family_table(run: RunFacts) -> Table:
    """The comparisons with the baseline by family."""
    rows = [
        (
            text(policy(found.after_arm, found.after_step)),
            text(family.family),
            Cell(points(family.difference), family.difference),
            Cell(points(family.interval.low), family.interval.low),
            Cell(points(family.interval.high), family.interval.high),
            share(family.before),
            share(family.after),
            number(family.items),
        )
        for found in run.comparisons
        if found.suite == "agent" and found.before_step == 0
        for family in found.families
    ]
    return Table(
        name="final-families",
        caption="Against the baseline, by family. Exploratory: the plan's primary outcome is the whole set.",
        columns=("after", "family", "difference, points", "low", "high", "before, solved", "after, solved", "items"),
        rows=tuple(rows),
    )


def seed_table(run: RunFacts) -> Table:
    """The difference at each generation seed."""
    rows = [
        (text(found.name), number(seed), Cell(points(difference), difference))
        for found in run.comparisons
        for seed, difference in found.by_seed
    ]
    return Table(
        name="final-seeds",
        caption="Difference at each generation seed.",
        columns=("comparison", "seed", "difference, points"),
        rows=tuple(rows),
    )


def selection_table(run: RunFacts) -> Table:
    """Every candidate's DEV result and what the frozen rule made of it."""
    rows: list[tuple[Cell, ...]] = []
    for verdict in run.selections:
        scores = (verdict.baseline, *verdict.candidates)
        for score in scores:
            is_selected = score.step == verdict.selected_step
            if score.step == 0:
                reason = "the bar to pass"
            elif is_selected:
                reason = "selected"
            else:
                reason = "; ".join(score.reasons) or "eligible, ranked lower"
            rows.append(
                (
                    text(verdict.arm),
                    text("baseline" if score.step == 0 else f"step {score.step}"),
                    Cell(f"{score.successes} of {score.items}", score.successes),
                    Cell(f"{score.retained} of {score.retention_items}", score.retained),
                    number(score.tool_errors),
                    text(reason),
                )
            )
    return Table(
        name="selection",
        caption="DEV only. Eligible: more strict successes than the baseline, and no fewer retention answers. "
        "Ranked by successes, then fewer tool errors, then the earlier step.",
        columns=("arm", "candidate", "solved", "retention", "tool errors", "outcome"),
        rows=tuple(rows),
    )


def qualification_table(run: RunFacts) -> Table:
    """Whether stopping and resuming changed anything."""
    rows: list[tuple[Cell, ...]] = []
    for result in run.qualifications:
        verdict = result.verdict
        where = "; ".join(f"{each.branch}: {each.place}" for each in verdict.divergences)
        rows.append(
            (
                text(result.arm),
                Cell("equal" if verdict.passed else "NOT equal", verdict.passed),
                number(verdict.compared),
                text(where or "none"),
            )
        )
    return Table(
        name="qualification",
        caption="Each arm ran straight through, once more, and with a stop and a resume in a new process; "
        "states, losses and rollouts were compared bit for bit.",
        columns=("arm", "branches", "values compared", "first divergences"),
        rows=tuple(rows),
    )


def divergence_table(run: RunFacts) -> Table:
    """Where branches first parted."""
    rows = [
        (text(result.arm), text(each.branch), text(each.place), text(each.expected), text(each.found))
        for result in run.qualifications
        for each in result.verdict.divergences
    ]
    return Table(
        name="divergences",
        caption="The first difference of each branch.",
        columns=("arm", "branch", "place", "expected", "found"),
        rows=tuple(rows),
    )


def ends_table(run: RunFacts) -> Table:
    """How training rollouts ended."""
    kinds = ("answer", "turn_limit", "length", "fault")
    rows = []
    for arm in run.arms:
        counts = {kind: sum(dict(step.ends).get(kind, 0) for step in arm.steps) for kind in kinds}
        total = sum(counts.values())
        if total:
            cells = [Cell(f"{percent(counts[kind] / total)}", counts[kind]) for kind in kinds]
            rows.append((text(arm.name), number(total), *cells))
    return Table(
        name="ends",
        caption="All training rollouts.",
        columns=("arm", "rollouts", "answered", "turn limit", "token limit", "world broke"),
        rows=tuple(rows),
    )


def cost_table(run: RunFacts) -> Table:
    """Tokens and errors of training and of the final assessment."""
    rows: list[tuple[Cell, ...]] = []
    for arm in run.arms:
        totals = arm.totals
        if totals.rollouts:
            cells = (totals.tokens_generated, totals.tokens_retained, totals.tool_errors, totals.invalid_calls)
            rows.append(
                (text("training"), text(arm.name), number(totals.rollouts), *map(number, cells), text("–"), text("–"))
            )
    for suite in ("agent", "retention"):
        rows += [_side_row(suite, name, side) for name, side in _sides(run, suite)]
    return Table(
        name="costs",
        caption="Tool errors were shown to the agent by the world; invalid calls never reached it.",
        columns=(
            "phase", "policy", "rollouts", "tokens sampled", "tokens kept", "tool errors", "invalid calls",
            "malformed answers", "cut by the token limit",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _sides(run: RunFacts, suite: str) -> Iterable[tuple[str, SideTotals]]:
    """Each assessed policy once."""
    seen: dict[str, SideTotals] = {}
    for found in run.comparisons:
        if found.suite == suite:
            seen.setdefault(policy(found.before_arm, found.before_step), found.before_totals)
            seen.setdefault(policy(found.after_arm, found.after_step), found.after_totals)
    return seen.items()


def _side_row(suite: str, name: str, side: SideTotals) -> tuple[Cell, ...]:
    judged = number(side.judged) if side.judged == side.planned else text(f"{side.judged} of {side.planned}")
    counts = (side.tokens_generated, side.tokens_retained, side.tool_errors, side.invalid_calls)
    return (
        text(f"final, {suite}"), text(name), judged, *map(number, counts), number(side.malformed), number(side.capped)
    )  # fmt: skip


def weights_table(run: RunFacts) -> Table:
    """What training changed in the weights that were evaluated, and how much of that rounding would lose."""
    rows = [
        (
            text(policy(found.arm, found.step)),
            text("merged" if found.facts.form == "merged" else "adapter apart"),
            number(found.facts.changed),
            number(found.facts.elements),
            share(found.facts.vanishing / found.facts.changed if found.facts.changed else 0.0),
            Cell(f"{found.facts.largest:.3g}", found.facts.largest),
        )
        for found in sorted(run.merges, key=lambda each: (each.arm, each.step))
    ]
    return Table(
        name="weights",
        caption=(
            "Weights as they were evaluated, against the baseline's: how many elements of the adapted weights changed, "
            "and which share of those changes bfloat16 could not hold."
        ),
        columns=("policy", "adapter", "changed", "of", "lost in bfloat16", "largest change"),
        rows=tuple(rows),
    )


def power_rows(run: RunFacts) -> Table:
    """The smallest differences that the final set could show."""
    rows = [
        (share(row.discordant), number(row.items), Cell(f"{100 * row.detectable:.1f}", row.detectable))
        for row in run.plan.power
    ]
    return Table(
        name="power",
        caption="Frozen in the plan: the smallest paired difference detectable with 80 % power.",
        columns=("items that differ", "items", "detectable, points"),
        rows=tuple(rows),
    )


def step_table(run: RunFacts) -> Table:
    """Every optimizer step with all of its metrics."""
    names = sorted({name for arm in run.arms for step in arm.steps for name, _ in step.facts.metrics})
    return Table(
        name="steps",
        caption="Every optimizer step.",
        columns=("arm", "step", "learning rate", "loss", "gradient norm", "seconds", "rollout seconds", *names),
        rows=tuple(_step_row(arm.name, step, names) for arm in run.arms for step in arm.steps),
    )


def _step_row(arm: str, step: TrainStep, names: Sequence[str]) -> tuple[Cell, ...]:
    facts, metrics = step.facts, dict(step.facts.metrics)
    values = [facts.learning_rate, facts.loss, facts.grad_norm, step.seconds, step.rollout_seconds]
    values += [metrics.get(name) for name in names]
    return (text(arm), number(facts.step), *(Cell("" if each is None else f"{each:.4g}", each) for each in values))


def family_step_table(run: RunFacts) -> Table:
    """Every step by family."""
    rows = [
        (
            text(arm.name),
            text(family),
            number(point.step),
            share(point.success),
            Cell("" if point.reward is None else f"{point.reward:.3f}", point.reward),
            share(point.all_fail),
            share(point.all_pass),
        )
        for arm in run.arms
        for family, points_ in arm.families.items()
        for point in points_
    ]
    return Table(
        name="steps-by-family",
        caption="Every optimizer step by family.",
        columns=("arm", "family", "step", "solved", "reward", "groups all failed", "groups all solved"),
        rows=tuple(rows),
    )


def evaluation_table(run: RunFacts) -> Table:
    """Every evaluation that was played."""

    def order(key: EvaluationKey) -> tuple[str, str, int, str, int]:
        return (key.stage, key.arm, key.step, key.suite, key.seed)

    rows = [
        (
            text(found.key.stage),
            text(found.key.suite),
            text(policy(found.key.arm, found.key.step)),
            number(found.key.seed),
            number(len(found.outcomes)),
            number(sum(outcome.success for outcome in found.outcomes)),
            Cell(f"{found.seconds:.0f} s", found.seconds),
        )
        for found in sorted(run.evaluations, key=lambda each: order(each.key))
    ]
    return Table(
        name="evaluations",
        caption="Every evaluation that was played.",
        columns=("stage", "suite", "policy", "seed", "items", "solved", "time"),
        rows=tuple(rows),
    )


def all_tables(run: RunFacts) -> Sequence[Table]:
    """Every table, those included that only the CSV folder holds."""
    tables = (
        comparison_table(run, "agent"), comparison_table(run, "retention"), family_table(run), seed_table(run),
        selection_table(run), evaluation_table(run), step_table(run), family_step_table(run), ends_table(run),
        cost_table(run), qualification_table(run), divergence_table(run), power_rows(run), weights_table(run),
    )  # fmt: skip
    return [table for table in tables if table.rows]
