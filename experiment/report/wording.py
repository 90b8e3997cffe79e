"""The report's sentences: what was found, in plain words, and what that is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiment.records.verdict import Comparison, Interval
from experiment.report.facts import RunFacts

_SIGNIFICANT = 0.05

Tone = Literal["good", "bad", "neutral", "warn"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the run says about one arm."""

    arm: str
    headline: str
    """A few words."""
    sentence: str
    """What was compared, how much better, with which certainty, retained or not, promoted or not."""
    figure: str
    """The difference in points; empty where there is none."""
    range: str
    """Its interval; empty where there is none."""
    tone: Tone


def percent(share: float) -> str:
    """A share as a percentage with one decimal; the space does not break."""
    return f"{100 * share:.1f}\u00a0%"


def points(difference: float) -> str:
    """A difference of shares in percentage points, signed."""
    value = round(100 * difference, 1)
    if value == 0:
        return "0.0"
    return f"{'+' if value > 0 else '−'}{abs(value):.1f}"


def interval_text(interval: Interval) -> str:
    """The bounds of an interval in percentage points."""
    text = f"{points(interval.low)} to {points(interval.high)}"
    return f"{text} (degenerate)" if interval.degenerate else text


def confidence_text(run: RunFacts) -> str:
    """The confidence of the run's intervals."""
    return f"{100 * run.plan.recipe.assessment.confidence:g}\u00a0%"


def policy(arm: str, step: int) -> str:
    """How a policy is called."""
    return arm if step == 0 else f"{arm}@{step}"


def verdicts(run: RunFacts) -> tuple[Verdict, ...]:
    """One verdict per arm of the plan, also where the run has not come that far."""
    return tuple(_verdict(run, arm.name) for arm in run.plan.recipe.arms)


def _verdict(run: RunFacts, arm: str) -> Verdict:
    agent = run.against_baseline(arm, "agent")
    if agent is None:
        return _unfinished(run, arm)
    retention = run.against_baseline(arm, "retention")
    headline, tone = _headline(agent, retention)
    confidence = confidence_text(run)
    sentence = (
        f"{policy(arm, agent.after_step)} solved {percent(agent.after)} of the {agent.items} final episodes where the "
        f"baseline solved {percent(agent.before)}, {_amount(agent.difference)} ({confidence} interval "
        f"{interval_text(agent.interval)}, {_seeds(len(agent.seeds))}); {_retention(retention)}; {_promotion(agent)}."
    )
    return Verdict(
        arm=arm,
        headline=headline,
        sentence=sentence,
        figure=points(agent.difference),
        range=f"{confidence} interval {interval_text(agent.interval)}",
        tone=tone,
    )


def _headline(agent: Comparison, retention: Comparison | None) -> tuple[str, Tone]:
    direction = _direction(agent)
    if not agent.promoted:
        return f"Baseline retained; for diagnosis only: {direction}", "warn" if direction == "better" else "neutral"
    if direction == "no difference shown":
        return "No difference shown", "neutral"
    if direction == "worse":
        return "Worse than the baseline", "bad"
    if retention is not None and not retention.retained:
        return "Better, but it failed the retention gate", "warn"
    return "Better than the baseline", "good"


def _direction(agent: Comparison) -> Literal["better", "worse", "no difference shown"]:
    # Where all resamples are equal the interval is no evidence, so the exact test has to speak.
    is_clear = not agent.interval.degenerate or agent.sign_test_p <= _SIGNIFICANT
    if is_clear and agent.interval.high < 0:
        return "worse"
    if is_clear and agent.interval.low > 0:
        return "better"
    return "no difference shown"


def _amount(difference: float) -> str:
    size = f"{abs(100 * difference):.1f} percentage points"
    if round(1000 * difference) == 0:
        return "no difference"
    return f"{size} {'more' if difference > 0 else 'fewer'}"


def _seeds(number: int) -> str:
    return f"{number} generation seed{'s' if number != 1 else ''}"


