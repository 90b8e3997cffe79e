"""The command line with workers that play back a script: `python -m tests.doubles.stand_in_command run ...`.

`STAND_IN_FAULT=bug` plants a fault of the program in what makes the workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiment.cli.app import main
from experiment.environments.base import Services
from experiment.pipeline.baseline import build_baseline
from experiment.pipeline.run import run
from experiment.pipeline.workers import WorkerPool
from experiment.records.recipe import Compute
from tests.doubles import stand_in_run


def make_pool(compute: Compute, log_dir: Path, *, services: Services) -> WorkerPool:
    """A pool of stand-in workers."""
    if os.environ.get("STAND_IN_FAULT") == "bug":
        raise ZeroDivisionError
    return stand_in_run.make_pool(compute, log_dir, services=services)


def type_in(words: Sequence[str]) -> int:
    """Do what the command does, but for the workers that its pools start; returns its exit code."""
    for command in (run, build_baseline):
        command.__kwdefaults__["make_pool"] = make_pool
    sys.argv = ["experiment", *words]
    return main()


if __name__ == "__main__":
    sys.exit(type_in(sys.argv[1:]))
