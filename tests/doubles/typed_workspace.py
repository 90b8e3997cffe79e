"""Workspaces as the manuals describe them, in which their commands can be typed; workers are stand-ins."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from experiment.journal.lock import LOCK_NAME
from experiment.report.status import lock_holder
from tests.doubles.damage import flip_bit, one
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_command import type_in
from tests.doubles.stand_in_run import ROOT, small_workspace

PLAN, RUN_DIR = Path("plans/mine/plan.json"), Path("runs/mine")
BEGIN = f"python -m experiment run --plan {PLAN} --run-dir {RUN_DIR}"
RESUME = f"{BEGIN} --resume"
INTERPRETERS = ("bin/python", ".venv/bin/python", ".venv-audit/bin/python")
INTERPRETER = """#!/bin/sh
if [ "$1 $2" = "-m experiment" ]; then shift 2; exec {python} -m tests.doubles.stand_in_command "$@"; fi
exec {python} "$@"
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def remedy(self) -> str:
        """What the last line of standard error says to do; empty where it says nothing."""
        last = self.err.splitlines()[-1:] or [""]
        return last[0].partition("Remedy: ")[2]


@dataclass(frozen=True)
class Typed:
    """A folder to type commands in."""

    folder: Path
    script: Path

    @property
    def run_dir(self) -> Path:
        """The folder of its one run."""
        return self.folder / RUN_DIR

    def type_(self, command: str, *, fault: str = "", pace_s: float = 0.0) -> Done:
        """Type a line into a shell."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment(fault, pace_s),
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def do(self, command: str, *, fault: str = "", pace_s: float = 0.0) -> Done:
        """Do what a line that starts with `python -m experiment` does, in a fork: the same, but sooner."""
        words = shlex.split(command.removeprefix("python -m experiment "))
        out, err = (self.folder / f".{name}" for name in ("out", "err"))
        pid = os.fork()
        if not pid:
            self._end_with(words, (out, err), self._environment(fault, pace_s))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Done(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def _end_with(self, words: Sequence[str], outputs: Sequence[Path], environment: dict[str, str]) -> NoReturn:
        code = 99
        try:
            os.chdir(self.folder)
            os.environ.update(environment)
            sys.stdout, sys.stderr = (path.open("w", encoding="utf-8") for path in outputs)
            code = type_in(words)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def start(self, command: str, *, pace_s: float) -> subprocess.Popen[str]:
        """Type a command and return once it works on the run; the caller has to end it."""
        logs = set(self.run_dir.glob("logs/*.log"))
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self._environment("", pace_s),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while logs >= set(self.run_dir.glob("logs/*.log")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lock_holder(self.run_dir) is not None, self.run_dir / LOCK_NAME
        return process

    def copy_to(self, folder: Path) -> Typed:
        """The same in another folder."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True, symlinks=True)
        return Typed(folder, self.script)

    def _environment(self, fault: str, pace_s: float) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STAND_IN_SCRIPT": str(self.script),
            "STAND_IN_PACE": str(pace_s),
            "STAND_IN_FAULT": fault,
        }


class Situations:
    """Named states of a workspace, each made once by typing what leads there."""

    def __init__(self, root: Path, drafted: SmallRun) -> None:
        self._root = root
        self._drafted = drafted

    def copy(self, name: str, folder: Path) -> Typed:
        """A copy that may be worked in.

        Args:
            name: A method of this class whose name starts with `make_`.
            folder: Where the copy goes.
        """
        made = self._root / name
        if not made.is_dir():
            build: Callable[[Path], None] = getattr(self, f"make_{name}")
            build(made)
        return Typed(made, self._drafted.run_dir).copy_to(folder)

    def make_clone(self, folder: Path) -> None:
        """What a clone has, and a recipe of one's own."""
        for name in ("recipes", "requirements"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copyfile(ROOT / "tests/golden/recipe.toml", folder / "recipes/mine.toml")
        for name in ("Makefile", "pyproject.toml"):
            shutil.copyfile(ROOT / name, folder / name)
        for name in INTERPRETERS:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(INTERPRETER.format(python=shlex.quote(sys.executable)))
            path.chmod(0o755)

    def make_based(self, folder: Path) -> None:
        """A clone with a starting policy."""
        self._after("clone", folder, "python -m experiment baseline recipes/mine.toml", 0)

    def make_planned(self, folder: Path) -> None:
        """A plan that nobody has claimed."""
        self._plan(folder)

    def make_poor(self, folder: Path) -> None:
        """A plan whose budget is next to nothing."""
        self._plan(folder, budget_hours=1e-5)

    def make_stopped(self, folder: Path) -> None:
        """A run whose worker broke after the first sealed checkpoint."""
        self._after("planned", folder, BEGIN, 70, fault="exit@train/echo/3")

    def make_finished(self, folder: Path) -> None:
        """A run with a verdict, of two segments."""
        self._after("stopped", folder, RESUME, 0)

    def make_read(self, folder: Path) -> None:
        """A finished run whose samples somebody has read: a filled-in form lies in the workspace."""
        self.copy("finished", folder)
        form = (folder / RUN_DIR / "samples/form.toml").read_text(encoding="utf-8")
        (folder / "form.toml").write_text(form.replace(' = ""', ' = "ok"'), encoding="utf-8")

    def make_unqualified(self, folder: Path) -> None:
        """A run that failed its qualification."""
        self._after("planned", folder, BEGIN, 5, fault="lie@qualify/echo/resumed")

    def make_damaged(self, folder: Path) -> None:
        """A stopped run with a changed checkpoint."""
        self.copy("stopped", folder)
        flip_bit(one(folder / RUN_DIR, "checkpoints/*/*/adapter.bin"), 0)

    def _plan(self, folder: Path, **changes: object) -> None:
        self.copy("clone", folder)
        small_workspace(folder, self._drafted, **changes)  # type: ignore[arg-type]
        (folder / "plans/small").rename(folder / PLAN.parent)

    def _after(self, name: str, folder: Path, command: str, code: int, *, fault: str = "") -> None:
        done = self.copy(name, folder).do(command, fault=fault)
        assert done.code == code, done
