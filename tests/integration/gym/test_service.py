"""The real service's life, what a plan freezes of it, and another of Gym's servers by configuration."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from experiment.environments.base import ToolResult
from experiment.environments.nemo_gym import frozen
from experiment.environments.nemo_gym.client import GymClient
from experiment.environments.nemo_gym.environment import GymSession, GymWorld
from experiment.environments.nemo_gym.gym_python import OUR_CONFIG, GymServers
from experiment.environments.nemo_gym.rows import RowTasks
from experiment.environments.nemo_gym.service import GymService
from experiment.errors import PlanError, ServiceError
from tests.doubles.char_stage import EPISODES, play, solution
from tests.doubles.processes import session_members
from tests.integration.gym.conftest import COUNTER, SHIPPED, TASKS

PATIENCE_S = 60.0


def _await(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def installed(gym_python: Path) -> Path:
    """Where Gym is installed."""
    return next((gym_python.parent.parent / "lib").glob("python3*")) / "site-packages"


def test_service_is_one_process_and_stops_without_a_trace(gym_python: Path, tmp_path: Path) -> None:
    service = GymService.start(gym_python, GymServers(), tmp_path, tasks=TASKS)
    service.require_whole()
    assert session_members(service.pid) == [service.pid]
    assert service.address().agent_url is None
    service.stop()
    assert session_members(service.pid) == []
    assert service._process.returncode == 0


def test_killed_service_is_a_fault_in_the_middle_of_a_rollout(gym_python: Path, tmp_path: Path) -> None:
    service = GymService.start(gym_python, GymServers(), tmp_path, tasks=TASKS)
    world = GymWorld(TASKS, GymClient(service.address()))
    (episode,) = world.generate(prefix="e", count=1, seed=1, taken=frozenset())
    session = world.open(episode)
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(ServiceError, match="broke at POST"):
        session.call("nachschlagen", {"schluessel": "Mehl"})
    with pytest.raises(ServiceError, match="broke at POST"):
        session.verify("Antwort: 1")
    # Its process may be gone a moment before its parent can say so.
    with pytest.raises(ServiceError, match="ended with code -9|broke at GET"):
        service.require_whole()
    service.stop()


def test_no_rollout_of_a_service_that_is_killed_counts(
    gym_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = GymService.start(gym_python, GymServers(), tmp_path, tasks=TASKS)
    answered = itertools.count(1)
    call = GymSession.call

    def call_and_kill(self: GymSession, name: str, arguments: Mapping[str, str]) -> ToolResult:
        result = call(self, name, arguments)
        if next(answered) == 7:
            os.kill(service.pid, signal.SIGKILL)
        return result

    monkeypatch.setattr(GymSession, "call", call_and_kill)
    scripts = [*(solution(episode) for episode in EPISODES[:9]), ["Antwort: 1"]]
    with pytest.raises(ServiceError, match="broke at POST"):
        play(scripts, world=GymWorld(TASKS, GymClient(service.address(), patience_s=10.0)))
    assert next(answered) > 7
    service.stop()


def test_stopped_service_that_hangs_is_a_fault(gym_python: Path, tmp_path: Path) -> None:
    service = GymService.start(gym_python, GymServers(), tmp_path, tasks=TASKS)
    client = GymClient(service.address(), patience_s=0.5)
    world = GymWorld(TASKS, client)
    (episode,) = world.generate(prefix="e", count=1, seed=1, taken=frozenset())
    session = world.open(episode)
    os.kill(service.pid, signal.SIGSTOP)
    with pytest.raises(ServiceError, match="TimeoutError"):
        session.call("nachschlagen", {"schluessel": "Mehl"})
    os.kill(service.pid, signal.SIGCONT)
    service.stop()
    assert session_members(service.pid) == []


ENDS = {
    "main thread": "start()\n",
    "other thread": "t = threading.Thread(target=start); t.start(); t.join(); time.sleep(0.5)\n",
    "copied pipe": "start()\nif os.fork() == 0: time.sleep(60); os._exit(0)\n",
}


@pytest.mark.parametrize("how", ENDS)
def test_service_ends_with_an_owner_that_is_killed(gym_python: Path, tmp_path: Path, how: str) -> None:
    code = (
        "import os, threading, time; from pathlib import Path\n"
        "from experiment.environments.nemo_gym import gym_python, service, tasks\n"
        "from experiment.environments.german_tools.environment import GermanTools\n"
        "own, servers, kept = tasks.GermanTasks(GermanTools()), gym_python.GymServers(), []\n"
        "def start():\n"
        f"    s = service.GymService.start(Path({str(gym_python)!r}), servers, Path({str(tmp_path)!r}), tasks=own)\n"
        "    kept.append(s)\n"
        f"{ENDS[how]}"
        "kept[0].require_whole(); print(kept[0].pid, flush=True)\n"
        "time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    pid = int(owner.stdout.readline())
    assert session_members(pid) == [pid]
    owner.kill()
    owner.wait()
    assert _await(lambda: session_members(pid) == [])
    assert len(session_members(owner.pid)) == (how == "copied pipe")
    for each in session_members(owner.pid):
        os.kill(each, signal.SIGKILL)
    owner.stdout.close()


def test_server_of_a_project_of_its_own_is_served(gym_python: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(OUR_CONFIG.parent.parent, project / "resources_servers" / "german_tools")
    config = project / "mine.yaml"
    config.write_text(
        f"config_paths: [{project}/resources_servers/german_tools/configs/{OUR_CONFIG.name}]\n"
        "policy_model: {responses_api_models: {openai_model: {entrypoint: app.py, openai_base_url: 'http://x/v1',"
        " openai_api_key: none, openai_model: policy}}}\n"
    )
    servers = GymServers(configs=(str(config),), server="german_tools")
    service = GymService.start(gym_python, servers, tmp_path / "service", tasks=TASKS)
    service.require_whole()
    service.stop()


def test_broken_configuration_is_named(gym_python: Path, tmp_path: Path) -> None:
    for config, message in (("nowhere.yaml", "was not found"), (str(OUR_CONFIG), "not one named other")):
        servers = GymServers(configs=(config,), server="other")
        with pytest.raises(ServiceError, match=message):
            GymService.start(gym_python, servers, tmp_path, tasks=TASKS)


def test_facts_are_the_same_each_time_and_notice_what_changes(
    gym_python: Path, repository: Path, tmp_path: Path
) -> None:
    lock = repository / "requirements" / "gym.lock"
    facts = dict(frozen.describe(gym_python, GymServers(), lock))
    assert facts["nemo_gym"] == "0.4.0"
    assert tuple(sorted(facts.items())) == frozen.describe(gym_python, GymServers(), lock)
    project = tmp_path / "resources_servers" / "german_tools"
    shutil.copytree(OUR_CONFIG.parent.parent, project)
    config = project / "configs" / OUR_CONFIG.name
    copied = dict(frozen.describe(gym_python, GymServers(configs=(str(config),)), lock))
    assert copied == facts
    config.write_text(config.read_text().replace("max_steps: 64", "max_steps: 63"))
    changed = dict(frozen.describe(gym_python, GymServers(configs=(str(config),)), lock))
    assert {name for name in facts if facts[name] != changed[name]} == {"config", "server_sources"}
    other = dict(frozen.describe(gym_python, COUNTER, lock))
    assert {name for name in facts if facts[name] != other[name]} == {"config", "server", "server_sources"}


def overlay(gym_python: Path, folder: Path) -> Path:
    """An environment that is Gym's, but for files that may be changed; returns its interpreter."""
    source, target = installed(gym_python), folder / "lib" / installed(gym_python).parent.name / "site-packages"
    target.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(gym_python.resolve())
    shutil.copy(gym_python.parent.parent / "pyvenv.cfg", folder)
    for entry in source.iterdir():
        if entry.name != "resources_servers":
            (target / entry.name).symlink_to(entry)
    (target / "resources_servers").mkdir()
    for entry in (source / "resources_servers").iterdir():
        if entry.name != Path(SHIPPED).name:
            (target / "resources_servers" / entry.name).symlink_to(entry)
    shutil.copytree(source / SHIPPED, target / SHIPPED)
    return folder / "bin" / "python"


