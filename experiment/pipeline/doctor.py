"""What a recipe needs on this machine, each need with its remedy. Reads only."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from experiment.environments.catalogue import describe_world
from experiment.errors import ExperimentError
from experiment.records.recipe import Recipe

_MIN_FREE_GIB = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One need."""

    name: str
    passed: bool
    found: str
    remedy: str


def examine(recipe: Recipe, gym_python: Path | None = None) -> tuple[Check, ...]:
    """Check interpreter, training stack, disk, processors, and the recipe's inputs."""
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    missing = [name for name in ("torch", "transformers", "trl", "peft") if importlib.util.find_spec(name) is None]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needed = recipe.compute.threads * recipe.compute.workers
    baseline = Path(recipe.inputs.baseline)
    return (
        Check("python", sys.version_info >= (3, 11), platform.python_version(), "Use Python 3.11 or newer."),
        Check(
            "training stack",
            not missing,
            f"missing {', '.join(missing)}" if missing else "installed",
            "Install requirements/train.lock, or run `make quickstart` once.",
        ),
        Check("disk", free >= _MIN_FREE_GIB, f"{free:.1f} GiB free", f"Free {_MIN_FREE_GIB:.0f} GiB here."),
        Check(
            "processors",
            cores >= needed,
            f"{cores} for {recipe.compute.workers} workers of {recipe.compute.threads} threads",
            "Lower compute.workers in the recipe; it has no influence on the result.",
        ),
        Check("lock file", Path(recipe.inputs.lock).is_file(), recipe.inputs.lock, "Run from the repository's root."),
        Check(
            "baseline",
            baseline.is_dir(),
            str(baseline) if baseline.is_dir() else f"{baseline} does not exist",
            "Run `python -m experiment baseline RECIPE`, or name your own model in inputs.baseline.",
        ),
        _device(recipe),
        *_world(recipe, gym_python),
    )


def _world(recipe: Recipe, gym_python: Path | None) -> tuple[Check, ...]:
    """What the world depends on besides the package, or why that cannot be said."""
    try:
        facts = describe_world(recipe.world, gym_python)
    except ExperimentError as error:
        return (Check("world", passed=False, found=str(error), remedy=error.remedy),)
    return tuple(Check(f"world: {name}", passed=True, found=value, remedy="") for name, value in facts)


def _device(recipe: Recipe) -> Check:
    if recipe.compute.device == "cpu":
        return Check("device", passed=True, found="cpu", remedy="")
    present = shutil.which("nvidia-smi") is not None
    found = "an NVIDIA driver is installed" if present else "no NVIDIA driver"
    return Check("device", present, found, "Run on a machine with a GPU, or set compute.device to cpu.")
