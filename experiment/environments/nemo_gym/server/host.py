"""The first thing that runs under NeMo Gym's Python: `python -I -B host.py`, with one line of settings on stdin.

Stdin stays open as long as the owner lives; its end ends this process, and so does the end of the thread that started
it. Of this package's own environment nothing but the package itself becomes importable here.

Settings: `mode` (`serve` or `describe`), `result` (path of the JSON that is written when there is something to say),
`package` (folder of `experiment`), `owner` (process id whose end is waited for, or null), and what the mode needs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Read the settings and do what they say; returns the exit code."""
    settings = json.loads(sys.stdin.buffer.readline())
    if settings["owner"] is not None and not _die_with(settings["owner"]):
        return 1
    _admit(settings["package"])
    if settings["mode"] == "describe":
        from experiment.environments.nemo_gym.server.facts import write_facts

        write_facts(settings)
        return 0
    from experiment.environments.nemo_gym.server.serving import serve

    return serve(settings)


def _die_with(owner: int) -> bool:
    """Have the kernel end this process with the thread that made it; False where that has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == owner


def _admit(folder: str) -> None:
    """Make the package `experiment` importable without what lies beside it."""
    spec: Any = importlib.util.spec_from_file_location(
        "experiment", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["experiment"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.exit(main())