def test_changed_file_of_gym_is_refused(gym_python: Path, repository: Path, tmp_path: Path) -> None:
    lock, python = repository / "requirements" / "gym.lock", overlay(gym_python, tmp_path / "venv")
    assert frozen.describe(python, COUNTER, lock) == frozen.describe(gym_python, COUNTER, lock)
    with (installed(python) / SHIPPED / "README.md").open("a") as stream:
        stream.write("\n")
    with pytest.raises(PlanError, match=r"1 files of nemo-gym .*README\.md"):
        frozen.describe(python, COUNTER, lock)
    (installed(python) / SHIPPED / "app.py").unlink()
    with pytest.raises(PlanError, match="2 files of nemo-gym"):
        frozen.describe(python, COUNTER, lock)


def test_shipped_server_is_a_world_by_configuration(gym_python: Path, tmp_path: Path) -> None:
    tasks = RowTasks(installed(gym_python) / SHIPPED / "data" / "example.jsonl")
    service = GymService.start(gym_python, COUNTER, tmp_path, tasks=tasks)
    world = GymWorld(tasks, GymClient(service.address()))
    episodes = world.generate(prefix="e", count=4, seed=1, taken=frozenset())
    assert [tool.name for tool in world.tools] == ["increment_counter", "get_counter_value"]
    rows = [tasks.row(episode) for episode in episodes]
    sessions = [world.open(episode) for episode in episodes]
    for row, session in zip(rows, sessions, strict=True):
        missing = str(row["expected_count"] - row["initial_count"])
        assert session.call("increment_counter", {"count": missing}).text == '{"success":true}'
        shown = session.call("get_counter_value", {})
        assert (shown.text, shown.is_error) == (f'{{"count":{row["expected_count"]}}}', False)
    assert sessions[0].call("increment_counter", {"count": "viel"}).is_error
    assert not sessions[1].call("increment_counter", {"count": "1"}).is_error
    scores = [session.verify("Done.") for session in sessions]
    assert [score.success for score in scores] == [True, False, True, True]
    service.stop()
