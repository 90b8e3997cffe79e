"""A NeMo Gym service of our own: started, told from any other, watched, stopped. Only ever ours.

It is one process that leads its own session. It ends when its owner's end of a pipe closes, which no signal can
prevent, and with the thread that started it. What it leaves behind is found by the session, never by name or port.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from pathlib import Path

from experiment.environments.nemo_gym.client import GymAddress, GymClient
from experiment.environments.nemo_gym.environment import GymWorld, play_probe
from experiment.environments.nemo_gym.gym_python import GymServers, start_host
from experiment.environments.nemo_gym.tasks import GymTasks
from experiment.errors import ServiceError

_START_PATIENCE_S = 180.0
_STOP_PATIENCE_S = 8.0
_POLL_S = 0.02
_LOG_TAIL = 2000
_SESSION_FIELD, _START_FIELD = 3, 19
"""Places in `/proc/PID/stat` after the name."""


class GymService:
    """A running service; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._born = _stat(process.pid)[1]
        self._address: GymAddress | None = None
        self._client: GymClient | None = None

    @classmethod
    def start(
        cls,
        python: Path,
        servers: GymServers,
        folder: Path,
        *,
        tasks: GymTasks,
        policy: tuple[str, int] | None = None,
        patience_s: float = _START_PATIENCE_S,
    ) -> GymService:
        """Return a service that has passed its self-test.

        From the main thread the service ends with this process even where a copy of its pipe lives on elsewhere; from
        another thread, which may end before the service does, the pipe alone decides.

        Args:
            python: Gym's interpreter.
            servers: What is served.
            folder: Made, and private to the service: its log and what Gym writes.
            tasks: The world that is served; it says what the self-test plays.
            policy: Host and port of a policy endpoint; Gym's agent is hosted only with one.
            patience_s: How long the start may take.

        Raises:
            UsageError: There is no such interpreter.
            ServiceError: It did not start in time, or fails its self-test.
        """
        folder = folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ready, identity = folder / "ready.json", secrets.token_hex(16)
        ready.unlink(missing_ok=True)
        is_main = threading.current_thread() is threading.main_thread()
        settings: dict[str, object] = {
            "mode": "serve",
            "configs": list(servers.configs),
            "identity": identity,
            "owner": os.getpid() if is_main else None,
            "policy": list(policy) if policy else None,
            "result": str(ready),
            "server": servers.server,
        }
        with (folder / "service.log").open("wb") as log:
            service = cls(start_host(python, folder, settings, log), folder)
        try:
            service._pass_self_test(service._await_address(ready, identity, patience_s), tasks)
        except BaseException:
            service.stop()
            raise
        return service

    @property
    def pid(self) -> int:
        """Process id of the service, which is the id of its session as well."""
        return self._process.pid

    def address(self) -> GymAddress:
        """Return what another process needs to play in the service."""
        if self._address is None:
            msg = f"{self._folder}: the NeMo Gym service has no address yet"
            raise ServiceError(msg)
        return self._address

    def require_whole(self) -> None:
        """Return only if the service lives, answers, and is the one that was started.

        Raises:
            ServiceError: It does not.
        """
        code = self._process.poll()
        if code is not None or self._client is None:
            msg = f"{self._folder / 'service.log'}: the NeMo Gym service ended with code {code}: {self._log_tail()}"
            raise ServiceError(msg)
        self._client.require_alive()

    def stop(self) -> None:
        """Afterwards none of the service's processes runs; its folder stays. A second call does nothing."""
        if self._client is not None:
            self._client.close()
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        # Before it serves, it does not look whether its owner is there.
        for number in (None, signal.SIGTERM, signal.SIGKILL)[self._address is None :]:
            if number is not None:
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_PATIENCE_S)
                break
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while (left := self._members()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def _pass_self_test(self, address: GymAddress, tasks: GymTasks) -> None:
        self._address, self._client = address, GymClient(address)
        self._client.require_alive()
        for probe in tasks.probes():
            play_probe(GymWorld(tasks, self._client), probe)

    def _members(self) -> list[int]:
        """Return the processes of the service's session, as long as the session is the service's."""
        leader = _stat(self.pid)
        if leader[1] not in {0, self._born}:
            # The number was given to another process, which it is only once the session is empty.
            return []
        running = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in running if _stat(pid)[0] == self.pid]

    def _await_address(self, ready: Path, identity: str, patience_s: float) -> GymAddress:
        deadline, log = time.monotonic() + patience_s, self._folder / "service.log"
        while not ready.exists():
            code = self._process.poll()
            if code is not None:
                msg = f"{log}: the NeMo Gym service ended with code {code} while it started: {self._log_tail()}"
                raise ServiceError(msg)
            if time.monotonic() > deadline:
                msg = f"{log}: the NeMo Gym service did not start in {patience_s:g} s: {self._log_tail()}"
                raise ServiceError(msg)
            time.sleep(_POLL_S)
        facts = json.loads(ready.read_bytes())
        if (facts["identity"], facts["pid"], facts["session"]) != (identity, self.pid, self.pid):
            msg = f"{ready}: was written by process {facts['pid']}, not by the service {self.pid} that was started"
            raise ServiceError(msg)
        urls = facts["servers"]
        return GymAddress(
            server_url=urls[facts["server"]],
            agent_url=urls[facts["agent"]] if facts["agent"] else None,
            identity=identity,
            pid=self.pid,
        )

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / "service.log").read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
        return ""


def _stat(pid: int) -> tuple[int, int]:
    """Return session and start time of a process; zeros where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[_SESSION_FIELD]), int(fields[_START_FIELD])
