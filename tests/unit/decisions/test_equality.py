from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from experiment.decisions.equality import compare_branches
from experiment.decisions.evidence_walk import walk_step
from experiment.errors import JournalError
from experiment.records.entry import BranchFinished
from experiment.records.rollout import Rollout, ToolEvent, TrainedRollout
from experiment.records.verdict import Divergence, EqualityVerdict
from experiment.sealing.arrays import encode_array
from tests.unit.decisions.twins import STATE, branch, evidence, facts, floats, ints, rollout, trained, turn


def verdict(
    resumed: BranchFinished | None = None,
    rollouts: list[list[TrainedRollout]] | None = None,
    state: dict[str, str] | None = None,
) -> EqualityVerdict:
    given = {"straight": evidence(), "resumed": evidence() if rollouts is None else rollouts}
    states = {"straight": STATE, "resumed": STATE if state is None else state}
    return compare_branches(branch("straight"), [resumed or branch("resumed")], given, states)


def first(*args, **changes) -> tuple[str, str, str]:
    found = verdict(*args, **changes)
    assert not found.passed
    (divergence,) = found.divergences
    assert divergence.branch == "resumed"
    return divergence.place, divergence.expected, divergence.found


def with_rollout(changed: TrainedRollout, *, step: int = 3, position: int = 1) -> list[list[TrainedRollout]]:
    given = evidence()
    given[step - 1][position] = changed
    return given


def with_step(step: int, **changes: object) -> BranchFinished:
    steps = tuple(facts(number, **changes) if number == step else facts(number) for number in (1, 2, 3, 4))
    return branch("resumed", steps=steps)


def test_equal_branches_pass_and_say_how_much_was_compared() -> None:
    found = verdict()
    assert found.passed
    assert found.divergences == ()
    assert found.compared > 4 * 2 * 20


def test_count_of_compared_values_grows_with_the_state() -> None:
    more = STATE | {"optimizer/model.lora_B/exp_avg": "b" * 64}
    found = compare_branches(
        branch("straight"),
        [branch("resumed")],
        {b: evidence() for b in ("straight", "resumed")},
        {"straight": more, "resumed": more},
    )
    assert found.compared == verdict().compared + 1


def test_a_shortened_learning_rate_horizon_is_named() -> None:
    place, expected, found = first(with_step(3, learning_rate=5e-06))
    assert (place, expected, found) == ("step 3, learning_rate", "1e-05", "5e-06")


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_last_bit_of_a_number_is_named(name: str) -> None:
    value = float(np.nextafter(getattr(facts(2), name), 1.0))
    assert first(with_step(2, **{name: value}))[0] == f"step 2, {name}"


def test_a_loss_that_is_not_finite_is_named() -> None:
    assert first(with_step(2, loss=None))[1:] == ("0.125", "None")


def test_negative_zero_is_not_zero() -> None:
    changed = with_step(4, metrics=(("entropy", 1.5), ("kl", -0.0)))
    assert first(changed) == ("step 4, metric kl", "0.0", "-0.0")


def test_a_missing_and_an_extra_metric_are_named() -> None:
    assert first(with_step(1, metrics=(("entropy", 1.5),))) == ("step 1, metric kl", "0.0", "absent")
    extra = (("entropy", 1.5), ("kl", 0.0), ("reward", 0.5))
    assert first(with_step(1, metrics=extra)) == ("step 1, metric reward", "absent", "0.5")


def test_another_reference_policy_is_named_first() -> None:
    changed = with_step(1, loss=0.5).model_copy(update={"reference": "e" * 64})
    assert first(changed) == ("reference policy", "f" * 64, "e" * 64)


def test_a_missing_step_is_named() -> None:
    changed = branch("resumed", steps=branch("resumed").steps[:3])
    assert first(changed, evidence()[:3]) == ("step 4", "step 4", "absent")


def test_an_extra_step_is_named() -> None:
    changed = branch("resumed", steps=(*branch("resumed").steps, facts(5)))
    assert first(changed, [*evidence(), evidence()[0]]) == ("step 5", "absent", "step 5")


