"""How a process runs under NeMo Gym's own Python: which servers, what it may see, how it is told what to do."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from experiment.environments.nemo_gym import server
from experiment.errors import UsageError
from experiment.sealing.canonical import encode
from experiment.sealing.sources import PACKAGE

_SERVER = Path(server.__file__).resolve().parent
_HOST = _SERVER / "host.py"
OUR_CONFIG = _SERVER / "resources_servers" / "german_tools" / "configs" / "german_tools.yaml"


@dataclass(frozen=True, slots=True)
class GymServers:
    """Which resources server is served, as NeMo Gym configures it."""

    configs: tuple[str, ...] = (str(OUR_CONFIG),)
    """Paths of Gym configurations: absolute, or relative to where Gym itself is installed."""
    server: str | None = None
    """Name of the resources server that is played; None where the configuration has only one."""


def find_gym_python(workspace: Path) -> Path:
    """Return the interpreter of Gym's environment below `workspace`.

    Raises:
        UsageError: It has not been made.
    """
    python = workspace / ".venv-gym" / "bin" / "python"
    if not python.exists():
        msg = f"{python}: NeMo Gym's environment has not been made"
        raise UsageError(msg, remedy="Run `make gym-env`.")
    return python


def start_host(python: Path, folder: Path, settings: dict[str, object], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Return a process that hosts or describes, in a session of its own; its stdin has to stay open.

    Args:
        python: Gym's interpreter.
        folder: Where it works; private to it, because Gym reads and writes files where it is.
        settings: As `server/host.py` lists them; `package` is added.
        log: Where its output goes.

    Raises:
        UsageError: There is no such interpreter.
    """
    environment = {
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        "TMPDIR": str(folder),
        "WANDB_MODE": "disabled",
    }
    try:
        process = subprocess.Popen(
            [str(python), "-I", "-B", str(_HOST)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
    except OSError as error:
        msg = f"{python}: NeMo Gym's interpreter cannot be run ({error.strerror})"
        raise UsageError(msg, remedy="Run `make gym-env`.") from error
    try:
        process.stdin.write(encode({**settings, "package": str(PACKAGE)}) + b"\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    except BrokenPipeError:
        pass  # It has ended already; whoever waits for it finds that out.
    return process
