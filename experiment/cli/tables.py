"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from experiment.decisions.room import judge_room
from experiment.records.plan import PowerRow
from experiment.records.provenance import Provenance
from experiment.records.verdict import Comparison


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per comparison: both rates, the paired difference and its interval."""
    table = Table(title="Final assessment, paired by episode", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("comparison", "before", "after", "diff", "interval", "won/lost"):
        table.add_column(name, justify="left" if name == "comparison" else "right")
    for each in comparisons:
        table.add_row(
            f"{each.name}{_note(each)}",
            f"{each.before:.3f}",
            f"{each.after:.3f}",
            f"{each.difference:+.3f}",
            f"{each.interval.low:+.3f} to {each.interval.high:+.3f}",
            f"{each.wins}/{each.losses}",
        )
    return table


def verdict_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """What the comparisons with the baseline say, one sentence per arm."""
    sentences = []
    for each in comparisons:
        if each.before_arm != "baseline" or each.suite != "agent":
            continue
        direction = "no clear difference"
        if each.interval.low > 0:
            direction = "better than the baseline"
        elif each.interval.high < 0:
            direction = "worse than the baseline"
        retained = next(
            (
                other.retained
                for other in comparisons
                if other.suite == "retention" and (other.after_arm, other.before_arm) == (each.after_arm, "baseline")
            ),
            None,
        )
        keeps = {True: "no observed loss in maths", False: "an observed loss in maths", None: "maths not assessed"}[
            retained
        ]
        status = "" if each.promoted else "; diagnostic only, the baseline is retained"
        sentences.append(
            f"{each.after_arm}@{each.after_step}: {direction}, {each.before:.3f} -> {each.after:.3f} "
            f"({each.difference:+.3f}, interval {each.interval.low:+.3f} to {each.interval.high:+.3f}); {keeps}{status}"
        )
    return sentences


def power_lines(rows: Sequence[PowerRow]) -> Table:
    """Smallest detectable differences."""
    table = Table(title="Smallest paired difference detectable at 80 %", title_justify="left")
    table.add_column("episodes", justify="right")
    table.add_column("share that differ", justify="right")
    table.add_column("detectable", justify="right")
    for row in rows:
        table.add_row(str(row.items), f"{row.discordant:.0%}", f"{row.detectable:.3f}")
    return table


def baseline_table(provenance: Provenance) -> Table:
    """pass@1 of a starting policy by family."""
    table = Table(title=f"Starting policy: {judge_room(provenance.families)}", title_justify="left")
    for name in ("family", "episodes", "pass@1"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for each in (*provenance.families, provenance.retention):
        table.add_row(each.family, str(each.episodes), f"{each.successes / each.episodes:.3f}")
    return table


def _note(comparison: Comparison) -> str:
    if comparison.suite == "retention":
        return "\n  no observed loss" if comparison.retained else "\n  observed loss"
    return "" if comparison.promoted else "\n  diagnostic only"