def test_a_repeated_step_is_named() -> None:
    changed = branch("resumed", steps=tuple(facts(number) for number in (1, 2, 2, 3, 4)))
    assert first(changed, [*evidence(), evidence()[0]]) == ("step 3", "step 3", "step 2")


def test_a_step_without_evidence_is_named() -> None:
    assert first(rollouts=evidence()[:3]) == ("step 4, evidence", "present", "absent")


def test_evidence_without_a_step_is_named() -> None:
    assert first(rollouts=[*evidence(), evidence()[0]]) == ("step 5, evidence", "absent", "present")


def test_another_evidence_digest_is_named_even_where_the_evidence_looks_equal() -> None:
    changed = with_step(3, evidence="e" * 64)
    assert first(changed) == ("step 3, evidence", f"{3:064x}", "e" * 64)


def test_a_missing_rollout_is_named() -> None:
    given = evidence()
    del given[2][1]
    assert first(rollouts=given) == (
        "step 3, rollout 1 of the step",
        "episode train-0007, rollout 1",
        "absent",
    )


def test_an_extra_rollout_is_named() -> None:
    given = evidence()
    given[2].append(trained(rollout(2)))
    assert first(rollouts=given) == (
        "step 3, rollout 2 of the step",
        "absent",
        "episode train-0007, rollout 2",
    )


def test_another_episode_order_is_named() -> None:
    other = trained(rollout(1, episode="train-0009"))
    assert first(rollouts=with_rollout(other)) == (
        "step 3, rollout 1 of the step",
        "episode train-0007, rollout 1",
        "episode train-0009, rollout 1",
    )


def test_every_value_of_a_step_is_compared_once() -> None:
    places = [check.place for check in walk_step("step 1", evidence()[0], evidence()[0])]
    assert len(set(places)) == len(places)


PLACE = "step 3, episode train-0007, rollout 1"


@pytest.mark.parametrize(
    ("changed", "place", "expected", "found"),
    [
        (rollout(1, prompt_ids=ints(1, 2, 8, 4)), "token 2 (prompt_ids)", "3", "8"),
        (rollout(1, turns=(turn(sampled_ids=ints(5, 6, 8)), turn())), "turn 0, token 2 (sampled_ids)", "7", "8"),
        (rollout(1, turns=(turn(sampled_ids=ints(5, 6)), turn())), "turn 0, token 2 (sampled_ids)", "7", "absent"),
        (rollout(1, turns=(turn(sampled_ids=ints(5, 6, 7, 8)),)), "turn 0, token 3 (sampled_ids)", "absent", "8"),
        (
            rollout(1, turns=(turn(sampled_logprobs=floats(-0.5, -0.25, float("nan"))), turn())),
            "turn 0, token 2 (sampled_logprobs)",
            "-1.0 (0xbf800000)",
            "nan (0x7fc00000)",
        ),
        (rollout(1, turns=(turn(seed="00000000000000ac"), turn())), "turn 0 (seed), character 15", "'b'", "'c'"),
        (rollout(1, turns=(turn(context_length=5), turn())), "turn 0 (context_length)", "4", "5"),
        (rollout(1, turns=(turn(text="rechne dies"), turn())), "turn 0 (text), character 8", "'as'", "'ies'"),
        (rollout(1, turns=(turn(finish="length"), turn())), "turn 0 (finish), character 0", "'stop'", "'length'"),
        (rollout(1, turns=(turn(calls=()), turn())), "turn 0, call 0", "present", "absent"),
        (rollout(1, turns=(turn(observation_ids=ints(9, 8)), turn())), "turn 0, token 1 (observation_ids)", "9", "8"),
        (
            rollout(1, turns=(turn(observation_spans=((0, 2),)), turn())),
            "turn 0 (observation_spans)",
            "((0, 1),)",
            "((0, 2),)",
        ),
        (rollout(1, turns=(turn(),)), "turn 1", "present", "absent"),
        (rollout(1, turns=(*rollout().turns, turn())), "turn 2", "absent", "present"),
        (rollout(1, end="length"), "(end), character 0", "'answer'", "'length'"),
        (rollout(1, tool_errors=1), "(tool_errors)", "0", "1"),
    ],
)  # fmt: skip
def test_first_difference_inside_a_rollout_is_named(changed: Rollout, place: str, expected: str, found: str) -> None:
    separator = " " if place.startswith("(") else ", "
    assert first(rollouts=with_rollout(trained(changed))) == (f"{PLACE}{separator}{place}", expected, found)


