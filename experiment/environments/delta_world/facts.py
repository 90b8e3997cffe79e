"""What the world's answers depend on besides the package's sources: frozen in the plan, found again before a run."""

from __future__ import annotations

from pathlib import Path

from experiment.environments.delta_world import sandbox
from experiment.environments.delta_world.jars import provide_jars
from experiment.environments.delta_world.java import find_java
from experiment.environments.delta_world.launch import SETTINGS
from experiment.environments.delta_world.server import confinement
from experiment.environments.delta_world.service import foreign_address
from experiment.records.world import DeltaTablesWorld
from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes, digest_file

NO_SANDBOX = "none: run_python is refused"


def describe(settings: DeltaTablesWorld) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the server, its runtime, its jars, its settings and what confines it, sorted.

    Jars that are missing are fetched.

    Raises:
        UsageError: Something is missing on this machine.
    """
    found = {"sandbox": sandbox.tier() or NO_SANDBOX}
    if settings.server:
        address = foreign_address(settings)
        return tuple(sorted({**found, "server": f"sc://{address.host}:{address.port}, not ours"}.items()))
    java = find_java(settings.java)
    jars = provide_jars(Path(settings.cache_dir), java).class_path
    found |= {
        "confinement": confinement(),
        "jars": digest_bytes(encode([[path.name, digest_file(path)] for path in jars])),
        "java": java.version,
        "server": "ours",
        "settings": digest_bytes(encode(SETTINGS)),
    }
    return tuple(sorted(found.items()))
