from __future__ import annotations

import pytest
from scipy import stats

from experiment.decisions.health import METRICS, Finding, PassRate, check_step, rates_differ
from experiment.records.entry import FamilyRates, StepFacts, TrainStep
from experiment.records.recipe import Health

HEALTHY = {
    "corrupted_rollouts": 0.0,
    "entropy": 1.0,
    "gap_max_nats": 0.01,
    "kl": 0.0,
    "observation_ce": 2.0,
    "observation_tokens": 100.0,
    "reward": 0.5,
    "strict": 0.5,
}


def family(name: str = "a", *, solved: int = 8, groups: int = 4, all_fail: int = 1) -> FamilyRates:
    return FamilyRates(family=name, rollouts=16, successes=solved, groups=groups, all_fail=all_fail, all_pass=0)


def step(
    number: int = 1,
    *,
    families: tuple[FamilyRates, ...] = (),
    ends: tuple[tuple[str, int], ...] = (("answer", 16),),
    loss: float | None = 0.1,
    not_finite: tuple[str, ...] = (),
    **metrics: float | None,
) -> TrainStep:
    values = {name: value for name, value in (HEALTHY | metrics).items() if value is not None}
    facts = StepFacts(
        step=number,
        evidence="0" * 64,
        learning_rate=1e-5,
        loss=loss,
        grad_norm=1.0,
        not_finite=not_finite,
        metrics=tuple(sorted(values.items())),
    )
    return TrainStep(
        arm="grpo",
        facts=facts,
        families=families or (family(),),
        ends=ends,
        divergences=(),
        seconds=2.0,
        rollout_seconds=1.0,
    )


def kinds(*history: TrainStep, baseline: PassRate | None = None, **thresholds: float) -> list[tuple[str, bool]]:
    return [(found.kind, found.stops) for found in check_step(history, Health(**thresholds), baseline)]


def healthy(count: int) -> list[TrainStep]:
    return [step(number + 1) for number in range(count)]


def test_healthy_steps_have_no_findings() -> None:
    history = healthy(60)
    assert [kinds(*history[:end], baseline=PassRate(48, 96)) for end in range(1, 61)] == [[]] * 60


def test_expected_metrics_are_named_once_and_sorted() -> None:
    assert tuple(sorted(HEALTHY)) == METRICS


@pytest.mark.parametrize(("solved", "is_outside"), [(0, True), (2, False), (8, False), (14, False), (16, True)])
def test_first_step_is_compared_with_the_baselines_pass_rate(solved: int, is_outside: bool) -> None:
    found = kinds(step(families=(family(solved=solved, all_fail=0),)), baseline=PassRate(48, 96))
    assert found == ([("first_step", False)] if is_outside else [])


def test_first_step_pools_all_families() -> None:
    families = (family("a", solved=0), family("b", solved=16))
    assert kinds(step(families=families), baseline=PassRate(48, 96)) == []


def test_first_step_rates_of_a_healthy_run_are_inside() -> None:
    for solved in (17, 20, 21):  # of 64 rollouts, baseline 0.240
        rates = FamilyRates(family="a", rollouts=64, successes=solved, groups=8, all_fail=2, all_pass=0)
        assert kinds(step(families=(rates,)), baseline=PassRate(60, 250)) == []


def test_later_steps_are_not_compared_with_the_baseline() -> None:
    assert kinds(step(1), step(2, families=(family(solved=16, all_fail=0),)), baseline=PassRate(48, 96)) == []


def test_without_a_measured_baseline_the_first_step_is_not_judged() -> None:
    assert kinds(step(families=(family(solved=0),))) == []


def test_one_corrupted_rollout_stops_by_default() -> None:
    assert kinds(step(corrupted_rollouts=1.0, gap_max_nats=35.0)) == [("corrupted_rollouts", True)]


def test_corrupted_rollouts_within_the_allowed_share_warn() -> None:
    assert kinds(step(corrupted_rollouts=1.0), max_corrupted_share=1 / 16) == [("corrupted_rollouts", False)]
    assert kinds(step(corrupted_rollouts=2.0), max_corrupted_share=1 / 16) == [("corrupted_rollouts", True)]


def test_a_gap_above_the_threshold_stops_even_if_nothing_was_counted() -> None:
    assert kinds(step(gap_max_nats=10.5)) == [("corrupted_rollouts", True)]
    assert kinds(step(gap_max_nats=10.0)) == []
    assert kinds(step(gap_max_nats=3.0), max_gap_nats=2.0) == [("corrupted_rollouts", True)]


def test_corruption_stops_again_at_the_next_step() -> None:
    bad = [step(number, corrupted_rollouts=1.0) for number in (1, 2)]
    assert kinds(*bad) == [("corrupted_rollouts", True)]


def test_message_of_corruption_says_how_many_and_how_far() -> None:
    (found,) = check_step([step(3, corrupted_rollouts=2.0, gap_max_nats=35.25)], Health(), None)
    assert "step 3: 2 of 16 rollouts" in found.message
    assert "35.2 nats" in found.message


@pytest.mark.parametrize("name", ["loss", "grad_norm", "gap_max_nats"])
def test_a_number_that_decides_training_and_is_not_finite_stops(name: str) -> None:
    assert (f"not_finite/{name}", True) in kinds(step(not_finite=(name,), gap_max_nats=None))


def test_a_missing_loss_stops_although_nobody_named_it() -> None:
    assert kinds(step(loss=None)) == [("not_finite/loss", True)]