def test_a_first_turn_is_named_before_a_second_turn_that_it_changed() -> None:
    given = evidence()
    given[2][0] = trained(rollout(0, turns=(turn(), turn(sampled_logprobs=floats(-0.5, -0.2500001, -1.0)))))
    given[2][1] = trained(rollout(1, turns=(turn(sampled_ids=ints(5, 6, 8)), turn())))
    assert first(rollouts=given)[0] == f"{PLACE}, turn 0, token 2 (sampled_ids)"


def test_turns_are_named_before_how_an_earlier_rollout_ended() -> None:
    given = evidence()
    given[2][0] = trained(rollout(0, end="length"))
    given[2][1] = trained(rollout(1, turns=(turn(),)))
    assert first(rollouts=given)[0] == f"{PLACE}, turn 1"


def test_another_observation_is_named_with_its_call() -> None:
    call = ToolEvent(name="rechne", arguments_json='{"a":"1"}', status="delivered", observation="43")
    changed = trained(rollout(1, turns=(turn(calls=(call,)), turn())))
    assert first(rollouts=with_rollout(changed)) == (
        f"{PLACE}, turn 0, call 0 (observation), character 1",
        "'2'",
        "'3'",
    )


def test_a_missing_score_is_named() -> None:
    place, _, found = first(rollouts=with_rollout(trained(rollout(1, score=None))))
    assert (place, found) == (f"{PLACE} (score)", "None")


def test_a_logprob_that_differs_before_the_ids_part_is_named_first() -> None:
    early = turn(sampled_ids=ints(5, 6, 8), sampled_logprobs=floats(-0.5, -0.2500001, -1.0))
    assert "token 1 (sampled_logprobs)" in first(rollouts=with_rollout(trained(rollout(1, turns=(early,)))))[0]


def test_ids_that_part_at_the_token_where_logprobs_do_are_named_first() -> None:
    both = turn(sampled_ids=ints(5, 8, 7), sampled_logprobs=floats(-0.5, -0.75, -1.0))
    assert "token 1 (sampled_ids)" in first(rollouts=with_rollout(trained(rollout(1, turns=(both,)))))[0]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"reward": 0.5}, " (reward)"),
        ({"reward": None}, " (reward)"),
        ({"advantage": floats(0.25)}, ", token 0 (advantage)"),
        ({"trainer_logprobs": floats(-0.5, -0.25, -0.0)}, ", token 2 (trainer_logprobs)"),
        ({"observation_mask": encode_array(np.array([0, 0, 0], dtype=np.uint8))}, ", token 1 (observation_mask)"),
    ],
)
def test_first_difference_in_what_the_trainer_made_of_a_rollout_is_named(changes: dict, place: str) -> None:
    assert first(rollouts=with_rollout(trained(rollout(1), **changes)))[0] == PLACE + place


def test_a_rollout_comes_before_what_the_trainer_made_of_any() -> None:
    given = with_rollout(trained(rollout(1, tool_errors=1)))
    given[2][0] = trained(rollout(0), reward=0.0)
    assert first(rollouts=given)[0] == f"{PLACE} (tool_errors)"


def test_evidence_of_a_step_comes_before_its_numbers_and_after_those_of_earlier_steps() -> None:
    given = with_rollout(trained(rollout(1, tool_errors=1)))
    assert "tool_errors" in first(with_step(3, loss=9.0), given)[0]
    assert first(with_step(2, loss=9.0), given)[0] == "step 2, loss"


