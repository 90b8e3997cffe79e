"""The life of a NeMo Gym service, played by a stand-in: every way to break is named, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym import gym_python
from experiment.environments.nemo_gym import service as service_module
from experiment.environments.nemo_gym.client import GymClient
from experiment.environments.nemo_gym.environment import GymWorld
from experiment.environments.nemo_gym.gym_python import GymServers
from experiment.environments.nemo_gym.service import GymService
from experiment.environments.nemo_gym.tasks import GermanTasks
from experiment.errors import ServiceError, UsageError
from tests.doubles import stand_in_gym
from tests.doubles.processes import session_members

TASKS = GermanTasks(GermanTools())
PATIENCE_S = 60.0


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., GymService]]:
    monkeypatch.setattr(gym_python, "_HOST", Path(stand_in_gym.__file__))
    started: list[GymService] = []

    def start_one(mode: str = "", patience_s: float = PATIENCE_S) -> GymService:
        folder = tmp_path / f"service-{len(started)}"
        folder.mkdir()
        (folder / "mode").write_text(mode)
        started.append(GymService.start(Path(sys.executable), GymServers(), folder, tasks=TASKS, patience_s=patience_s))
        return started[-1]

    yield start_one
    for service in started:
        service.stop()


def _await(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_service_is_whole_until_it_is_stopped(start: Callable[..., GymService]) -> None:
    service = start()
    service.require_whole()
    assert session_members(service.pid) == [service.pid]
    assert service.address().pid == service.pid
    service.stop()
    assert session_members(service.pid) == []
    with pytest.raises(ServiceError, match="ended with code 0"):
        service.require_whole()
    service.stop()


def test_two_services_stand_side_by_side(start: Callable[..., GymService]) -> None:
    one, other = start(), start()
    assert one.address().server_url != other.address().server_url
    one.stop()
    other.require_whole()


@pytest.mark.parametrize(
    ("mode", "patience_s", "message"),
    [
        ("dies", PATIENCE_S, "ended with code 3 while it started: stand-in: dies"),
        ("slow", 1.0, "did not start in 1 s: stand-in: slow"),
        ("impostor", PATIENCE_S, "was written by process 1"),
        ("lenient", PATIENCE_S, "self-test 'probe-0001' as True, not False"),
    ],
)
def test_start_that_fails_is_named_and_leaves_nothing(
    start: Callable[..., GymService],
    mode: str,
    patience_s: float,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids: list[int] = []
    real = service_module.start_host

    def remember(*args: object) -> subprocess.Popen[bytes]:
        process = real(*args)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(service_module, "start_host", remember)
    with pytest.raises(ServiceError, match=message):
        start(mode, patience_s)
    assert [session_members(pid) for pid in pids] == [[]]


def test_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be run"):
        GymService.start(tmp_path / "python", GymServers(), tmp_path / "service", tasks=TASKS)


def test_killed_service_is_a_fault_in_the_middle_of_a_rollout(start: Callable[..., GymService]) -> None:
    service = start()
    world = GymWorld(TASKS, GymClient(service.address()))
    (episode,) = world.generate(prefix="e", count=1, seed=1, taken=frozenset())
    session = world.open(episode)
    os.kill(service.pid, signal.SIGKILL)
    _await(lambda: session_members(service.pid) == [])
    with pytest.raises(ServiceError, match="broke at POST /nachschlagen"):
        session.call("nachschlagen", {"schluessel": "Mehl"})
    started = time.monotonic()
    with pytest.raises(ServiceError, match="broke at POST /nachschlagen"):
        session.verify("Antwort: 1")
    with pytest.raises(ServiceError, match="ended with code -9"):
        service.require_whole()
    with pytest.raises(ServiceError, match="broke at POST /nachschlagen"):
        world.open(episode)
    with pytest.raises(ServiceError):
        world.open(episode)
    assert time.monotonic() - started < 1, "a service that is lost is asked again"


def test_port_of_a_dead_service_that_another_took_is_a_fault(start: Callable[..., GymService]) -> None:
    service, other = start(), start()
    lost = service.address()
    client = GymClient(lost.model_copy(update={"server_url": other.address().server_url}))
    with pytest.raises(ServiceError, match="a server that is not ours"):
        client.require_alive()
    (episode,) = TASKS.generate(prefix="e", count=1, seed=1, taken=frozenset())
    with pytest.raises(ServiceError, match="a server that is not ours"):
        GymWorld(TASKS, client).open(episode)


def test_foreign_server_on_the_very_port_is_a_fault(start: Callable[..., GymService]) -> None:
    service = start()
    port = int(service.address().server_url.rpartition(":")[2])
    client = GymClient(service.address(), patience_s=5.0)
    client.require_alive()
    service.stop()
    foreign = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    foreign.bind(("127.0.0.1", port))
    foreign.listen()

    def answer() -> None:
        connection, _ = foreign.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ServiceError, match="a server that is not ours"):
        client.require_alive()
    thread.join()
    foreign.close()


@pytest.mark.parametrize("mode", ["", "parent"])
def test_stop_takes_what_the_service_started_with_it(start: Callable[..., GymService], mode: str) -> None:
    service = start(mode)
    assert len(session_members(service.pid)) == (2 if mode else 1)
    service.stop()
    assert session_members(service.pid) == []


def test_stop_leaves_other_processes_alone(start: Callable[..., GymService]) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    start("parent").stop()
    assert bystander.poll() is None
    assert own.poll() is None
    for process in (bystander, own):
        process.kill()
        process.wait()


def test_stubborn_service_is_ended_all_the_same(
    start: Callable[..., GymService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_STOP_PATIENCE_S", 0.5)
    service = start("stubborn")
    service.stop()
    assert session_members(service.pid) == []


def test_service_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from experiment.environments.nemo_gym import gym_python, service, tasks\n"
        "from experiment.environments.german_tools.environment import GermanTools\n"
        f"gym_python._HOST = Path({stand_in_gym.__file__!r})\n"
        "own = tasks.GermanTasks(GermanTools())\n"
        f"folder, servers = Path({str(tmp_path)!r}), gym_python.GymServers()\n"
        "s = service.GymService.start(Path(sys.executable), servers, folder, tasks=own)\n"
        "print(s.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    assert session_members(pid) == [pid]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert _await(lambda: session_members(pid) == [])
