"""The HTML page: verdict first, then what it rests on, then what it is worth. No scripts, nothing from elsewhere."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from experiment.report import tables
from experiment.report.facts import RunFacts
from experiment.report.plots import Figures, Plot
from experiment.report.style import STYLE
from experiment.report.wording import Verdict, establishes, limits, verdicts

_CODE = re.compile(r"`([^`]+)`")
_LONG = 28
_FOOTER = (
    "Made from the run's journal and evidence. Whoever made this page verified the journal's chain and nothing else; "
    "<code>audit</code> verifies the rest."
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def build_page(runs: Sequence[RunFacts]) -> str:
    """Return the whole page; every text of a record is escaped."""
    title = ", ".join(run.plan.name for run in runs)
    articles = "".join(_article(run, f"r{number}") for number, run in enumerate(runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{_escape(title)} · report</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{articles}\n<footer>{_FOOTER}</footer>\n</main>\n</body>\n</html>\n"
    )


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _prose(text: str) -> str:
    """Escape a sentence of ours; words in backticks become code."""
    return _CODE.sub(lambda match: f"<code>{match[1]}</code>", _escape(text))


def _article(run: RunFacts, prefix: str) -> str:
    figures = Figures(run, prefix)
    sections = (
        _header(run),
        _verdicts(run, verdicts(run)),
        _final(run, figures),
        _selection(run),
        _training(run, figures),
        _costs(run),
        _weights(run),
        _qualification(run),
        _warnings(run),
        _worth(run),
        _preregistration(run),
        _check(run),
    )
    return f"<article>\n{''.join(sections)}</article>\n"


def _header(run: RunFacts) -> str:
    entries = run.view.entries
    last = entries[-1]
    state = "closed" if run.view.is_closed else "not finished"
    meta = {
        "run": run.view.run,
        "plan": run.view.plan[:16],
        "state": state,
        "from": _minute(entries[0].t),
        "to": _minute(last.t),
        "records": str(len(entries)),
    }
    items = "".join(f"<span>{key} <b>{_escape(value)}</b></span>" for key, value in meta.items())
    question = _escape(run.plan.recipe.preregistration.question)
    return (
        f'<header><p class="eyebrow">Preregistered experiment</p><h1>{_escape(run.plan.name)}</h1>'
        f'<p class="question">{question}</p><p class="meta">{items}</p></header>\n'
    )


def _minute(moment: str) -> str:
    return f"{moment[:16].replace('T', ' ')} UTC"


def _verdicts(run: RunFacts, found: Iterable[Verdict]) -> str:
    return f'<div class="verdicts">{"".join(_card(run, each) for each in found)}</div>\n'


def _card(run: RunFacts, verdict: Verdict) -> str:
    figure = ""
    if verdict.figure:
        figure = (
            f'<p class="figure"><b>{_escape(verdict.figure)}</b> points<br><small>{_escape(verdict.range)}</small></p>'
        )
    return (
        f'<div class="verdict {verdict.tone}"><div><p class="head"><span class="arm">{_swatch(run, verdict.arm)}'
        f'{_escape(verdict.arm)}</span><span class="call">{_escape(verdict.headline)}</span></p>'
        f"<p>{_prose(verdict.sentence)}</p></div>{figure}</div>"
    )


def _swatch(run: RunFacts, arm: str) -> str:
    number = next((n for n, each in enumerate(run.plan.recipe.arms) if each.name == arm), 0)
    return f'<span class="swatch" style="--swatch: var(--series-{number % 6 + 1})"></span>'


def _legend(run: RunFacts) -> str:
    items = "".join(f"<li>{_swatch(run, arm.name)}{_escape(arm.name)}</li>" for arm in run.plan.recipe.arms)
    return f'<ul class="legend">{items}</ul>'


def _key(colours: dict[str, str]) -> str:
    items = "".join(
        f'<li><span class="swatch" style="--swatch: var(--{colour})"></span>{label}</li>'
        for label, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _section(title: str, *parts: str) -> str:
    body = "".join(parts)
    return f"<section><h2>{_escape(title)}</h2>\n{body}</section>\n" if body else ""


def _paragraph(text: str) -> str:
    return f"<p>{_prose(text)}</p>"


def _table(table: tables.Table) -> str:
    if not table.rows:
        return ""
    words = [all(isinstance(row[index].value, str | bool) for row in table.rows) for index in range(len(table.columns))]
    head = "".join(
        f"<th{_class(is_word)}>{_escape(name)}</th>" for name, is_word in zip(table.columns, words, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(is_word, long=len(cell.text) > _LONG)}>{_escape(cell.text)}</td>"
            for cell, is_word in zip(row, words, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="caption">{_escape(table.caption)}</p>\n'
    )


def _class(is_word: bool, *, long: bool = False) -> str:  # noqa: FBT001
    names = [name for name, is_set in (("word", is_word), ("long", long)) if is_set]
    return f' class="{" ".join(names)}"' if names else ""


def _figures(plots: Sequence[Plot], *, titles: Sequence[str] = (), wide: bool = False) -> str:
    if not plots:
        return ""
    shown = []
    for number, plot in enumerate(plots):
        title = f"<h3>{_escape(titles[number])}</h3>" if titles else ""
        caption = f"<figcaption>{_escape(plot.caption)}</figcaption>" if plot.caption else ""
        shown.append(f"<figure>{title}{plot.svg}{caption}</figure>")
    return f'<div class="figures{" wide" if wide else ""}">{"".join(shown)}</div>\n'


def _final(run: RunFacts, figures: Figures) -> str:
    if not run.comparisons:
        return ""
    forests = {
        "Agent episodes": figures.forest("agent"),
        "Retention": figures.forest("retention"),
    }
    drawn = {title: plot for title, plot in forests.items() if plot is not None}
    return _section(
        "Final assessment",
        _paragraph(
            "Played once, after every selection was made: baseline and checkpoints on the same episodes with the same "
            "generation seeds."
        ),
        _figures(list(drawn.values()), titles=list(drawn), wide=True),
        "<h3>Agent episodes</h3>",
        _table(tables.comparison_table(run, "agent")),
        "<h3>By family</h3>",
        _table(tables.family_table(run)),
        "<h3>Retention</h3>",
        _paragraph(
            "The gate asks for no observed loss, overall and at every seed. That is not proof of no loss: the interval "
            "says how large a loss could hide behind this many questions."
        ),
        _table(tables.comparison_table(run, "retention")),
    )


def _selection(run: RunFacts) -> str:
    return _section("Selection", _table(tables.selection_table(run))) if run.selections else ""


def _training(run: RunFacts, figures: Figures) -> str:
    if not any(arm.steps for arm in run.arms):
        return ""
    smoothed = "Points are steps, lines the trailing mean of five steps."
    rewards = figures.family_curves("reward")
    return _section(
        "Training",
        _paragraph(f"What the arms did while they learned, on their own training episodes. {smoothed}"),
        _legend(run),
        "<h3>Strict success by family</h3>",
        _figures(figures.family_curves("success")),
        "<h3>Reward by family</h3>",
        _figures(rewards),
        "<h3>Groups without contrast</h3>",
        _paragraph(
            "Where all rollouts of a group failed, or all succeeded, strict success tells none of them apart; only the "
            "partial credit for form can."
        ),
        _key({"all failed": "fail", "mixed": "mixed", "all solved": "pass"}),
        _figures(figures.group_shares()),
        "<h3>Monitors</h3>",
        _legend(run),
        _figures(figures.monitors()),
        "<h3>Time</h3>",
        _key({"rollouts": "muted", "update": "mixed"}),
        _figures(figures.step_times()),
        "<h3>How rollouts ended</h3>",
        _table(tables.ends_table(run)),
    )


def _costs(run: RunFacts) -> str:
    return _section("Tokens and errors", _table(tables.cost_table(run)))


def _weights(run: RunFacts) -> str:
    return _section("Weights", _table(tables.weights_table(run))) if run.merges else ""


def _qualification(run: RunFacts) -> str:
    if not run.qualifications:
        return _section("Qualification", _paragraph("No arm has been qualified yet."))
    return _section(
        "Qualification",
        _table(tables.qualification_table(run)),
        _table(tables.divergence_table(run)),
    )


def _warnings(run: RunFacts) -> str:
    items = "".join(f"<li><b>{_escape(each.kind)}</b>: {_escape(each.message)}</li>" for each in run.warnings)
    return _section("Warnings", f"<ul>{items}</ul>" if items else "")


def _worth(run: RunFacts) -> str:
    does = "".join(f"<li>{_prose(each)}</li>" for each in establishes(run))
    does_not = "".join(
        f"<div><dt>{_escape(short)}</dt><dd>{_prose(long)}</dd></div>" for short, long in limits(run).items()
    )
    return _section(
        "What this result does and does not establish",
        f"<h3>It establishes</h3><ul>{does}</ul>",
        f'<h3>It does not establish more, because of</h3><dl class="limits">{does_not}</dl>',
        _table(tables.power_rows(run)),
    )


def _preregistration(run: RunFacts) -> str:
    answers = run.plan.recipe.preregistration.model_dump()
    items = "".join(
        f"<dt>{_escape(key.replace('_', ' ').capitalize())}</dt><dd>{_escape(value)}</dd>"
        for key, value in answers.items()
    )
    return _section(
        "Preregistration",
        _paragraph("Written before the run and frozen in the plan."),
        f'<details open><summary>All answers</summary><dl class="prereg">{items}</dl></details>',
    )


def _check(run: RunFacts) -> str:
    command = f"python -m experiment audit {run.run_dir.as_posix()} --known-head '{run.head_line}'"
    return _section(
        "Check it yourself",
        _paragraph(
            "The head below stands for the whole journal. Whoever keeps it outside of this machine can later show that "
            "nothing before it was changed or removed."
        ),
        f"<pre>{_escape(run.head_line)}</pre>",
        _paragraph("The audit needs no GPU and none of the training packages. It decides everything again:"),
        f"<pre>{_escape(command)}</pre>",
    )
