"""A folder like a fresh clone, in which commands are typed as people type them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class FreshClone:
    """A workspace: what the commands look at of the source tree; the package runs from there."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> FreshClone:
        """Copy what is needed of this source tree into an empty folder."""
        for name in ("experiment", "recipes", "requirements"):
            shutil.copytree(ROOT / name, folder / name)
        return cls(folder)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        return {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "200"}

    def experiment(self, *words: str, folder: Path | None = None) -> Done:
        """Type `python -m experiment ...`."""
        return self.python("-m", "experiment", *words, folder=folder)

    def python(self, *words: str, folder: Path | None = None, path: Path | None = None) -> Done:
        """Run Python, with the package of the clone or of another source tree at `path`."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder or self.folder,
            env=self.environment | ({"PYTHONPATH": str(path)} if path else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)
