"""The German world behind a real NeMo Gym service is the German world."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from experiment.environments.base import ScriptedTurn
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.client import GymClient
from experiment.environments.nemo_gym.environment import GymWorld
from experiment.environments.nemo_gym.service import GymService
from experiment.errors import FaultError, ServiceError
from experiment.records.recipe import Sampling
from experiment.rollout.alignment import verify_alignment
from experiment.rollout.chat import turn_text
from experiment.rollout.episode import Attempt, PlayedRollout, RolloutLoop
from tests.doubles.char_stage import CHAT, EPISODES, SAMPLING, Turn, lookup, play, seed, solution, turn_ids
from tests.doubles.drawn_scripts import DrawnScripts

IN_PROCESS = GermanTools()
ALL_FORMATS = GermanTools(number_formats=("integer", "decimal", "thousands", "negative"))


def call(name: str, **arguments: str) -> str:
    return turn_text(ScriptedTurn(text="", calls=((name, tuple(sorted(arguments.items()))),)))


def scripts() -> list[list[Turn]]:
    """Solved, unsolved, hostile and cut rollouts, one for each of the first episodes."""
    first = [solution(episode) for episode in EPISODES]
    return [
        first[0],
        first[1],
        first[2],
        ["Antwort: 1"],
        [lookup("gibt es nicht"), "Antwort: 1"],
        [
            call("rechne", a="1,234", b="1", operation="plus"),
            call("rechne", a="1", b="0", operation="geteilt"),
            "Antwort: 5",
        ],
        [call("seed_session", schluessel="x"), call("verify", x="y"), *first[6]],
        ['<tool_call>{"name": "nachschlagen"}</tool_call>', *first[7]],
        ["<tool_call>kein JSON</tool_call>", "Antwort: 1"],
        [lookup("Äpfel") + "\n" + lookup("Käse\u2028\u0000\U0001f642"), "Antwort: ½"],
        [lookup("Salz")] * 6,
        [lookup("x" * 3000), *first[11]],
        [call("rechne", a="9" * 30, b="1", operation="hoch"), "Antwort: −5"],
        [lookup("Mehl"), turn_ids("Antwort: 5")[:-1] * 120],
    ]


def drawn(world: GymWorld | GermanTools) -> list[PlayedRollout]:
    """Four attempts at each of six prompts, each drawn from three scripts."""
    choices = {}
    for episode in EPISODES[:6]:
        texts = [solution(episode), ["Antwort: 1"], [lookup("Öl"), *solution(episode)]]
        choices[CHAT.prompt_ids(episode.messages)] = [[turn_ids(turn) for turn in text] for text in texts]
    loop = RolloutLoop(DrawnScripts(choices), CHAT, world, SAMPLING)
    return loop.play([Attempt(episode, number) for episode in EPISODES[:6] for number in range(4)], seed)


def test_rollouts_are_the_same_as_without_a_service(world: GymWorld) -> None:
    here, there = play(scripts(), world=IN_PROCESS), play(scripts(), world=world)
    assert [each.record for each in there] == [each.record for each in here]
    assert there == here
    assert {each.record.end for each in there} == {"answer", "turn_limit", "length"}
    assert {each.record.score.success for each in there} == {True, False}
    for each in there:
        verify_alignment(each, CHAT, world.tools)


def test_drawn_rollouts_are_the_same_as_without_a_service(world: GymWorld) -> None:
    here, there = drawn(IN_PROCESS), drawn(world)
    assert there == here
    assert len({each.completion_ids for each in there}) > 10
    assert {each.record.score.success for each in there} == {True, False}


def test_cut_observations_are_the_same(world: GymWorld) -> None:
    sampling = Sampling(
        max_turns=6, max_turn_tokens=400, max_completion_tokens=4000, batch_size=3, max_observation_chars=8
    )
    assert play(scripts(), world=world, sampling=sampling) == play(scripts(), world=IN_PROCESS, sampling=sampling)


@pytest.mark.parametrize("family", ["direct", "one_step", "two_step"])
def test_solver_solves_and_bad_habits_fail_in_every_number_format(world: GymWorld, family: str) -> None:
    source = GermanTools((family,), ("integer", "decimal", "thousands", "negative"))
    for episode in source.generate(prefix="e", count=12, seed=8, taken=frozenset()):
        plays = [source.solve(episode), source.skip_calculation(episode), source.repeat_calculation(episode)]
        for turns, success in zip(plays, (True, False, False), strict=True):
            sessions = (world.open(episode), source.open(episode))
            for turn in turns:
                for name, arguments in turn.calls:
                    results = [session.call(name, dict(arguments)) for session in sessions]
                    assert results[0] == results[1]
            scores = [session.verify(turns[-1].text) for session in sessions]
            assert scores[0] == scores[1]
            assert scores[0].success is success


def test_sessions_of_many_threads_stay_apart(world: GymWorld) -> None:
    episodes = IN_PROCESS.generate(prefix="e", count=48, seed=9, taken=frozenset())

    def play_one(number: int) -> bool:
        episode = episodes[number % 48]
        turns = world.solve(episode) if number % 2 else (ScriptedTurn("Antwort: 1", ()),)
        session = world.open(episode)
        for turn in turns:
            for name, arguments in turn.calls:
                session.call(name, dict(arguments))
        return session.verify(turns[-1].text).success

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(play_one, range(192))) == [bool(number % 2) for number in range(192)]


def test_session_ends_with_its_verdict(world: GymWorld) -> None:
    session = world.open(EPISODES[0])
    session.verify("Antwort: 1")
    with pytest.raises(FaultError, match="judged once"):
        session.verify("Antwort: 1")
    with pytest.raises(ServiceError, match="status 409"):
        session.call("nachschlagen", {"schluessel": "Mehl"})


def test_closed_session_is_gone(world: GymWorld) -> None:
    session, kept = world.open(EPISODES[0]), world.open(EPISODES[0])
    session.close()
    session.close()
    with pytest.raises(ServiceError, match="status 409"):
        session.call("nachschlagen", {"schluessel": "Mehl"})
    with pytest.raises(FaultError, match="judged once"):
        session.verify("Antwort: 1")
    kept.verify("Antwort: 1")
    kept.close()


def test_session_is_seeded_once_and_undeclared_arguments_are_refused(service: GymService, world: GymWorld) -> None:
    client, session = GymClient(service.address()), world.open(EPISODES[0])
    assert client.post("/seed_session", session._row, session._cookies).status == 409
    for body in (b"{", b"[]", b"{}", b'{"schluessel": 5}', b'{"schluessel": "a", "b": "c"}'):
        reply = client.post("/nachschlagen", body, session._cookies)
        assert (reply.status, reply.body.decode()) == (422, "Fehler: Die Argumente passen nicht zum Werkzeug.")
    assert client.post("/seed_session", b'{"verifier_metadata": {"episode": {}}}', {}).status == 422
    with pytest.raises(ServiceError, match="status 422"):
        world.open(EPISODES[0].model_copy(update={"world": "delta_world"}))
    client.close()


def test_call_behind_the_back_of_the_client_is_noticed(service: GymService, world: GymWorld) -> None:
    client, session = GymClient(service.address()), world.open(EPISODES[0])
    session.call("nachschlagen", {"schluessel": "Mehl"})
    body = json.JSONEncoder().encode({"schluessel": "Mehl"}).encode()
    assert client.post("/nachschlagen", body, session._cookies).status in {200, 400}
    with pytest.raises(ServiceError, match="executed 2 calls, which are not the 1 made here"):
        session.verify("Antwort: 1")
    client.close()
