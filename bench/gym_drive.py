"""Episodes per second through a NeMo Gym service: driven directly, and through Gym's own agent, in one run.

Run from the repository root after `make gym-env`: `python bench/gym_drive.py`. Every episode is a `two_step` one of the
German world with three tool calls: five requests when it is driven directly (seed, tools, verify); through the agent
one request of ours and, inside, four to a scripted policy in this process. Every verdict has to be success. Prints one
line per way and number of episodes at a time, the ways by turns in each round, and the medians as `name: value`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.client import GymClient
from experiment.environments.nemo_gym.environment import GymWorld, play_probe
from experiment.environments.nemo_gym.gym_python import GymServers, find_gym_python
from experiment.environments.nemo_gym.messages import write_arguments
from experiment.environments.nemo_gym.replay_policy import KEY, ReplayedTurn, ReplayPolicy
from experiment.environments.nemo_gym.service import GymService
from experiment.environments.nemo_gym.tasks import GermanTasks, Probe
from experiment.records.episode import Episode
from experiment.sealing.canonical import encode

CONCURRENCIES, EPISODES, ROUNDS = (1, 8, 32), 160, 5
TASKS = GermanTasks(GermanTools(("two_step",)))
TOKENS = 40
"""Token ids of a turn on the agent's way, about as many as a turn has."""


def replayed(world: GymWorld, episode: Episode) -> list[ReplayedTurn]:
    """Return the solver's turns with what the tools answer."""
    session, turns, context = world.open(episode), [], TOKENS
    for turn in world.solve(episode):
        outputs = tuple(session.call(name, dict(arguments)).text for name, arguments in turn.calls)
        calls = tuple((name, write_arguments(dict(arguments))) for name, arguments in turn.calls)
        ids = tuple(range(TOKENS))
        turns.append(ReplayedTurn(calls, outputs, turn.text, tuple(range(context)), ids, (-0.5,) * TOKENS))
        context += 2 * TOKENS
    session.verify(world.solve(episode)[-1].text)
    return turns


def play_direct(world: GymWorld, episode: Episode) -> None:
    """Play an episode on the resources server."""
    play_probe(world, Probe(episode, world.solve(episode), success=True))


def play_agent(agent: GymClient, episode: Episode) -> None:
    """Have Gym's agent play an episode that the policy endpoint knows."""
    row = TASKS.row(episode)
    row["responses_create_params"] = {**row["responses_create_params"], "metadata": {KEY: episode.id}}  # type: ignore[dict-item]
    reply = agent.post("/run", encode(row), {})
    if reply.status != 200 or json.loads(reply.body)["reward"] != 1.0:
        print(f"{episode.id}: {reply.status} {reply.body[:500]!r}")
        raise SystemExit(1)


def rate(play: Callable[[Episode], None], episodes: Sequence[Episode], concurrency: int) -> float:
    """Return episodes per second."""
    with ThreadPoolExecutor(concurrency) as pool:
        start = time.perf_counter()
        list(pool.map(play, episodes))
        return len(episodes) / (time.perf_counter() - start)


def main() -> None:
    """Print all rates."""
    policy, folder = ReplayPolicy.start(), Path(tempfile.mkdtemp(prefix="gym-drive-"))
    start = time.perf_counter()
    service = GymService.start(find_gym_python(Path.cwd()), GymServers(), folder, tasks=TASKS, policy=policy.place)
    print(f"start_s: {time.perf_counter() - start:.1f}")
    client = GymClient(service.address())
    agent = GymClient(service.address(), base=service.address().agent_url)
    try:
        world = GymWorld(TASKS, client)
        episodes = world.generate(prefix="bench", count=EPISODES, seed=7, taken=frozenset())
        for episode in episodes:
            policy.add(episode.id, replayed(world, episode))
        ways: dict[str, Callable[[Episode], None]] = {
            "direct": lambda episode: play_direct(world, episode),
            "agent": lambda episode: play_agent(agent, episode),
        }
        rates: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for concurrency in CONCURRENCIES:
                for way, play in ways.items():
                    rates.setdefault((way, concurrency), []).append(rate(play, episodes, concurrency))
        for (way, concurrency), values in rates.items():
            print(f"{way}_{concurrency}: {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
        for concurrency in CONCURRENCIES:
            ratios = [d / a for d, a in zip(rates["direct", concurrency], rates["agent", concurrency], strict=True)]
            print(f"ratio_{concurrency}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    finally:
        service.stop()
        policy.stop()


if __name__ == "__main__":
    main()
