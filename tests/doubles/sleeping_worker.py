"""The real worker process with a job that sleeps: what `training/worker.py` does around any job."""

from __future__ import annotations

import sys
import time

from experiment.errors import StoppedError
from experiment.records.job import Progressed
from experiment.training import worker


def _sleep(task, emit, stop_requested) -> None:
    print("a library prints something")
    emit(Progressed(label="asleep", done=0, total=1))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if stop_requested():
            message = "woken"
            raise StoppedError(message)
        time.sleep(0.01)


worker._do = _sleep

if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1], *map(int, sys.argv[2:])))
