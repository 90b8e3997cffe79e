"""What a plan freezes of the Delta world: it changes with all that the answers depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.environments.delta_world import facts
from experiment.environments.delta_world.facts import NO_SANDBOX, describe
from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java
from experiment.errors import UsageError
from experiment.records.world import DeltaTablesWorld


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Java, one jar and a sandbox."""
    jar = tmp_path / "delta.jar"
    jar.write_bytes(b"delta")
    monkeypatch.setattr(facts, "find_java", lambda _configured: Java(Path("java"), "21.0.8", "PATH"))
    monkeypatch.setattr(facts, "provide_jars", lambda _cache, _java: Jars((jar,)))
    monkeypatch.setattr(facts, "confinement", lambda: "landlock")
    monkeypatch.setattr(facts.sandbox, "tier", lambda: "landlock+seccomp")
    return jar


def test_everything_is_named_in_order(jar: Path) -> None:
    found = describe(DeltaTablesWorld())
    assert [name for name, _ in found] == ["confinement", "jars", "java", "sandbox", "server", "settings"]
    assert dict(found) | {"jars": "", "settings": ""} == {
        "confinement": "landlock",
        "jars": "",
        "java": "21.0.8",
        "sandbox": "landlock+seccomp",
        "server": "ours",
        "settings": "",
    }
    assert describe(DeltaTablesWorld()) == found
    assert jar.is_file()


def _changed(before: tuple[tuple[str, str], ...]) -> list[str]:
    return [name for (name, old), (_, new) in zip(before, describe(DeltaTablesWorld()), strict=True) if old != new]


@pytest.mark.parametrize("change", ["content", "name"])
def test_another_jar_is_another_world(change: str, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(DeltaTablesWorld())
    if change == "content":
        jar.write_bytes(b"delta of another version")
    else:
        other = jar.rename(jar.with_name("delta-2.jar"))
        monkeypatch.setattr(facts, "provide_jars", lambda _cache, _java: Jars((other,)))
    assert _changed(before) == ["jars"]


@pytest.mark.usefixtures("jar")
@pytest.mark.parametrize("key", ["spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.hadoop.fs.file.impl"])
def test_another_setting_of_the_server_is_another_world(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(DeltaTablesWorld())
    assert key in facts.SETTINGS
    monkeypatch.setitem(facts.SETTINGS, key, "other")
    assert _changed(before) == ["settings"]


@pytest.mark.usefixtures("jar")
def test_machine_without_a_sandbox_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts.sandbox, "tier", lambda: "")
    assert dict(describe(DeltaTablesWorld()))["sandbox"] == NO_SANDBOX


def test_foreign_server_is_named_and_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts.sandbox, "tier", lambda: "bwrap+seccomp")
    monkeypatch.setattr(facts, "find_java", lambda _configured: pytest.fail("no Java is needed"))
    settings = DeltaTablesWorld(server="sc://spark.example:15009", shared_dir=str(tmp_path))
    assert describe(settings) == (("sandbox", "bwrap+seccomp"), ("server", "sc://spark.example:15009, not ours"))
    with pytest.raises(UsageError, match="no folder here"):
        describe(DeltaTablesWorld(server="sc://spark.example:15009"))
