"""What a run consumes: frozen by digest when it is prepared, compared byte for byte before it is used."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Literal

from experiment.environments.catalogue import describe_world
from experiment.errors import PlanError, UsageError
from experiment.records.plan import FrozenEnvironment, FrozenInput, Plan
from experiment.records.recipe import Recipe
from experiment.records.world import NemoGymWorld
from experiment.sealing.digests import digest_file
from experiment.sealing.sources import scan_sources
from experiment.sealing.trees import scan_tree

Role = Literal[
    "sources", "recipe", "lock", "baseline", "tokenizer", "retention_dev", "retention_final", "supervised", "rows"
]

SUPERVISED_FILE = "train.jsonl"
"""What lies beside a retention file for DEV under this name was used for fine-tuning."""


def freeze_inputs(recipe: Recipe, recipe_path: Path) -> tuple[FrozenInput, ...]:
    """Digests of everything the recipe consumes.

    Raises:
        UsageError: Something is missing, or a folder holds links or other things that cannot be sealed.
    """
    sources = scan_sources()
    frozen = [
        FrozenInput(
            role="sources", path="experiment", kind="tree", digest=sources.digest, size_bytes=sources.size_bytes
        ),
        _freeze("recipe", recipe_path),
        _freeze("lock", Path(recipe.inputs.lock)),
        _freeze("baseline", Path(recipe.inputs.baseline)),
    ]
    if recipe.inputs.tokenizer is not None:
        frozen.append(_freeze("tokenizer", Path(recipe.inputs.tokenizer)))
    if isinstance(recipe.retention.dev, str):
        frozen.append(_freeze("retention_dev", Path(recipe.retention.dev)))
    if isinstance(recipe.retention.final, str):
        frozen.append(_freeze("retention_final", Path(recipe.retention.final)))
    beside = supervised_file(recipe)
    if beside is not None:
        frozen.append(_freeze("supervised", beside))
    if isinstance(recipe.world, NemoGymWorld) and recipe.world.rows:
        frozen.append(_freeze("rows", Path(recipe.world.rows)))
    return tuple(frozen)


def supervised_file(recipe: Recipe) -> Path | None:
    """The fine-tuning questions that lie beside the retention file for DEV, where there are any."""
    if not isinstance(recipe.retention.dev, str):
        return None
    path = Path(recipe.retention.dev).with_name(SUPERVISED_FILE)
    return path if path.is_file() and path != Path(recipe.retention.dev) else None


def freeze_environment() -> FrozenEnvironment:
    """Interpreter and every installed distribution."""
    # `metadata` parses a file whenever it is asked for.
    texts = (each.metadata for each in importlib.metadata.distributions())
    found = {_normal(text["Name"]): text["Version"] for text in texts}
    return FrozenEnvironment(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        machine=platform.machine(),
        distributions=tuple(sorted(found.items())),
    )


def verify_inputs(plan: Plan) -> int:
    """Return the number of bytes that were compared, all of them equal to what the plan froze.

    Raises:
        PlanError: Names the first input or distribution that is not what it was.
    """
    for frozen in plan.inputs:
        found = _digest_now(frozen)
        if found != frozen.digest:
            message = f"{frozen.path}: the {frozen.role} changed since the plan was prepared"
            raise PlanError(message)
    _verify_environment(plan.environment)
    return sum(frozen.size_bytes for frozen in plan.inputs)


def _digest_now(frozen: FrozenInput) -> str:
    if frozen.role == "sources":
        return scan_sources().digest
    path = Path(frozen.path)
    try:
        return scan_tree(path).tree if frozen.kind == "tree" else digest_file(path)
    except (UsageError, OSError) as error:
        message = f"{frozen.path}: the {frozen.role} cannot be read any more: {error}"
        raise PlanError(message) from error


def _verify_environment(frozen: FrozenEnvironment) -> None:
    now = freeze_environment()
    for label in ("python", "implementation", "machine"):
        if getattr(now, label) != getattr(frozen, label):
            message = f"environment: {label} is {getattr(now, label)}, the plan froze {getattr(frozen, label)}"
            raise PlanError(message)
    was, found = dict(frozen.distributions), dict(now.distributions)
    for name in sorted(was.keys() | found.keys()):
        if was.get(name) != found.get(name):
            message = (
                f"environment: {name} is {found.get(name, 'not installed')}, "
                f"the plan froze {was.get(name, 'not installed')}"
            )
            raise PlanError(message)


def verify_world(plan: Plan, gym_python: Path | None) -> None:
    """Return only where the world depends on what the plan froze; see `catalogue.describe_world`.

    Raises:
        PlanError: Names the first fact that is not what it was.
    """
    try:
        now = dict(describe_world(plan.recipe.world, gym_python))
    except UsageError as error:
        message = f"world: {error}"
        raise PlanError(message, remedy=error.remedy) from error
    was = dict(plan.world_facts)
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            message = f"world: {name} is {now.get(name, 'missing')}, the plan froze {was.get(name, 'nothing')}"
            raise PlanError(message)


def _freeze(role: Role, path: Path) -> FrozenInput:
    if path.is_symlink() or not path.exists():
        fault = "is a link" if path.is_symlink() else "does not exist"
        remedy = "Give the real path in the recipe's [inputs] section or by its option."
        if role == "baseline":
            remedy = "Run `python -m experiment baseline RECIPE` first, or name your own model in `inputs.baseline`."
        message = f"{path}: the {role} {fault}"
        raise UsageError(message, remedy=remedy)
    if path.is_dir():
        seal = scan_tree(path)
        return FrozenInput(role=role, path=str(path), kind="tree", digest=seal.tree, size_bytes=seal.size_bytes)
    return FrozenInput(role=role, path=str(path), kind="file", digest=digest_file(path), size_bytes=path.stat().st_size)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
