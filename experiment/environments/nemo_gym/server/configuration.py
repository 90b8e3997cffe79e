"""A NeMo Gym configuration as Gym itself reads it, and which of its servers are hosted."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import nemo_gym
from nemo_gym.global_config import GlobalConfigDictParser
from omegaconf import DictConfig, OmegaConf

from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes

RESOURCES, AGENTS, MODELS = "resources_servers", "responses_api_agents", "responses_api_models"
POLICY = "policy_model"
_KINDS = (RESOURCES, AGENTS, MODELS)
_PLACES = frozenset({"host", "port"})
"""What differs from one start to the next."""


@dataclass(frozen=True, slots=True)
class Section:
    """One server of a configuration."""

    name: str
    kind: str
    folder: str
    """Name of the folder below the kind's that holds its code."""
    settings: DictConfig


def read_configuration(paths: Sequence[str], policy: tuple[str, int] | None) -> DictConfig:
    """Return the configuration that Gym makes of `paths`, with the policy at an address outside.

    Shipped configurations name a policy model that nobody serves here; without `policy` it stays an address that is
    never used.
    """
    parser = GlobalConfigDictParser()
    _, extra = parser.load_extra_config_paths(list(paths))
    host, port = policy or ("127.0.0.1", 9)
    initial: dict[str, Any] = {"config_paths": list(paths)}
    place = {"host": host, "port": port, "external": True}
    defined = next((each[POLICY] for each in extra if POLICY in each), None)
    folder = next(iter(defined[MODELS])) if defined is not None else "policy"
    initial[POLICY] = {MODELS: {folder: place if defined is not None else {"entrypoint": "app.py", **place}}}
    return parser.parse_no_environment(initial_global_config_dict=DictConfig(initial))


def sections(configuration: DictConfig) -> Iterator[Section]:
    """Yield the servers of a configuration by name."""
    for name in sorted(str(key) for key in configuration):
        value = configuration[name]
        kind = next((each for each in _KINDS if isinstance(value, DictConfig) and each in value), None)
        if kind is not None:
            folder = str(next(iter(value[kind])))
            yield Section(name, kind, folder, value[kind][folder])


def served_section(configuration: DictConfig, name: str | None) -> Section:
    """Return the resources server that is meant: the named one, else the only one.

    Raises:
        ValueError: There is none of that name, or more than one to choose from.
    """
    found = [each for each in sections(configuration) if each.kind == RESOURCES]
    chosen = [each for each in found if name in {None, each.name}]
    if len(chosen) != 1:
        msg = f"the configuration has the resources servers {[each.name for each in found]}, not one named {name}"
        raise ValueError(msg)
    return chosen[0]


def is_hosted(section: Section, served: Section, *, with_agent: bool) -> bool:
    """Whether a server is started: never what is outside; of agents, those of the served one, on demand."""
    if section.name == POLICY or section.settings.get("external"):
        return False
    if section.kind == AGENTS:
        return with_agent and section.settings.get("resources_server", {}).get("name") == served.name
    return True


def configuration_digest(configuration: DictConfig, served: Section) -> str:
    """Return the digest of the settings of everything that may be hosted, without hosts and ports."""
    kept = {
        section.name: {
            section.kind: {section.folder: _placeless(OmegaConf.to_container(section.settings, resolve=True))}
        }
        for section in sections(configuration)
        if is_hosted(section, served, with_agent=True)
    }
    return digest_bytes(encode([served.name, kept]))


def code_folder(section: Section, paths: Sequence[str]) -> Path:
    """Return the folder of a server's code: in a project that one of the configurations belongs to, else Gym's own.

    Raises:
        ValueError: There is no such code.
    """
    projects = [parent for path in paths if Path(path).is_absolute() for parent in Path(path).parents]
    for root in (*projects, Path(nemo_gym.PARENT_DIR)):
        folder = root / section.kind / section.folder
        if (folder / section.settings.entrypoint).is_file():
            return folder
    msg = f"server '{section.name}': no {section.kind}/{section.folder}/{section.settings.entrypoint} beside its config"
    raise ValueError(msg)


def load_module(section: Section, folder: Path) -> ModuleType:
    """Return the module that defines a server."""
    stem = Path(section.settings.entrypoint).stem
    name = f"{section.kind}.{section.folder}.{stem}"
    root = folder.parent.parent
    if not (folder.parent / "__init__.py").exists():
        # As in Gym, where every project's servers share one namespace.
        if str(root) not in sys.path:
            sys.path.append(str(root))
        return importlib.import_module(name)
    spec: Any = importlib.util.spec_from_file_location(name, folder / section.settings.entrypoint)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _placeless(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _placeless(each) for key, each in value.items() if key not in _PLACES}
    return [_placeless(each) for each in value] if isinstance(value, list) else value
