"""A worker process: does one job and speaks to the driver in JSON lines on its standard output.

Started by the driver as `python -m experiment.training.worker JOB.json DRIVER`, the last being its process number. It
dies with the driver, seals what it has on SIGTERM, and never writes to the journal.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from experiment.environments.base import Environment
from experiment.environments.catalogue import build_retention, connect_world
from experiment.errors import ExperimentError, PlanError, ServiceError
from experiment.records.base import Record
from experiment.records.job import EvaluateJob, Failed, Job, ServiceAsked, StarterJob, TaskStarted, TrainJob
from experiment.records.plan import Plan
from experiment.records.verdict import Suite
from experiment.sealing.canonical import decode_record, encode

_PR_SET_PDEATHSIG = 1


def main(job_path: str, driver: int | None = None) -> int:
    """Do the job's tasks in order; the exit code is 0, or that of the error that was reported.

    Args:
        job_path: File of the job.
        driver: Process that started this one and that it must not outlive; None where it was started by hand.
    """
    emit = _channel()
    stop = _stop_flag()
    _die_with(driver)
    try:
        for number, task in enumerate(decode_record(Job, Path(job_path).read_bytes()).tasks):
            if stop():
                break
            emit(TaskStarted(number=number))
            _do(task, emit, stop)
    except ExperimentError as error:
        emit(Failed(error=type(error).__name__, message=str(error)))
        return error.exit_code
    return 0


def _do(task: TrainJob | EvaluateJob | StarterJob, emit: Callable[[Record], None], stop: Callable[[], bool]) -> None:
    ask = partial(_ask_for_service, emit)
    # The training stack is imported here, after the signal handlers are in place: the import takes seconds.
    if isinstance(task, StarterJob):
        with _quick_import():
            from experiment.training.starter import make_starter

        with connect_world(task.recipe.world, ask) as world:
            make_starter(task, world, build_retention(), emit)
    elif isinstance(task, TrainJob):
        with _quick_import():
            from experiment.training.train import train

        plan = _load_plan(task.plan_path)
        with connect_world(plan.recipe.world, ask) as world:
            train(task, plan, world, emit, stop)
    else:
        with _quick_import():
            from experiment.training.evaluate import evaluate

        plan = _load_plan(task.plan_path)
        with connect_world(plan.recipe.world, ask) as world:
            worlds: Mapping[Suite, Environment] = {"agent": world, "retention": build_retention()}
            evaluate(task, plan, worlds, emit, stop)


def _ask_for_service(emit: Callable[[Record], None], renew: bool) -> str:  # noqa: FBT001 - the world's own question
    """The address of the world's service, from the driver.

    Raises:
        ServiceError: The driver has none; it knows why.
    """
    emit(ServiceAsked(renew=renew))
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        message = "the driver named no service for the world"
        raise ServiceError(message)
    return answer.rstrip("\n")


@contextmanager
def _quick_import() -> Iterator[None]:
    """Import without garbage collection: the training stack makes millions of objects that all stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _load_plan(path: str) -> Plan:
    try:
        return decode_record(Plan, Path(path).read_bytes())
    except (OSError, ValueError) as error:
        message = f"{path}: not a readable plan: {error}"
        raise PlanError(message) from error


def _channel() -> Callable[[Record], None]:
    """Keep standard output for events alone: libraries that print end up in the log."""
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def emit(record: Record) -> None:
        channel.write(encode({"event": type(record).__name__, "body": record.model_dump(mode="json")}) + b"\n")

    return emit


def _stop_flag() -> Callable[[], bool]:
    """True once SIGTERM or SIGINT has arrived; the current step is then finished and sealed."""
    requested = False

    def note(signum: int, frame: object) -> None:
        nonlocal requested
        requested = True

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return lambda: requested


def _die_with(driver: int | None) -> None:
    """Ask the kernel to end this process when the driver dies, however it dies, and end if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel says nothing of a death before it was asked; an orphan has another parent.
    if driver is not None and os.getppid() != driver:
        sys.exit(f"the driver, process {driver}, is gone")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
