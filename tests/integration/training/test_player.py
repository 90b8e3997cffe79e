"""What a step's rollouts become before and after the trainer used them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment.decisions.families import family_rates
from experiment.errors import AlignmentError, FaultError
from experiment.policies.scripted import ScriptedPolicy
from experiment.records.entry import FamilyRates
from experiment.records.plan import Plan, ScheduledStep
from experiment.records.recipe import Arm
from experiment.records.rollout import MisalignedRollout, Rollout, Score
from experiment.sealing.arrays import decode_array
from experiment.sealing.canonical import decode_record
from experiment.training.player import (
    PlayedStep,
    StepPlayer,
    reward_of,
    sampler_gaps,
    strict_results,
    trained_rollouts,
)
from experiment.training.sampler import Sampler
from tests.doubles.char_stage import CHAT, EPISODES, SAMPLING, WORLD, keys, lookup, solution, turn_ids
from tests.doubles.small_plan import small_plan, small_recipe

ECHO = Arm(name="echo", algorithm="echo", observation_weight=0.1)
GRPO = Arm(name="grpo", algorithm="grpo")
GROUP = 2


def plan() -> Plan:
    schedule = (ScheduledStep(step=1, episodes=(EPISODES[0].id, EPISODES[1].id), learning_rate=1.0),)
    recipe = small_recipe().model_copy(update={"sampling": SAMPLING})
    return small_plan(recipe).model_copy(update={"train": EPISODES, "schedule": schedule})


def player(arm: Arm, turns: list[str] | None = None) -> StepPlayer:
    """Plays the solver's turns on the first episode, `turns` on the second."""
    scripts = {
        CHAT.prompt_ids(EPISODES[0].messages): [turn_ids(turn) for turn in solution(EPISODES[0])],
        CHAT.prompt_ids(EPISODES[1].messages): [turn_ids(turn) for turn in turns or ["Antwort: 1"]],
    }
    made = StepPlayer(plan(), arm, CHAT, WORLD, Path("recovery"))
    made.sample_from(Sampler(ScriptedPolicy(scripts), lambda: None))
    return made


def play(arm: Arm, turns: list[str] | None = None) -> PlayedStep:
    return player(arm, turns).play(1, [EPISODES[0].id] * GROUP + [EPISODES[1].id] * GROUP)


def marked_text(step: PlayedStep, index: int) -> str:
    rollout = step.rollouts[index]
    marked = [each for each, on in zip(rollout.completion_ids, step.observation_masks[index], strict=True) if on]
    return CHAT.decode(marked)


def test_step_plays_each_prompt_as_often_as_its_group_is_large() -> None:
    step = play(GRPO)
    assert [(each.record.episode, each.record.rollout) for each in step.rollouts] == [
        (EPISODES[0].id, 0),
        (EPISODES[0].id, 1),
        (EPISODES[1].id, 0),
        (EPISODES[1].id, 1),
    ]
    seeds = [turn.seed for each in step.rollouts for turn in each.record.turns]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(
    "asked", [[0, 0, 1], [0, 0, 1, 2], [1, 1, 0, 0], [0, 1, 0, 1]], ids=["fewer", "another", "order", "interleaved"]
)
def test_other_episodes_than_the_plan_s_are_refused(asked: list[int]) -> None:
    with pytest.raises(AlignmentError, match="step 1: the trainer asked for other episodes"):
        player(GRPO).play(1, [EPISODES[number].id for number in asked])


def test_step_cannot_be_played_before_there_is_a_policy() -> None:
    with pytest.raises(FaultError, match="no policy to sample from"):
        StepPlayer(plan(), GRPO, CHAT, WORLD, Path("recovery")).play(
            1, [EPISODES[0].id] * GROUP + [EPISODES[1].id] * GROUP
        )


def test_echo_learns_tool_output_alone_and_grpo_learns_none() -> None:
    step = play(ECHO)
    assert marked_text(step, 0) == step.rollouts[0].native_calls[0].result.text
    assert marked_text(step, 2) == ""
    assert [sum(mask) for mask in play(GRPO).observation_masks] == [0] * 4
    assert [len(mask) for mask in play(GRPO).observation_masks] == [len(each.completion_ids) for each in step.rollouts]


