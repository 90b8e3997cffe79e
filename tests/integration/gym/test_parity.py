"""Gym's own agent plays finished rollouts to the same ids, tool outputs and verdict; where it does not, it is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from experiment.environments.base import ToolResult
from experiment.environments.nemo_gym.environment import GymWorld
from experiment.environments.nemo_gym.parity import AgentReplay
from experiment.environments.nemo_gym.replay_policy import ReplayPolicy
from experiment.environments.nemo_gym.service import GymService
from experiment.errors import UsageError
from experiment.rollout.episode import PlayedRollout
from tests.doubles.char_stage import EPISODES, play
from tests.integration.gym.conftest import TASKS
from tests.integration.gym.test_world import drawn, scripts


@pytest.fixture(scope="module")
def replay(service: GymService, policy: ReplayPolicy) -> Iterator[AgentReplay]:
    replay = AgentReplay(service.address(), TASKS, policy)
    yield replay
    replay.close()


@pytest.fixture(scope="module")
def solved(world: GymWorld) -> PlayedRollout:
    played = play(scripts(), world=world)[2]
    assert played.record.score.success
    assert len(played.native_calls) > 1
    return played


def test_every_rollout_is_the_same_through_the_agent(world: GymWorld, replay: AgentReplay) -> None:
    for episode, played in zip(EPISODES, play(scripts(), world=world), strict=False):
        assert replay.compare(episode, played.record, played.native_calls) == ()
    for played in drawn(world):
        episode = next(each for each in EPISODES if each.id == played.record.episode)
        assert replay.compare(episode, played.record, played.native_calls) == ()


def test_other_output_is_found(solved: PlayedRollout, replay: AgentReplay) -> None:
    first, *rest = solved.native_calls
    forged = [replace(first, result=ToolResult("99", is_error=False)), *rest]
    (problem,) = replay.compare(EPISODES[2], solved.record, forged)
    assert "turn 0: call 0 is answered" in problem
    assert "not '99'" in problem


def test_other_verdict_is_found(solved: PlayedRollout, replay: AgentReplay) -> None:
    score = solved.record.score.model_copy(update={"success": False})
    forged = solved.record.model_copy(update={"score": score})
    (problem,) = replay.compare(EPISODES[2], forged, solved.native_calls)
    assert "the verdict is success=True" in problem


def test_other_task_is_found(solved: PlayedRollout, replay: AgentReplay) -> None:
    assert replay.compare(EPISODES[5], solved.record, solved.native_calls) != ()


def test_what_cannot_be_replayed_is_refused(solved: PlayedRollout, replay: AgentReplay, service: GymService) -> None:
    with pytest.raises(UsageError, match="no score"):
        replay.compare(EPISODES[2], solved.record.model_copy(update={"score": None}), solved.native_calls)
    with pytest.raises(UsageError, match="not those of the world's log"):
        replay.compare(EPISODES[2], solved.record, solved.native_calls[1:])
    with pytest.raises(UsageError, match="hosts no agent"):
        AgentReplay(service.address().model_copy(update={"agent_url": None}), TASKS, None)
