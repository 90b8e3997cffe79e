"""What of NeMo Gym a plan freezes: versions, every installed byte, the lock, the configuration and the server code."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

from experiment.environments.nemo_gym.gym_python import GymServers, start_host
from experiment.errors import PlanError, ServiceError
from experiment.sealing.digests import digest_file

_PATIENCE_S = 180.0
_LOG_TAIL = 2000
_NAMED = 3
"""How many damaged files a message names."""


def describe(python: Path, servers: GymServers, lock: Path) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of everything that has to stay what it is, sorted; the same on every start.

    `config` is the configuration as Gym resolves it, without hosts, ports and paths; `distributions` all that is
    installed; `nemo_gym_files` the files of NeMo Gym, each compared with the digest it was installed with;
    `server_sources` the code that hosts and the code that is hosted, where it is not Gym's own.

    Args:
        python: Gym's interpreter.
        servers: What is served.
        lock: The lock file of Gym's environment.

    Raises:
        UsageError: There is no such interpreter, or the lock cannot be read.
        PlanError: A file of NeMo Gym is not what was installed.
        ServiceError: The environment could not be described in time.
    """
    with tempfile.TemporaryDirectory(prefix="gym-facts-") as name:
        folder = Path(name)
        facts, damage = _run(python, servers, folder)
    if damage:
        named = ", ".join(damage[:_NAMED])
        msg = f"{python}: {len(damage)} files of nemo-gym are not what was installed ({named})"
        raise PlanError(msg, remedy="Remove .venv-gym and run `make gym-env`.")
    return tuple(sorted({**facts, "lock": digest_file(lock)}.items()))


def _run(python: Path, servers: GymServers, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the facts and the damaged files."""
    settings: dict[str, object] = {
        "mode": "describe",
        "configs": list(servers.configs),
        "owner": None,
        "result": str(folder / "facts.json"),
        "server": servers.server,
    }
    with (folder / "facts.log").open("w+b") as log:
        process = start_host(python, folder, settings, log)
        try:
            code = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        if code != 0:
            log.seek(0)
            tail = log.read()[-_LOG_TAIL:].decode(errors="replace").strip()
            msg = f"{python}: NeMo Gym's environment cannot be described (code {code}): {tail}"
            raise ServiceError(msg)
    result = json.loads((folder / "facts.json").read_bytes())
    return result["facts"], result["damage"]
