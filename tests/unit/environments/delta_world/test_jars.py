"""Jars are those of the lock, or there are none."""

from __future__ import annotations

import hashlib
import re
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiment.environments.delta_world import jars
from experiment.environments.delta_world.jars import LOCK_PATH, PACKAGES, provide_jars, read_lock
from experiment.environments.delta_world.java import Java
from experiment.errors import UsageError

CONTENT = {"io.delta_delta-spark.jar": b"delta", "org.eclipse.jdt_ecj-1.jar": b"compiler"}
COMPILER = """\
#!/bin/sh
echo compiled >> "{log}"
while [ "$1" != -d ]; do shift; done
mkdir -p "$2/world" && echo class > "$2/world/WsCatalog.class"
"""


class Resolver:
    """Stands where Spark's resolver does, and counts how often it is asked."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.calls = 0

    def __call__(self, scratch: Path, _java: Java) -> Path:
        self.calls += 1
        (scratch / "jars").mkdir()
        for name, data in self.content.items():
            (scratch / "jars" / name).write_bytes(data)
        return scratch / "jars"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    executable = tmp_path / "java"
    executable.write_text(COMPILER.format(log=tmp_path / "compiled"))
    executable.chmod(0o755)
    return Java(executable, "21.0.8", "configured")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver(dict(CONTENT))
    monkeypatch.setattr(jars, "_resolve", resolver)
    monkeypatch.setattr(jars, "find_spark_jars", lambda: (Path("spark.jar"),))
    locked = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}
    monkeypatch.setattr(jars, "read_lock", lambda: locked)
    return resolver


def test_everything_is_fetched_once_and_compiled_once(tmp_path: Path, java: Java, resolver: Resolver) -> None:
    first = provide_jars(tmp_path / "cache", java)
    second = provide_jars(tmp_path / "cache", java)
    assert first == second
    assert [path.name for path in first.class_path[:2]] == ["spark.jar", "io.delta_delta-spark.jar"]
    assert first.class_path[2].name.startswith("world-")
    assert resolver.calls == 1
    assert (tmp_path / "compiled").read_text() == "compiled\n"


@pytest.mark.parametrize("damage", [b"", b"other"])
def test_damaged_jar_is_fetched_again(damage: bytes, tmp_path: Path, java: Java, resolver: Resolver) -> None:
    provide_jars(tmp_path / "cache", java)
    jar = tmp_path / "cache" / "jars" / "io.delta_delta-spark.jar"
    jar.write_bytes(damage)
    provide_jars(tmp_path / "cache", java)
    assert (jar.read_bytes(), resolver.calls) == (b"delta", 2)


def test_jar_with_another_hash_is_refused(tmp_path: Path, java: Java, resolver: Resolver) -> None:
    resolver.content["io.delta_delta-spark.jar"] = b"delta of another version"
    with pytest.raises(UsageError, match=r"jars\.lock says"):
        provide_jars(tmp_path / "cache", java)
    assert list((tmp_path / "cache" / "jars").iterdir()) == []


def test_jar_that_was_not_fetched_is_refused(tmp_path: Path, java: Java, resolver: Resolver) -> None:
    del resolver.content["org.eclipse.jdt_ecj-1.jar"]
    with pytest.raises(UsageError, match="not at all"):
        provide_jars(tmp_path / "cache", java)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut"])
def test_damaged_jar_of_the_world_is_compiled_again(
    damage: bytes, tmp_path: Path, java: Java, resolver: Resolver
) -> None:
    jar = provide_jars(tmp_path / "cache", java).class_path[2]
    whole = jar.read_bytes()
    jar.write_bytes(damage)
    assert provide_jars(tmp_path / "cache", java).class_path[2].read_bytes() == whole
    assert resolver.calls == 1


OFFLINE = """\
#!/bin/sh
echo "		unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.0: not found" >&2
exit 1
"""


def test_machine_without_a_network_is_told_what_to_do(
    tmp_path: Path, java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "find_spark_jars", lambda: (Path("spark.jar"),))
    java.executable.write_text(OFFLINE)
    with pytest.raises(UsageError, match="cannot be fetched: unresolved dependency: io.delta") as caught:
        provide_jars(tmp_path / "cache", java)
    assert "copy a filled cache" in caught.value.remedy
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["jars", "lock"]


def test_of_two_at_once_one_fetches_and_the_other_waits(
    tmp_path: Path, java: Java, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def resolve_slowly(scratch: Path, found: Java) -> Path:
        time.sleep(0.2)
        return resolver(scratch, found)

    def provide(_number: int) -> jars.Jars:
        both.wait(60)
        return provide_jars(tmp_path / "cache", java)

    monkeypatch.setattr(jars, "_resolve", resolve_slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(provide, range(2), timeout=60)
    assert first == second
    assert resolver.calls == 1
    assert (tmp_path / "compiled").read_text() == "compiled\n"


def test_lock_pins_what_the_packages_name() -> None:
    names = read_lock()
    versions = {package.split(":")[1]: package.split(":")[2] for package in PACKAGES}
    for artifact, version in versions.items():
        assert [name for name in names if name.endswith(f"_{artifact}-{version}.jar")], artifact
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in names.values())


def test_lock_with_another_line_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(LOCK_PATH.read_text() + "0123  ../evil.jar\n")
    with pytest.raises(UsageError, match="evil"):
        read_lock(lock)


def test_trust_store_holds_every_certificate() -> None:
    certificates = [b"first", b"the second"]
    store = jars._trust_store(certificates)
    assert struct.unpack(">III", store[:12]) == (0xFEEDFEED, 2, 2)
    position = 12
    for number, certificate in enumerate(certificates):
        kind, length = struct.unpack(">IH", store[position : position + 6])
        assert (kind, store[position + 6 : position + 6 + length]) == (2, str(number).encode())
        position += 6 + length + 8
        assert store[position : position + 7] == b"\x00\x05X.509"
        (size,) = struct.unpack(">I", store[position + 7 : position + 11])
        assert store[position + 11 : position + 11 + size] == certificate
        position += 11 + size
    assert len(store) == position + 20


def test_missing_pyspark_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError) as caught:
        jars.find_spark_jars()
    assert "extra `delta`" in caught.value.remedy