def _retention(retention: Comparison | None) -> str:
    if retention is None:
        return "retention was not assessed"
    values = f"{percent(retention.before)} before and {percent(retention.after)} after on {retention.items} questions"
    if retention.retained:
        return f"retention held, with no loss observed overall or at any seed ({values})"
    return f"retention failed its gate of no observed loss ({values})"


def _promotion(agent: Comparison) -> str:
    if agent.promoted:
        return "the checkpoint was selected on DEV before the final set was opened"
    return "no candidate was eligible on DEV, so this is a diagnostic assessment and the baseline stays"


def _unfinished(run: RunFacts, arm: str) -> Verdict:
    if run.failed_arms:
        which = "this arm" if arm in run.failed_arms else ", ".join(run.failed_arms)
        return Verdict(
            arm=arm,
            headline="Not trained",
            sentence=f"Qualification failed for {which}, so nothing was trained and nothing can be said about {arm}.",
            figure="",
            range="",
            tone="bad",
        )
    done = max((step.facts.step for facts in run.arms if facts.name == arm for step in facts.steps), default=0)
    return Verdict(
        arm=arm,
        headline="No result yet",
        sentence=f"The run is unfinished: {arm} has done {done} of {len(run.plan.schedule)} steps, "
        "and the final set was not compared.",
        figure="",
        range="",
        tone="neutral",
    )


def limits(run: RunFacts) -> dict[str, str]:
    """What the result does not establish: a sentence for each reason."""
    recipe = run.plan.recipe
    found: dict[str, str] = {}
    if recipe.starter is not None:
        found["A stand-in policy"] = (
            f"The baseline is a model of {recipe.starter.model.layers} layers made from nothing for this recipe. "
            "It shows that the method and the machinery work, not what a real language model would gain."
        )
    found["One world"] = (
        f"All agent episodes come from the generator of `{recipe.world.name}`, a narrow synthetic world; "
        "success elsewhere was not measured."
    )
    found["One training seed"] = (
        "Each arm was trained once, from one root seed. The intervals cover items and sampling of the final "
        "assessment, not what another training run would give."
    )
    if len(recipe.arms) > 1:
        found["Arms are not a contest"] = "Arm against arm rests on one training each; a small gap may be luck."
    if run.plan.predecessors:
        found["Used before"] = (
            f"{len(run.plan.predecessors)} earlier runs in this workspace were assessed on some of the same final "
            "episodes, so they were not fresh when this plan was made."
        )
    if run.comparisons and not run.inspections:
        found["Nobody read the samples"] = (
            "The first final episodes were written out for a reviewer, and no inspection has been recorded."
        )
    found["Fixed sets"] = (
        f"{len(run.plan.final)} final episodes and {len(run.plan.retention_final)} retention questions; "
        "differences smaller than the power table's may go unseen, and small losses of retention too."
    )
    found["Self-attested"] = (
        "The journal proves that its records were not changed after the heads that somebody kept elsewhere; it "
        "cannot prove that the measurements were honest, or that no other run was made and dropped."
    )
    return found


def establishes(run: RunFacts) -> tuple[str, ...]:
    """What the result does establish, as far as the run has come."""
    found = ["Question, episodes, seeds, selection rule and analysis were frozen before the run; any change shows."]
    if run.qualifications and not run.failed_arms:
        found.append("Stopping and resuming changes no bit of training on this machine.")
    if run.selections:
        found.append("Checkpoints were selected on DEV alone, by a rule fixed in the plan.")
    found += [
        f"{each.reviewer} ({'a person' if each.kind == 'human' else 'an agent'}) read {len(each.findings)} preselected "
        f"answers and marked {sum('not ok' in (one.language, one.format) for one in each.findings)} of them."
        for each in run.inspections
    ]
    if run.comparisons:
        found.append(
            "For these episodes and these trained weights, the differences above hold within their intervals; "
            "`audit` recomputes each number from the sealed rollouts."
        )
    return tuple(found)