def test_damaged_array_refuses_and_is_named() -> None:
    broken = trained(rollout(1, prompt_ids="AAAA"))
    with pytest.raises(JournalError, match=r"rollout 1 \(prompt_ids\): an array is damaged"):
        verdict(rollouts=with_rollout(broken))


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("adapter/model.lora_B", "adapter: model.lora_B"),
        ("optimizer/model.lora_A/exp_avg", "optimizer: exp_avg of model.lora_A"),
        ("optimizer/step", "optimizer: step"),
        ("scheduler", "scheduler"),
    ],
)
def test_first_state_tensor_that_differs_is_named(key: str, place: str) -> None:
    assert first(state=STATE | {key: "0" * 64}) == (place, STATE[key], "0" * 64)


def test_a_missing_and_an_extra_tensor_are_named() -> None:
    short = {key: value for key, value in STATE.items() if key != "optimizer/step"}
    assert first(state=short) == ("optimizer: step", "b2" * 32, "absent")
    more = STATE | {"optimizer/model.extra/exp_avg": "0" * 64}
    assert first(state=more) == ("optimizer: exp_avg of model.extra", "absent", "0" * 64)


def test_a_part_of_which_only_one_branch_has_tensors_is_named() -> None:
    assert first(state=STATE | {"rng/torch": "0" * 64}) == ("rng: torch", "absent", "0" * 64)


def test_a_part_whose_digest_differs_is_named_even_where_its_tensors_look_equal() -> None:
    changed = branch("resumed", state=(("adapter", "a" * 64), ("optimizer", "9" * 64), ("scheduler", "c" * 64)))
    assert first(changed) == ("optimizer", "b" * 64, "9" * 64)


def test_a_missing_part_is_named() -> None:
    changed = branch("resumed", state=(("adapter", "a" * 64), ("optimizer", "b" * 64)))
    assert first(changed) == ("scheduler", "c" * 64, "absent")


def test_steps_come_before_the_state() -> None:
    assert first(with_step(4, loss=9.0), state=STATE | {"scheduler": "0" * 64})[0] == "step 4, loss"


def test_each_differing_branch_has_its_own_first_divergence() -> None:
    names = ("straight", "repeated", "resumed")
    repeated = with_step(2, loss=0.25).model_copy(update={"branch": "repeated"})
    found = compare_branches(
        branch("straight"),
        [repeated, with_step(4, loss=0.25)],
        {name: evidence() for name in names},
        dict.fromkeys(names, STATE),
    )
    assert found.divergences == (
        Divergence(branch="repeated", place="step 2, loss", expected="0.125", found="0.25"),
        Divergence(branch="resumed", place="step 4, loss", expected="0.125", found="0.25"),
    )


def refusal(
    change: Callable[[dict], None],
) -> None:
    names = ("straight", "resumed")
    given = {
        "straight": branch("straight"),
        "others": [branch("resumed")],
        "evidence": {name: evidence() for name in names},
        "states": dict.fromkeys(names, STATE),
    }
    change(given)
    compare_branches(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.update(others=[]), "no second branch"),
        (lambda given: given.update(others=[branch("straight")]), "not distinct"),
        (lambda given: given.update(others=[branch("resumed", arm="echo")]), "another arm"),
        (lambda given: given.update(straight=branch("straight", steps=())), "no steps"),
        (lambda given: given["evidence"].pop("resumed"), "'resumed' lacks its evidence"),
        (lambda given: given["states"].pop("straight"), "'straight' lacks its evidence or its state"),
        (lambda given: given["states"].update(resumed={}), "'resumed' lacks"),
        (lambda given: given.update(evidence={"straight": evidence()[:3], "resumed": evidence()[:3]}), "position 4"),
        (
            lambda given: given.update(others=[branch("resumed", state=(("rng", "a" * 64), ("rng", "b" * 64)))]),
            "'rng' occurs twice",
        ),
    ],
)
def test_what_could_only_pass_by_accident_refuses(change: Callable[[dict], None], message: str) -> None:
    with pytest.raises(JournalError, match=message):
        refusal(change)
