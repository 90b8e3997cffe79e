"""Kills a run of the real driver and real workers again and again, and judges every session.

A session is started, dealt one blow, and judged: its exit code has to be the promised one, nothing of it may live on,
and what it left has to audit as an open run. The last session is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiment.audit import audit_run
from experiment.errors import FaultError, StoppedError
from tests.doubles.fresh_clone import FreshClone
from tests.fault.kill_moments import STAGES, Blow, Means, Tail, Watch, draw_deck

_CODES = {
    Means.KILL: {-signal.SIGKILL},
    Means.WORKER: {FaultError.exit_code},
    Means.TERM: {StoppedError.exit_code},
    Means.CTRL_C: {StoppedError.exit_code},
    # The second one may find the driver on its way out, where the interpreter answers again.
    Means.CTRL_C_TWICE: {StoppedError.exit_code, -signal.SIGINT},
    Means.TERM_KILL: {StoppedError.exit_code, -signal.SIGKILL},
}
_CODES_BEFORE = {
    Means.TERM: {-signal.SIGTERM},
    Means.TERM_KILL: {-signal.SIGTERM},
    Means.CTRL_C: {-signal.SIGINT, 1},
    Means.CTRL_C_TWICE: {-signal.SIGINT, 1},
}
"""Codes that are right too while the driver has not taken over its signals yet."""

_LONGEST_GAP_S = 0.5
_PATIENCE_S = 600.0
_SURVIVAL_S = 10.0
_TICK_S = 0.002


@dataclass
class Session:
    """A driver at work."""

    process: subprocess.Popen[bytes]
    watch: Watch
    log_path: Path

    def last_words(self) -> str:
        """How its output ends, for a failure's message."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")[-3000:]


class KillCampaign:
    """A run in a workspace, and what was done to it."""

    def __init__(self, clone: FreshClone, plan: Path, run_dir: Path, planned: Counter[str], seed: int) -> None:
        """Start nothing yet.

        Args:
            clone: The workspace.
            plan: The plan, relative to it.
            run_dir: The run's folder, relative to it.
            planned: How many records of each type an undisturbed run has.
            seed: Root of all draws.
        """
        self.kills: Counter[tuple[str, Means]] = Counter()
        self._clone, self._plan, self._run_dir, self._planned = clone, plan, run_dir, planned
        self._tail = Tail(clone.folder / run_dir / "journal")
        self._decks = {stage: draw_deck(seed, stage) for stage in STAGES}

    @property
    def total(self) -> int:
        """How many blows there are."""
        return sum(map(len, self._decks.values()))

    def execute(self, tell: Callable[[str], None]) -> None:
        """Deal every blow that the run does not outpace, then let it end.

        Raises:
            AssertionError: Something was not as promised.
        """
        for stage, deck in self._decks.items():
            for number, blow in enumerate(deck):
                lasting = sum(not each.is_early for each in deck[number:])
                if not self._deal(stage, blow, lasting, tell):
                    return
        session = self._start(STAGES[-1])
        assert session.process.wait(timeout=_PATIENCE_S) == 0, session.last_words()

    def _start(self, stage: str) -> Session:
        resume = ["--resume"] if self._tail.journal.is_dir() else []
        watch = Watch(self._clone.folder / self._run_dir, self._tail, self._planned, stage)
        log_path = self._clone.folder / f"session-{self.kills.total():02}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "experiment", "run", "--plan", self._plan, "--run-dir", self._run_dir, *resume],
                cwd=self._clone.folder,
                env=self._clone.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Session(process, watch, log_path)

    def _deal(self, stage: str, blow: Blow, lasting: int, tell: Callable[[str], None]) -> bool:
        """Start a session, deal it the blow, tell of it and judge it; returns False where the run ended before it."""
        before = len(self._tail.read())
        session = self._start(stage)
        driver, started = session.process, time.monotonic()
        try:
            while not session.watch.is_due(blow, lasting):
                if driver.poll() == 0:
                    # So little was left to do that the session was done before its moment came.
                    tell(f"the run ended after {self.kills.total()} of {self.total} kills")
                    return False
                assert driver.poll() is None, f"ended before its blow\n{session.last_words()}"
                assert time.monotonic() - started < _PATIENCE_S, f"no moment for {blow}\n{session.last_words()}"
                time.sleep(_TICK_S)
            records = list(self._tail.read())
            struck = time.monotonic()
            means = _strike(driver, blow)
            code = driver.wait(timeout=_PATIENCE_S)
        finally:
            driver.kill()
            driver.wait()
        self.kills[session.watch.stage, means] += 1
        tell(
            f"kill {self.kills.total():2} of {self.total}  {session.watch.stage:<7} {session.watch.moment.value:<9} "
            f"{struck - started:4.1f} s, {len(records):3} records, last {records[-1] if records else 'none':<15}  "
            f"{means.value:<21}  exit {code:3} after {time.monotonic() - struck:.1f} s"
        )
        allowed = _CODES[means]
        if "inputs.verified" not in records[before:]:
            allowed = allowed | _CODES_BEFORE.get(means, set())
        assert code in allowed, f"{means}: code {code}, expected of {allowed}\n{session.last_words()}"
        self._check_remains()
        return True

    def _check_remains(self) -> None:
        """Nothing lives on, and what is there is a run that was interrupted and nothing worse."""
        deadline = time.monotonic() + _SURVIVAL_S
        while (alive := _processes_in(self._clone.folder)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive, f"alive after {_SURVIVAL_S:.0f} s: {alive}"
        if not self._tail.journal.is_dir():
            return
        with contextlib.chdir(self._clone.folder):
            report = audit_run(self._run_dir, level="bytes")
        worse = [each for each in report.findings if each.severity != "open"]
        assert (report.exit_code, worse) == (3, []), f"audit of what was left: {report.exit_code}, {worse}"


def _strike(driver: subprocess.Popen[bytes], blow: Blow) -> Means:
    """Deal the blow and return by which means; a worker that is not there is replaced by the driver."""
    means = blow.means
    if means is Means.WORKER and not _kill_worker(driver.pid, blow.which):
        means = Means.KILL
    if means is Means.KILL:
        driver.kill()
    elif means in {Means.TERM, Means.TERM_KILL}:
        driver.terminate()
    elif means in {Means.CTRL_C, Means.CTRL_C_TWICE}:
        driver.send_signal(signal.SIGINT)
    if means in {Means.TERM_KILL, Means.CTRL_C_TWICE}:
        time.sleep(blow.which * _LONGEST_GAP_S)
        driver.send_signal(signal.SIGKILL if means is Means.TERM_KILL else signal.SIGINT)
    return means


def _kill_worker(driver: int, which: float) -> bool:
    """Kill one of the driver's workers; returns False where there is none that could still be killed."""
    workers = sorted(map(int, Path(f"/proc/{driver}/task/{driver}/children").read_text(encoding="ascii").split()))
    for worker in (*workers[int(which * len(workers)) :], *workers):
        # A process on its way out takes no signal any more, and only one that stops is not on its way out.
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGSTOP)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline and _state(worker) not in {"T", "Z", ""}:
                time.sleep(0.001)
            is_stopped = _state(worker) == "T"
            os.kill(worker, signal.SIGKILL)
            if is_stopped:
                return True
    return False


def _state(pid: int) -> str:
    """The state of a process as the kernel writes it; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _processes_in(folder: Path) -> list[str]:
    """Commands of processes, other than this one, whose working directory is a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) != os.getpid() and (path / "cwd").resolve() == folder.resolve():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
