"""The report's figures; small ones, so that they are read at their own size on a phone as well."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from experiment.records.entry import TrainStep
from experiment.records.verdict import Interval
from experiment.report.facts import ArmFacts, FamilyStep, RunFacts
from experiment.report.svg import FAIL, GRID, INK, MIXED, MUTED, PAPER, PASS, SERIES, to_svg
from experiment.report.wording import confidence_text, policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 3.6
_FOREST_WIDTH = 4.0
_HEIGHT = 2.35
_CHARACTER = 0.062
"""Room for one character of a label, inches."""
_WINDOW = 5
"""Steps in a trailing mean."""

# `Any`: matplotlib's types spell out each of its several hundred keys.
_STYLE: Any = {
    "svg.hashsalt": "experiment",
    "svg.fonttype": "none",
    # Names come from records; a dollar sign in one is no formula.
    "text.parse_math": False,
    "font.size": 8.0,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its caption."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """One line of a forest plot."""

    label: str
    difference: float
    interval: Interval
    colour: str
    is_hollow: bool
    """A diagnostic assessment."""


@contextmanager
def _figure(
    height: float = _HEIGHT, *, width: float = _WIDTH, left: float = 0.42, top: float = 0.24
) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one set of axes, in the report's style and on no screen; lengths in inches."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as NewFigure

    with mpl.rc_context(_STYLE):
        figure = NewFigure(figsize=(width, height))
        FigureCanvasSVG(figure)
        # Fixed margins: measuring texts would double the time, and the page's own font has other widths anyway.
        figure.subplots_adjust(left=left / width, right=1 - 0.1 / width, bottom=0.38 / height, top=1 - top / height)
        yield figure, figure.subplots()


_MONITORS = {
    "kl": "KL to the baseline, nats per token",
    "entropy": "Entropy, nats per token",
    "observation_ce": "Observation cross-entropy, nats per token",
    "gap_max_nats": "Largest sampler/trainer gap, nats",
    "grad_norm": "Gradient norm",
}


class Figures:
    """Draws one run; `prefix` keeps the ids of several runs in one page apart."""

    def __init__(self, run: RunFacts, prefix: str) -> None:
        self._run = run
        self._prefix = prefix
        self._colours = {arm.name: SERIES[number % len(SERIES)] for number, arm in enumerate(run.plan.recipe.arms)}

    def forest(self, suite: str) -> Plot | None:
        """Differences with intervals: each comparison, and below it its families."""
        rows: list[Estimate] = []
        for found in self._run.comparisons:
            if found.suite != suite:
                continue
            title = f"{policy(found.after_arm, found.after_step)} vs {policy(found.before_arm, found.before_step)}"
            is_main = found.before_step == 0
            colour = self._colours.get(found.after_arm, INK) if is_main else INK
            rows.append(Estimate(title, found.difference, found.interval, colour, not found.promoted))
            if is_main and len(found.families) > 1:
                rows += [
                    Estimate(f"   {family.family}", family.difference, family.interval, colour, not found.promoted)
                    for family in found.families
                ]
        if not rows:
            return None
        left = 0.1 + _CHARACTER * max(len(row.label) for row in rows)
        height = 0.45 + 0.24 * len(rows)
        with _figure(height, width=_FOREST_WIDTH, left=left, top=0.05) as (figure, axes):
            _draw_forest(axes, rows)
            svg = self._svg(figure, f"forest-{suite}", f"Differences on the {suite} suite with their intervals")
        hollow = " Hollow: diagnostic." if any(row.is_hollow for row in rows) else ""
        return Plot(svg, f"Difference with its {confidence_text(self._run)} interval; right of zero is better.{hollow}")

    def family_curves(self, kind: Literal["success", "reward"]) -> list[Plot]:
        """One figure per family over steps, one line per arm."""
        figures = []
        for number, family in enumerate(sorted({family for arm in self._run.arms for family in arm.families})):
            with _figure() as (figure, axes):
                for arm in self._run.arms:
                    points = arm.families.get(family, ())
                    pairs = [(each.step, each.success if kind == "success" else each.reward) for each in points]
                    _draw_trend(axes, [(x, y) for x, y in pairs if y is not None], self._colours[arm.name])
                axes.set_title(family)
                axes.set_xlabel("step")
                if kind == "success":
                    _as_share(axes)
                label = f"{'Strict success' if kind == 'success' else 'Reward'} of family {family} over steps"
                figures.append(Plot(self._svg(figure, f"{kind}-{number}", label), ""))
        return figures

    def group_shares(self) -> list[Plot]:
        """One figure per arm and family: shares of groups that all failed, differed, and all succeeded."""
        figures = []
        panels = [(arm, family) for arm in self._run.arms for family in arm.families]
        for number, (arm, family) in enumerate(panels):
            points = arm.families[family]
            with _figure(_HEIGHT * 0.8) as (figure, axes):
                _draw_groups(axes, points)
                axes.set_title(f"{arm.name} · {family}")
                label = f"Groups of {arm.name}, family {family}: all failed, mixed, all solved"
                figures.append(Plot(self._svg(figure, f"groups-{number}", label), ""))
        return figures

    def monitors(self) -> list[Plot]:
        """One figure per monitor that any arm recorded."""
        figures = []
        for name, title in _MONITORS.items():
            series = {arm.name: _metric(arm, name) for arm in self._run.arms}
            if not any(series.values()):
                continue
            with _figure() as (figure, axes):
                for arm, points in series.items():
                    _draw_trend(axes, points, self._colours[arm])
                axes.set_title(title)
                axes.set_xlabel("step")
                # A factor beside the axis would be overlooked, and covers the title.
                axes.yaxis.set_major_formatter("{x:.3g}")
                figures.append(Plot(self._svg(figure, f"monitor-{name}", f"{title} over steps"), ""))
        return figures

    def step_times(self) -> list[Plot]:
        """One figure per arm: how long steps took, rollouts and update apart."""
        figures = []
        for number, arm in enumerate(self._run.arms):
            if not arm.steps:
                continue
            with _figure(_HEIGHT * 0.8) as (figure, axes):
                _draw_times(axes, arm.steps)
                axes.set_title(f"{arm.name}: seconds per step")
                figures.append(Plot(self._svg(figure, f"time-{number}", f"Seconds per step of {arm.name}"), ""))
        return figures

    def _svg(self, figure: Figure, name: str, label: str) -> str:
        return to_svg(figure, f"{self._prefix}-{name}", label)


def _draw_forest(axes: Axes, rows: Sequence[Estimate]) -> None:
    axes.axvline(0, color=MUTED, linewidth=0.9)
    for position, row in enumerate(rows):
        is_part = row.label.startswith(" ")
        axes.plot(
            [100 * row.interval.low, 100 * row.interval.high],
            [position, position],
            color=row.colour,
            linewidth=1.1 if is_part else 2.2,
            solid_capstyle="butt",
        )
        axes.plot(
            [100 * row.difference],
            [position],
            color=row.colour,
            marker="o" if is_part else "s",
            markersize=4.0 if is_part else 6.0,
            markerfacecolor=PAPER if row.is_hollow else row.colour,
            markeredgecolor=row.colour,
        )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    for label in axes.get_yticklabels():
        is_part = label.get_text().startswith(" ")
        label.set_color(MUTED if is_part else INK)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("percentage points")


def _draw_trend(axes: Axes, points: Sequence[tuple[int, float]], colour: str) -> None:
    """Each step as a faint point, and the trailing mean as a line."""
    if not points:
        return
    steps = [step for step, _ in points]
    values = [value for _, value in points]
    if len(points) >= 3 * _WINDOW:
        axes.plot(steps, values, linestyle="none", marker="o", markersize=2.0, color=colour, alpha=0.35)
        values = [statistics.fmean(values[max(0, end - _WINDOW) : end]) for end in range(1, len(values) + 1)]
        axes.plot(steps, values, color=colour)
    else:
        axes.plot(steps, values, color=colour, marker="o", markersize=2.5)


def _as_share(axes: Axes) -> None:
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0 %", "25 %", "50 %", "75 %", "100 %"])


def _draw_groups(axes: Axes, points: Sequence[FamilyStep]) -> None:
    steps = [each.step for each in points]
    fail, solved = _trailing([each.all_fail for each in points]), _trailing([each.all_pass for each in points])
    mixed = [1 - one - other for one, other in zip(fail, solved, strict=True)]
    axes.stackplot(steps, fail, mixed, solved, colors=(FAIL, MIXED, PASS), linewidth=0)
    axes.set_xlim(min(steps), max(*steps, min(steps) + 1))
    axes.set_xlabel("step")
    _as_share(axes)
    axes.set_ylim(0, 1)


def _draw_times(axes: Axes, steps: Sequence[TrainStep]) -> None:
    numbers = [step.facts.step for step in steps]
    rollouts = [step.rollout_seconds for step in steps]
    updates = [max(0.0, step.seconds - step.rollout_seconds) for step in steps]
    axes.bar(numbers, rollouts, width=0.9, color=MUTED, linewidth=0)
    axes.bar(numbers, updates, width=0.9, bottom=rollouts, color=MIXED, linewidth=0)
    axes.set_xlabel("step")
    axes.grid(visible=False, axis="x")


def _trailing(values: Sequence[float]) -> list[float]:
    if len(values) < 3 * _WINDOW:
        return list(values)
    return [statistics.fmean(values[max(0, end - _WINDOW) : end]) for end in range(1, len(values) + 1)]


def _metric(arm: ArmFacts, name: str) -> list[tuple[int, float]]:
    found = [(step.facts.step, _value(step, name)) for step in arm.steps]
    return [(step, value) for step, value in found if value is not None]


def _value(step: TrainStep, name: str) -> float | None:
    if name == "grad_norm":
        return step.facts.grad_norm
    return dict(step.facts.metrics).get(name)