def test_filter_drops_answers_to_calls_that_never_reached_the_world() -> None:
    turns = [f"{lookup('nichts')}\n<tool_call>x</tool_call>\n{lookup('nichts')}", "Antwort: 1"]
    error, refusal = "Fehler: Schlüssel unbekannt", "Fehler: Der Aufruf ist kein gültiges JSON."
    assert marked_text(play(ECHO, turns), 2) == error + error
    keeping = ECHO.model_copy(update={"drop_failed_observations": False})
    assert marked_text(play(keeping, turns), 2) == error + refusal + error


def judged(success: bool, share: float) -> Rollout:
    score = Score(success=success, format=share, malformed_answer=False)
    return play(GRPO).rollouts[0].record.model_copy(update={"score": score})


def test_reward_is_strict_success_plus_weighted_format() -> None:
    assert reward_of(judged(True, 1.0), 0.5) == 1.5
    assert reward_of(judged(False, 0.25), 0.5) == 0.125
    assert reward_of(judged(False, 1.0), 0.0) == 0.0


def test_missing_verdict_has_no_reward_instead_of_zero() -> None:
    assert reward_of(judged(True, 1.0).model_copy(update={"score": None}), 0.5) is None


def test_family_rates_count_uniform_groups_by_family() -> None:
    step = play(GRPO)
    assert family_rates(strict_results(step), GROUP) == (
        FamilyRates(family="direct", rollouts=2, successes=2, groups=1, all_fail=0, all_pass=1),
        FamilyRates(family="one_step", rollouts=2, successes=0, groups=1, all_fail=1, all_pass=0),
    )
    (mixed,) = family_rates(strict_results(PlayedStep(1, [step.rollouts[0], step.rollouts[2]], [], 0.0, [])), GROUP)
    assert (mixed.successes, mixed.all_fail, mixed.all_pass) == (1, 0, 0)


def test_gap_counts_sampled_tokens_only() -> None:
    step = play(GRPO)
    for index, rollout in enumerate(step.rollouts):
        scored = np.zeros(len(rollout.completion_ids), dtype=np.float32)
        scored[np.asarray(rollout.sampled_mask) == 0] = -50.0
        step.trainer_logprobs[index] = scored
    assert sampler_gaps(step) == (0.0, 0.0, 0)
    step.trainer_logprobs[2][:3] = [0.5, -1.5, -1.0]
    assert sampler_gaps(step) == (1.5, 2.0, 2)
    step.trainer_logprobs[1][0] = np.nan
    assert np.isnan(sampler_gaps(step)[0])


def test_evidence_has_one_element_per_retained_token() -> None:
    step = play(ECHO)
    step.advantages = [0.5, -0.5, 0.0, 0.25]
    for index, rollout in enumerate(step.rollouts):
        step.trainer_logprobs[index] = np.full(len(rollout.completion_ids), -0.25, dtype=np.float64)
    for index, trained in enumerate(trained_rollouts(step)):
        size = trained.rollout.tokens_retained
        assert decode_array(trained.trainer_logprobs, "float32").tolist() == [-0.25] * size
        assert decode_array(trained.observation_mask, "uint8").tolist() == step.observation_masks[index]
        assert decode_array(trained.advantage, "float32").tolist() == [step.advantages[index]]
        assert trained.reward == step.rewards[index]


def test_misaligned_rollout_stops_the_step_and_is_kept_with_all_that_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    solved = [lookup(keys(EPISODES[1])[0]), "Antwort: 1"]
    session = type(WORLD.open(EPISODES[0]))
    call = session.call

    def acts_twice(self: Any, name: str, arguments: Any) -> Any:
        call(self, name, arguments)
        return call(self, name, arguments)

    monkeypatch.setattr(session, "call", acts_twice)
    with pytest.raises(AlignmentError, match=r"check 6: .* kept in recovery/misaligned-train-grpo-000001-"):
        play(GRPO, solved)
    (path,) = Path("recovery").iterdir()
    kept = decode_record(MisalignedRollout, path.read_bytes())
    assert "check 6" in kept.problem
    calls = [event for turn in kept.rollout.turns for event in turn.calls]
    assert len(kept.native_calls) == 2 * len(calls) > 0
    assert len(decode_array(kept.completion_ids, "int32")) == kept.rollout.tokens_retained
    assert len(decode_array(kept.sampled_mask, "uint8")) == len(decode_array(kept.logprobs, "float32"))
