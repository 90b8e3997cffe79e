"""The real worker process with a job that asks for its world's service and tells what it was answered."""

from __future__ import annotations

import sys

from experiment.records.job import Progressed
from experiment.training import worker


def _ask(task, emit, stop_requested) -> None:
    for renew in (False, True):
        emit(Progressed(label=worker._ask_for_service(emit, renew), done=0, total=1))


worker._do = _ask

if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1], *map(int, sys.argv[2:])))
