"""The same report as Markdown, for places that show no HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiment.report import tables
from experiment.report.facts import RunFacts
from experiment.report.wording import establishes, limits, verdicts

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def build_markdown(runs: Sequence[RunFacts]) -> str:
    """Return the report as Markdown; text of records cannot become markup."""
    return "\n".join(line for run in runs for line in _run(run))


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", _CONTROL.sub(" ", text))


def _run(run: RunFacts) -> list[str]:
    lines = [f"# {_plain(run.plan.name)}", "", _plain(run.plan.recipe.preregistration.question), ""]
    for verdict in verdicts(run):
        lines += [f"- **{_plain(verdict.arm)}: {_plain(verdict.headline)}.** {_plain(verdict.sentence)}"]
    shown = (
        ("Final assessment: agent episodes", tables.comparison_table(run, "agent")),
        ("Final assessment: by family", tables.family_table(run)),
        ("Final assessment: retention", tables.comparison_table(run, "retention")),
        ("Selection", tables.selection_table(run)),
        ("How rollouts ended", tables.ends_table(run)),
        ("Tokens and errors", tables.cost_table(run)),
        ("Qualification", tables.qualification_table(run)),
        ("Divergences", tables.divergence_table(run)),
        ("Weights", tables.weights_table(run)),
    )
    for title, table in shown:
        if table.rows:
            lines += ["", f"## {title}", "", *_table(table), "", table.caption]
    if run.warnings:
        lines += ["", "## Warnings", ""]
        lines += [f"- {_plain(each.kind)}: {_plain(each.message)}" for each in run.warnings]
    lines += ["", "## What this result does and does not establish", ""]
    lines += [f"- It establishes: {text}" for text in establishes(run)]
    lines += [f"- {short}: {text}" for short, text in limits(run).items()]
    lines += ["", "## Check it yourself", "", f"    {run.head_line}", ""]
    return lines


def _table(table: tables.Table) -> list[str]:
    rows = [[_plain(cell.text) for cell in row] for row in table.rows]
    rule = ["---" if isinstance(cell.value, str) else "---:" for cell in table.rows[0]]
    return [f"| {' | '.join(cells)} |" for cells in (list(table.columns), rule, *rows)]
