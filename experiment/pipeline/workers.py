"""Worker processes: started, listened to, stopped; only ever our own.

The driver gives a worker a job file and reads JSON lines from it. A worker that ends without having reported, or that
sends something else, is a typed fault. When one fails, the others are asked to stop and seal what they have before the
fault is raised.
"""

from __future__ import annotations

import contextlib
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
from experiment.environments.base import Services
from experiment.errors import ExperimentError, FaultError, StoppedError
from experiment.records.base import Record
from experiment.records.job import EVENTS, EvaluateJob, Failed, Job, ServiceAsked, StarterJob, TaskStarted, TrainJob
from experiment.records.recipe import Compute
from experiment.sealing.canonical import decode, encode, encode_record
from experiment.sealing.files import write_atomic

Task = TrainJob | EvaluateJob | StarterJob

_TICK_S = 5.0
"""Longest time without looking whether the work may go on."""

_OURS = (signal.SIGTERM, signal.SIGKILL)
"""Signals that a stop sends to workers."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Jobs that follow one another, each in a process of its own and made when its turn comes."""

    keys: tuple[str, ...]
    """Names of the tasks; every job of the chain has one task for each."""
    jobs: Sequence[Callable[[], Sequence[Task]]]

    @property
    def key(self) -> str:
        """Name of the chain, for messages and log files."""
        return "+".join(self.keys)


@dataclass(slots=True)
class _Worker:
    """A running worker."""

    chain: Chain
    remaining: Iterator[Callable[[], Sequence[Task]]]
    process: subprocess.Popen[bytes]
    log_path: Path
    key: str
    """Name of the task it is at."""
    slot: int
    """Its place among those that run at a time."""
    failure: ExperimentError | None = None
    is_refused: bool = False
    """Something that it sent was refused, and what follows from that must not be recorded."""


@dataclass(slots=True)
class _State:
    """What a pool is busy with."""

    waiting: list[tuple[Chain, Iterator[Callable[[], Sequence[Task]]]]]
    running: dict[int, _Worker] = field(default_factory=dict)
    failures: list[ExperimentError] = field(default_factory=list)


class WorkerPool:
    """Runs chains of jobs, at most `workers` at a time."""

    def __init__(
        self,
        compute: Compute,
        log_dir: Path,
        *,
        module: str = "experiment.training.worker",
        services: Services | None = None,
    ) -> None:
        self._compute = compute
        self._services = services
        self._log_dir = log_dir
        self._module = module
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

    def run(
        self, chains: Sequence[Chain], on_event: Callable[[str, Record], None], may_go_on: Callable[[], None]
    ) -> None:
        """Do all jobs; events arrive one by one, those of one chain in their order.

        Args:
            chains: What to do.
            on_event: Takes an event of the task with the given key.
            may_go_on: Called after each event and every few seconds; raises where the work has to stop.

        Raises:
            StoppedError: A stop was requested; the workers have ended in good order.
            ExperimentError: What a worker, `on_event` or `may_go_on` reported, or a fault where a worker reported
                nothing.
        """
        self._state = state = _State([(chain, iter(chain.jobs)) for chain in chains])
        try:
            while state.waiting or state.running:
                self._start_waiting()
                if state.running:
                    self._handle(on_event)
                    self._check(may_go_on)
        except BaseException:
            self._signal(signal.SIGKILL)
            for worker in state.running.values():
                worker.process.wait()
                _close_input(worker)
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

    def _start(self, chain: Chain, remaining: Iterator[Callable[[], Sequence[Task]]], tasks: Sequence[Task]) -> None:
        number = next(self._numbers)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        stem = f"{os.getpid()}-{number:03d}-{chain.key.replace('/', '-')}"
        job_path, log_path = self._log_dir / f"{stem}.job.json", self._log_dir / f"{stem}.log"
        write_atomic(job_path, encode_record(Job(tasks=tuple(tasks))))
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(job_path), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self._compute),
                start_new_session=True,
            )
        taken = {worker.slot for worker in self._state.running.values()}
        slot = next(each for each in itertools.count() if each not in taken)
        self._state.running[number] = _Worker(chain, remaining, process, log_path, chain.keys[0], slot)
        if self._stop_requested:
            # The request came while the worker was being started, so it was not sent to it.
            process.send_signal(signal.SIGTERM)
        stream = process.stdout
        if stream is not None:
            threading.Thread(target=self._listen, args=(number, stream), daemon=True).start()

    def _listen(self, number: int, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.put((number, line))
        self._lines.put((number, None))

    def _handle(self, on_event: Callable[[str, Record], None]) -> None:
        """Wait a while for the next line of any worker and act on it."""
        try:
            number, line = self._lines.get(timeout=_TICK_S)
        except queue.Empty:
            return
        worker = self._state.running[number]
        if line is None:
            self._finish(number, worker)
            return
        if worker.is_refused:
            return
        try:
            event = _read_event(line, worker.log_path)
            if isinstance(event, Failed):
                worker.failure = _rebuild(event, worker.log_path)
            elif isinstance(event, TaskStarted):
                worker.key = _key_of(worker, event)
            elif isinstance(event, ServiceAsked):
                self._answer(worker, event)
            else:
                on_event(worker.key, event)
        except ExperimentError as error:
            worker.is_refused = True
            # Whoever waits for an answer sees that there will be none.
            _close_input(worker)
            self._fail(error)

    def _answer(self, worker: _Worker, event: ServiceAsked) -> None:
        """Tell a worker where its world's service is, which then runs."""
        address = self._services.address(worker.slot, renew=event.renew) if self._services else ""
        stream = worker.process.stdin
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # a worker that died meanwhile is noticed by its end
                stream.write(address.encode() + b"\n")
                stream.flush()

    def _check(self, may_go_on: Callable[[], None]) -> None:
        if self._state.failures or self._stop_requested:
            return
        try:
            may_go_on()
        except ExperimentError as error:
            self._fail(error)

    def _finish(self, number: int, worker: _Worker) -> None:
        code = worker.process.wait()
        _close_input(worker)
        del self._state.running[number]
        if code != 0:
            message = f"worker '{worker.chain.key}' ended with code {code}; see {worker.log_path}"
            failure = worker.failure or FaultError(message)
            # A worker that is still loading knows no orderly stop: the request itself ends it.
            is_stop = isinstance(failure, StoppedError) or -code in _OURS
            if not (self._stop_requested and is_stop):
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


def _close_input(worker: _Worker) -> None:
    if worker.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()


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


def _key_of(worker: _Worker, event: TaskStarted) -> str:
    keys = worker.chain.keys
    if event.number >= len(keys):
        message = f"a worker began task {event.number} of {len(keys)}, counted from 0; see {worker.log_path}"
        raise FaultError(message)
    return keys[event.number]


def _rebuild(event: Failed, log_path: Path) -> ExperimentError:
    cls = getattr(errors, event.error, FaultError)
    message = f"{event.message} (worker log: {log_path})"
    return cls(message) if isinstance(cls, type) and issubclass(cls, ExperimentError) else FaultError(message)
