"""Brings the jars that the server needs: Delta Lake's by Spark's own resolver, and the world's catalog, compiled here.

Names and hashes are fixed by `jars.lock`, which `sha256sum --check` reads too. What is in the cache is checked every
time; a file that is not what the lock says is fetched again, and what is fetched wrong is refused.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import struct
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from experiment.environments.delta_world.java import Java
from experiment.environments.delta_world.locking import alone
from experiment.errors import UsageError
from experiment.sealing.digests import digest_bytes

PACKAGES = ("io.delta:delta-spark_4.2_2.13:4.4.0", "org.eclipse.jdt:ecj:3.43.0")
"""Delta Lake, and a compiler that runs where no Java development kit is installed."""

LOCK_PATH = Path(__file__).with_name("jars.lock")
SOURCE_DIR = Path(__file__).with_name("java")

PYSPARK_REMEDY = "Install the package's extra `delta`, which brings pyspark."

_HELD_BY_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "javax.annotation:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""Not fetched: pyspark has them, or Delta tables of this world do not need them."""

_PATIENCE_S = 900.0
_LAUNCHER = "org.apache.spark.deploy.SparkSubmit"


@dataclass(frozen=True, slots=True)
class Jars:
    """What goes on the server's class path."""

    class_path: tuple[Path, ...]
    """In order: Spark's jars, Delta Lake's, the world's."""

    @property
    def joined(self) -> str:
        """The class path as Java takes it."""
        return os.pathsep.join(str(path) for path in self.class_path)


def read_lock(path: Path = LOCK_PATH) -> dict[str, str]:
    """Return file name -> SHA-256 of every jar that is not part of pyspark.

    Raises:
        UsageError: A line is not `hash  name`.
    """
    locked = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.\-]+\.jar)", line)
        if not match:
            msg = f"{path}: {line!r} is not `sha256  name.jar`"
            raise UsageError(msg)
        locked[match.group(2)] = match.group(1)
    return locked


def provide_jars(cache_dir: Path, java: Java) -> Jars:
    """Afterwards `cache_dir` holds every jar, each with the locked hash; fetches only what is missing.

    Raises:
        UsageError: pyspark is not installed, a jar cannot be fetched, or one has another hash than the lock says.
    """
    cache_dir = cache_dir.absolute()  # Spark's resolver takes no other
    spark = find_spark_jars()
    locked = read_lock()
    jar_dir = cache_dir / "jars"
    jar_dir.mkdir(parents=True, exist_ok=True)
    with alone(cache_dir / "lock"):
        if _missing(jar_dir, locked):
            _fetch(cache_dir, jar_dir, java, locked)
        delta = tuple(jar_dir / name for name in sorted(locked) if "_ecj-" not in name)
        compiler = next(jar_dir / name for name in locked if "_ecj-" in name)
        return Jars((*spark, *delta, _provide_world(cache_dir, java, (*spark, *delta), compiler)))


def find_spark_jars() -> tuple[Path, ...]:
    """Return pyspark's own jars, by name; pyspark is not imported.

    Raises:
        UsageError: It is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if jars := tuple(sorted((Path(folder) / "jars").glob("*.jar"))):
            return jars
    msg = "pyspark, which brings Spark, is not installed"
    raise UsageError(msg, remedy=PYSPARK_REMEDY)


def _missing(jar_dir: Path, locked: dict[str, str]) -> list[str]:
    return [name for name, expected in locked.items() if _sha256(jar_dir / name) != expected]


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _fetch(cache_dir: Path, jar_dir: Path, java: Java, locked: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="fetch-") as scratch:
        fetched = _resolve(Path(scratch), java)
        for name, expected in locked.items():
            found = _sha256(fetched / name)
            if found != expected:
                msg = f"{name}: fetched with SHA-256 {found or '(not at all)'}, {LOCK_PATH.name} says {expected}"
                raise UsageError(msg, remedy="Find out who serves another file under this name; do not use it.")
            (fetched / name).replace(jar_dir / name)


def _resolve(scratch: Path, java: Java) -> Path:
    """Let Spark resolve the packages; its launcher runs no program here, it only prints its version."""
    store = scratch / "authorities.jks"
    store.write_bytes(_trust_store(_machine_authorities()))
    spark = os.pathsep.join(map(str, find_spark_jars()))
    command = [
        *(str(java.executable), f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"),
        *("-cp", spark, _LAUNCHER, "--conf", f"spark.jars.ivy={scratch}"),
        *("--packages", ",".join(PACKAGES), "--exclude-packages", ",".join(_HELD_BY_SPARK)),
        *("--class", _LAUNCHER, "spark-internal", "--version"),
    ]
    done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        reasons = [line.strip() for line in lines if re.search(r"not found|error|Exception", line)]
        msg = f"Delta Lake's jars cannot be fetched: {'; '.join(reasons[:3]) or lines[-1:]}"
        raise UsageError(msg, remedy="Allow Java to reach Maven Central, or copy a filled cache to `.cache/delta`.")
    return scratch / "jars"


def _machine_authorities() -> list[bytes]:
    """Return the certificates that the machine trusts, which a Java runtime in a wheel does not know."""
    bundle = ssl.get_default_verify_paths().cafile
    text = Path(bundle).read_text(encoding="ascii", errors="replace") if bundle else ""
    blocks = re.findall(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", text, flags=re.DOTALL)
    return [base64.b64decode(block) for block in blocks]


def _trust_store(certificates: list[bytes]) -> bytes:
    """Return a Java key store that holds `certificates`.

    Source: the format that the `JKS` provider of OpenJDK reads; its closing digest guards against accidents only.
    """
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        for text in (str(number), None, "X.509"):
            if text is None:
                body += struct.pack(">Q", 0)
            else:
                body += (
                    (struct.pack(">I", 2) if text != "X.509" else b"") + struct.pack(">H", len(text)) + text.encode()
                )
        body += struct.pack(">I", len(certificate)) + certificate
    phrase = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(phrase + body, usedforsecurity=False).digest()


def _provide_world(cache_dir: Path, java: Java, class_path: tuple[Path, ...], compiler: Path) -> Path:
    """Return the jar with the classes of `java/`, compiled unless it is there already."""
    sources = sorted(SOURCE_DIR.glob("*.java"))
    names = "\n".join(path.name for path in (*class_path, compiler))
    content = b"\0".join([names.encode(), *(path.read_bytes() for path in sources)])
    target = cache_dir / f"world-{digest_bytes(content)[:16]}.jar"
    if _is_sound(target):
        return target
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="compile-") as scratch:
        classes = Path(scratch) / "classes"
        joined = os.pathsep.join(map(str, class_path))
        command = [str(java.executable), "-jar", str(compiler), "-17", "-nowarn", "-proc:none", "-cp", joined]
        done = subprocess.run(
            [*command, "-d", str(classes), *map(str, sources)], capture_output=True, timeout=_PATIENCE_S, check=False
        )
        if done.returncode != 0:
            msg = f"{SOURCE_DIR}: does not compile: {done.stderr.decode(errors='replace')[-2000:]}"
            raise UsageError(msg, remedy="Install the versions of pyspark and delta that the extra `delta` names.")
        _pack(classes, Path(scratch) / target.name).replace(target)
    return target


def _is_sound(jar: Path) -> bool:
    """Say whether a jar is there with all that was packed into it."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _pack(classes: Path, jar: Path) -> Path:
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted(classes.rglob("*.class")):
            with path.open("rb") as source, archive.open(zipfile.ZipInfo(str(path.relative_to(classes))), "w") as sink:
                shutil.copyfileobj(source, sink)
    return jar
