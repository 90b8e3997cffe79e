"""Worker processes: started, listened to, stopped; only ever our own.

The driver gives a worker a job file and reads JSON lines from it. A worker that ends without having reported is a
typed fault. When one fails, the others are asked to stop and seal what they have before the fault is raised.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from experiment import errors
from experiment.errors import ExperimentError, FaultError, StoppedError
from experiment.records.base import Record
from experiment.records.job import EVENTS, EvaluateJob, Failed, Job, StarterJob, TrainJob
from experiment.records.recipe import Compute
from experiment.sealing.canonical import decode, encode, encode_record
from experiment.sealing.files import write_atomic

Task = TrainJob | EvaluateJob | StarterJob


@dataclass(frozen=True, slots=True)
class Chain:
    """Jobs that follow one another; each is made when its turn comes."""

    key: str
    jobs: Sequence[Callable[[], Task]]


@dataclass(slots=True)
class _Worker:
    """A running worker."""

    chain: Chain
    remaining: Iterator[Callable[[], Task]]
    process: subprocess.Popen[bytes]
    log_path: Path
    failure: ExperimentError | None = None


@dataclass(slots=True)
class _State:
    """What a pool is busy with."""

    waiting: list[tuple[Chain, Iterator[Callable[[], Task]]]]
    running: dict[int, _Worker] = field(default_factory=dict)
    failures: list[ExperimentError] = field(default_factory=list)


class WorkerPool:
    """Runs chains of jobs, at most `workers` at a time."""

    def __init__(self, compute: Compute, log_dir: Path) -> None:
        self._compute = compute
        self._log_dir = log_dir
        self._lines: queue.Queue[tuple[int, bytes | None]] = queue.Queue()
        self._numbers = itertools.count()
        self._stop_requested = False
        self._state = _State([])

    @property
    def workers(self) -> int:
        """How many workers run at a time."""
        return self._compute.workers

    def request_stop(self) -> None:
        """Ask all workers to seal what they have; a second request ends them at once."""
        again, self._stop_requested = self._stop_requested, True
        self._signal(signal.SIGKILL if again else signal.SIGTERM)

    def run(self, chains: Sequence[Chain], on_event: Callable[[str, Record], None]) -> None:
        """Do all jobs; events arrive one by one, those of one chain in their order.

        Raises:
            StoppedError: A stop was requested; the workers have ended in good order.
            ExperimentError: What a worker reported, or a fault where it reported nothing.
        """
        self._state = state = _State([(chain, iter(chain.jobs)) for chain in chains])
        try:
            while state.waiting or state.running:
                self._start_waiting()
                if state.running:
                    self._handle(on_event)
        except BaseException:
            self._signal(signal.SIGKILL)
            for worker in state.running.values():
                worker.process.wait()
            raise
        if state.failures:
            raise state.failures[0]
        if self._stop_requested:
            message = "the run was asked to stop"
            raise StoppedError(message)

    def _start_waiting(self) -> None:
        state = self._state
        if self._stop_requested or state.failures:
            state.waiting.clear()
        while state.waiting and len(state.running) < self._compute.workers:
            chain, remaining = state.waiting.pop(0)
            make = next(remaining, None)
            if make is not None:
                self._start(chain, remaining, make())

    def _start(self, chain: Chain, remaining: Iterator[Callable[[], Task]], task: Task) -> None:
        number = next(self._numbers)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        stem = f"{os.getpid()}-{number:03d}-{chain.key.replace('/', '-')}"
        job_path, log_path = self._log_dir / f"{stem}.job.json", self._log_dir / f"{stem}.log"
        write_atomic(job_path, encode_record(Job(task=task)))
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "experiment.training.worker", str(job_path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self._compute),
                start_new_session=True,
            )
        self._state.running[number] = _Worker(chain, remaining, process, log_path)
        stream = process.stdout
        if stream is not None:
            threading.Thread(target=self._listen, args=(number, stream), daemon=True).start()

    def _listen(self, number: int, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put((number, line))
        self._lines.put((number, None))

    def _handle(self, on_event: Callable[[str, Record], None]) -> None:
        """Wait for the next line of any worker and act on it."""
        number, line = self._lines.get()
        worker = self._state.running[number]
        if line is None:
            self._finish(number, worker)
            return
        event = _read_event(line, worker.log_path)
        if isinstance(event, Failed):
            worker.failure = _rebuild(event, worker.log_path)
        else:
            try:
                on_event(worker.chain.key, event)
            except ExperimentError as error:
                self._fail(error)

    def _finish(self, number: int, worker: _Worker) -> None:
        code = worker.process.wait()
        del self._state.running[number]
        if code != 0:
            message = f"worker '{worker.chain.key}' ended with code {code}; see {worker.log_path}"
            failure = worker.failure or FaultError(message)
            if not (self._stop_requested and isinstance(failure, StoppedError)):
                self._fail(failure)
            return
        self._state.waiting.insert(0, (worker.chain, worker.remaining))

    def _fail(self, error: ExperimentError) -> None:
        self._state.failures.append(error)
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._state.running.values():
            if worker.process.poll() is None:
                worker.process.send_signal(number)


def _environment(compute: Compute) -> dict[str, str]:
    """The worker's environment: fixed thread counts, deterministic kernels, no network."""
    threads = str(compute.threads)
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    return {
        **os.environ,
        **fixed,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HUB_OFFLINE": "1",
        # Tensors of a step are freed and asked for again in the next one: keep the memory instead of giving it back.
        "MALLOC_MMAP_THRESHOLD_": "4294967296",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
        "PYTHONHASHSEED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


def _read_event(line: bytes, log_path: Path) -> Record:
    try:
        event = decode(line.rstrip(b"\n"))
        if not isinstance(event, dict):
            raise TypeError
        return EVENTS[event["event"]].model_validate_json(encode(event["body"]))
    except (ValueError, KeyError, TypeError) as error:
        message = f"a worker sent a line that is no event ({error}); see {log_path}"
        raise FaultError(message) from error


def _rebuild(event: Failed, log_path: Path) -> ExperimentError:
    cls = getattr(errors, event.error, FaultError)
    message = f"{event.message} (worker log: {log_path})"
    return cls(message) if issubclass(cls, ExperimentError) else FaultError(message)
