"""A starting policy that is stopped while it is made leaves nothing half-done, and no worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.errors import StoppedError

MAKING = """
import signal
import sys
from functools import partial
from experiment.errors import ExperimentError
from experiment.pipeline.baseline import build_baseline
from experiment.pipeline.workers import WorkerPool
from experiment.records.recipe import Inputs
from tests.doubles.small_plan import small_recipe
from tests.doubles.stand_in_run import Silent

class Telling(Silent):
    def progress(self, key, label, done, total):
        print(label, flush=True)

# A shell that started the tests in the background has told all of them to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
recipe = small_recipe().model_copy(update={"inputs": Inputs(baseline=sys.argv[1])})
try:
    build_baseline(recipe, Telling(), make_pool=partial(WorkerPool, module="tests.doubles.sleeping_worker"))
except ExperimentError as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("asked_by", "code"), [(signal.SIGTERM, StoppedError.exit_code), (signal.SIGINT, -signal.SIGINT)]
)
def test_a_stopped_baseline_leaves_nothing_half_done(
    tmp_path: Path, repository: Path, asked_by: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKING, str(tmp_path / "policy")],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as making:
        assert making.stdout is not None
        assert making.stdout.readline() == b"asleep\n"
        assert any(path.name.startswith(".policy.partial-") for path in tmp_path.iterdir())
        os.kill(making.pid, asked_by)
        assert making.wait(timeout=30) == code
    assert [path.name for path in tmp_path.iterdir()] == [".policy.logs"]
    assert _works_on(tmp_path) == []


def _works_on(folder: Path) -> list[str]:
    """Processes that name the folder in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if os.fsencode(folder) in path.read_bytes() else []
        except OSError:
            continue
    return found