def test_a_monitor_that_is_not_finite_warns() -> None:
    assert kinds(step(not_finite=("kl",), kl=None)) == [("not_finite/kl", False)]


def test_a_missing_metric_is_named_once() -> None:
    short = [step(number, entropy=None) for number in (1, 2)]
    assert kinds(short[0]) == [("metric_missing/entropy", False)]
    assert kinds(*short) == []
    assert kinds(step(1), short[1]) == [("metric_missing/entropy", False)]


def family_history(*shares: tuple[int, int]) -> list[TrainStep]:
    """Steps in which family a stays at 1 of 4 and family e has the given (steps, all-fail groups of 4)."""
    counts = [all_fail for steps, all_fail in shares for _ in range(steps)]
    return [
        step(n + 1, families=(family("a"), family("e", all_fail=all_fail, solved=4)))
        for n, all_fail in enumerate(counts)
    ]


def test_a_family_that_is_lost_again_is_named() -> None:
    history = family_history((20, 1), (10, 4))
    found = [f for end in range(1, 31) for f in check_step(history[:end], Health(), None)]
    assert [f.kind for f in found] == ["all_fail_rising/e"]
    assert "10 of 40 at best before" in found[0].message


def test_a_falling_all_fail_share_is_not_named() -> None:
    history = family_history((20, 4), (20, 1))
    assert [kinds(*history[:end]) for end in range(1, 41)] == [[]] * 40


def test_a_slightly_higher_all_fail_share_is_not_named() -> None:
    history = family_history((15, 1), (5, 2), (5, 1), (5, 2))
    assert kinds(*history) == []


def test_a_family_is_judged_only_after_two_windows() -> None:
    assert kinds(*family_history((9, 0), (10, 4))) == []
    assert kinds(*family_history((10, 0), (10, 4)))[0][0].startswith("all_fail_rising")


def test_a_family_that_is_not_played_any_more_is_not_named() -> None:
    history = family_history((20, 1)) + [step(n) for n in range(21, 41)]
    assert kinds(*history) == []


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [(0.19, ["entropy_collapse"]), (0.21, []), (1.9, []), (2.1, ["entropy_explosion"])],
)
def test_entropy_is_set_against_step_1(entropy: float, expected: list[str]) -> None:
    history = [step(1), *[step(n, entropy=entropy) for n in range(2, 8)]]
    found = [f.kind for end in range(1, 8) for f in check_step(history[:end], Health(), None)]
    assert found == expected


def test_one_step_of_low_entropy_among_five_is_noise() -> None:
    assert kinds(*healthy(6), step(7, entropy=0.1)) == []


@pytest.mark.parametrize(("cut", "expected"), [(4, []), (5, [("truncation", False)])])
def test_share_of_truncated_rollouts_warns_above_a_quarter(cut: int, expected: list) -> None:
    assert kinds(step(ends=(("answer", 15 - cut), ("length", cut), ("turn_limit", 1)))) == expected


def test_truncation_is_named_again_only_after_it_went_away() -> None:
    cut = (("answer", 8), ("length", 8))
    history = [step(1), step(2, ends=cut), step(3, ends=cut), step(4), step(5, ends=cut)]
    assert [kinds(*history[:end]) for end in range(1, 6)] == [
        [], [("truncation", False)], [], [], [("truncation", False)],
    ]  # fmt: skip


def auxiliary(*, loss: float, reward: float, tokens: float = 100.0) -> list[str]:
    late = [step(n, observation_ce=loss, reward=reward, observation_tokens=tokens) for n in range(11, 21)]
    return [f.kind for f in check_step(healthy(10) + late, Health(), None)]


def test_observation_loss_that_falls_while_reward_falls_is_named() -> None:
    assert auxiliary(loss=1.0, reward=0.3) == ["auxiliary_without_reward"]


@pytest.mark.parametrize(("loss", "reward"), [(1.0, 0.5), (1.0, 0.45), (2.5, 0.3), (2.0, 0.3)])
def test_observation_loss_and_reward_that_go_together_are_not_named(loss: float, reward: float) -> None:
    assert auxiliary(loss=loss, reward=reward) == []


def test_without_observation_tokens_their_loss_is_not_judged() -> None:
    assert auxiliary(loss=0.0, reward=0.3, tokens=0.0) == []


def test_findings_are_plain_values() -> None:
    assert check_step([step(loss=None)], Health(), None) == (
        Finding("not_finite/loss", "step 1: loss is not finite", stops=True),
    )


def test_rates_differ_where_the_interval_built_from_scipys_score_bounds_excludes_zero() -> None:
    confidence = 0.99
    bounds = {
        (k, n): stats.binomtest(k, n).proportion_ci(confidence, method="wilson") for n in (5, 20) for k in range(n + 1)
    }
    both = set()
    for (k, n), low in bounds.items():
        for (m, o), high in bounds.items():
            if k / n < m / o:
                margin = ((low.high - k / n) ** 2 + (m / o - high.low) ** 2) ** 0.5
                both.add(expected := m / o - k / n > margin)
                for pair in ((PassRate(k, n), PassRate(m, o)), (PassRate(m, o), PassRate(k, n))):
                    assert rates_differ(*pair, stats.norm.ppf(0.5 + confidence / 2)) == expected
    assert both == {True, False}


def test_equal_rates_never_differ() -> None:
    assert not rates_differ(PassRate(0, 10), PassRate(0, 1000), 1.0)
    assert not rates_differ(PassRate(3, 10), PassRate(30, 100), 1.0)
