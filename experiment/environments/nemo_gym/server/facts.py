"""What of a NeMo Gym environment a plan freezes, as seen from inside it."""

from __future__ import annotations

import base64
import csv
import hashlib
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from experiment.environments.nemo_gym.server.configuration import (
    AGENTS,
    code_folder,
    configuration_digest,
    is_hosted,
    read_configuration,
    sections,
    served_section,
)
from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes, digest_file

_PACKAGE = "nemo-gym"
_HERE = Path(__file__).resolve().parent


def write_facts(settings: dict[str, Any]) -> None:
    """Write the facts, or what is wrong with the environment, to the path `result`."""
    tree, damage = _check_files(metadata.distribution(_PACKAGE))
    facts = {
        "distributions": digest_bytes(encode([list(each) for each in _distributions()])),
        "implementation": platform.python_implementation(),
        "nemo_gym": metadata.version(_PACKAGE),
        "nemo_gym_files": tree,
        "python": platform.python_version(),
    }
    if not damage and settings["configs"]:
        facts |= _describe_servers(settings)
    Path(settings["result"]).write_bytes(encode({"damage": damage, "facts": facts}))


def _describe_servers(settings: dict[str, Any]) -> dict[str, str]:
    configuration = read_configuration(settings["configs"], None)
    served = served_section(configuration, settings["server"])
    code = {
        section.name: _folder_rows(code_folder(section, settings["configs"]))
        for section in sections(configuration)
        if is_hosted(section, served, with_agent=True) and section.kind != AGENTS
    }
    host = [[path.name, digest_file(path)] for path in sorted(_HERE.glob("*.py"))]
    return {
        "config": configuration_digest(configuration, served),
        "server": served.name,
        "server_sources": digest_bytes(encode([host, code])),
    }


def _folder_rows(folder: Path) -> list[list[str]]:
    """Return (path, digest) of a server's files; caches and hidden files, among them environments, do not count."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    parts = {path: path.relative_to(folder).parts for path in paths}
    kept = [path for path in paths if not any(part.startswith((".", "__pycache__")) for part in parts[path])]
    return [["/".join(parts[path]), digest_file(path)] for path in kept]


def _distributions() -> list[tuple[str, str]]:
    return sorted((each.metadata["Name"].lower().replace("_", "-"), each.version) for each in metadata.distributions())


def _check_files(distribution: metadata.Distribution) -> tuple[str, list[str]]:
    """Return the digest of what the package installed, and which of its files are not what it recorded.

    Commands, which lie beside the packages, name the environment's own path and are not counted. The library's list of
    files would leave out those that are missing.
    """
    recorded = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    rows = sorted([name, digest] for name, digest, _ in recorded if digest and not name.startswith(".."))
    damage = [name for name, digest in rows if not _has_digest(Path(str(distribution.locate_file(name))), digest)]
    return digest_bytes(encode(rows)), damage


def _has_digest(path: Path, expected: str) -> bool:
    try:
        found = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return False
    return "sha256=" + base64.urlsafe_b64encode(found).rstrip(b"=").decode("ascii") == expected
