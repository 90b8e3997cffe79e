"""Makes a recipe's starting policy, or finds that it is there already."""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from experiment.environments.catalogue import running_services
from experiment.errors import StoppedError, UsageError
from experiment.pipeline.context import Watcher
from experiment.pipeline.workers import Chain, WorkerPool
from experiment.records.base import Record
from experiment.records.job import Progressed, StarterDone, StarterJob
from experiment.records.provenance import Provenance
from experiment.records.recipe import Recipe
from experiment.sealing.canonical import decode_record, encode_record
from experiment.sealing.files import write_atomic
from experiment.sealing.sources import scan_sources
from experiment.sealing.trees import seal_tree, verify_tree

PROVENANCE_FILE: Final = "provenance.json"


def build_baseline(
    recipe: Recipe,
    watcher: Watcher,
    *,
    gym_python: Path | None = None,
    make_pool: Callable[..., WorkerPool] = WorkerPool,
) -> tuple[Provenance, bool]:
    """Leave a sealed starting policy at the recipe's `inputs.baseline`, or nothing where it is stopped or fails.

    Args:
        recipe: The recipe.
        watcher: Is told how far the work is.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.
        make_pool: Makes the workers' pool from what they may use, the folder of their logs, and the world's services.

    Returns:
        Its provenance, and whether it was made just now; one from the same recipe and sources is used again.

    Raises:
        UsageError: The recipe has no starter, or the folder holds something else.
        FaultError: The worker broke.
        StoppedError: SIGTERM asked for a stop.
    """
    if recipe.starter is None:
        message = f"recipe '{recipe.name}' has no [starter] section, so its baseline is your own model"
        raise UsageError(message, remedy="Name the model's folder in `inputs.baseline`; there is nothing to build.")
    target = Path(recipe.inputs.baseline)
    found = _existing(target, recipe)
    if found is not None:
        return found, False
    partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(8)}")
    logs = target.with_name(f".{target.name}.logs")
    watcher.stage("baseline", "a starting policy from nothing: skill, habits, fine-tune on verified episodes")
    with (
        _stopped_by_sigterm(),
        _scratch(partial),
        running_services(recipe.world, logs / "services", gym_python) as services,
    ):
        compute = recipe.compute.model_copy(update={"threads": recipe.starter.threads})
        done = _work(make_pool(compute, logs, services=services), recipe, partial, watcher)
        provenance = _provenance(recipe, done)
        write_atomic(partial / PROVENANCE_FILE, encode_record(provenance))
        if target.exists():
            shutil.rmtree(target)
        seal_tree(partial, target)
    return provenance, True


def read_provenance(baseline: Path) -> Provenance | None:
    """The provenance in a baseline's folder, where `baseline` made it.

    Raises:
        UsageError: The file is not a provenance of this version.
    """
    path = baseline / PROVENANCE_FILE
    if not path.is_file():
        return None
    try:
        return decode_record(Provenance, path.read_bytes())
    except ValueError as error:
        message = f"{path}: not a provenance of this version: {error}"
        raise UsageError(message, remedy="Move the folder away and run `baseline` again, or name another.") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """A folder, and one beside it for the trainer, that are gone afterwards unless they were moved away."""
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(f"{folder}.work", ignore_errors=True)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise, as Ctrl-C does, so that what was begun is cleared away."""

    def stop(_signum: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the clearing away
        message = "the baseline was asked to stop; nothing of it is kept"
        raise StoppedError(message, remedy="Type the same command again; it begins afresh.")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _existing(target: Path, recipe: Recipe) -> Provenance | None:
    """The policy that is there, if it was made from the same recipe by the same sources."""
    if not target.exists():
        return None
    provenance = read_provenance(target) if target.is_dir() else None
    if provenance is None:
        message = f"{target}: holds something that `baseline` did not make"
        raise UsageError(message, remedy="Move it away, or name another folder in `inputs.baseline`.")
    verify_tree(target)
    wanted = (recipe.starter, recipe.world, recipe.compute, scan_sources().digest)
    made = (provenance.starter, provenance.world, provenance.compute, provenance.sources)
    return provenance if wanted == made else None


def _work(pool: WorkerPool, recipe: Recipe, folder: Path, watcher: Watcher) -> StarterDone:
    """Let the one worker make the policy in a folder, and return what it measured."""
    done: list[StarterDone] = []

    def on_event(key: str, event: Record) -> None:
        if isinstance(event, Progressed):
            watcher.progress(f"{key} {event.label}", event.label, event.done, event.total)
        elif isinstance(event, StarterDone):
            done.append(event)

    job = StarterJob(recipe=recipe, output_dir=str(folder))
    pool.run([Chain(("baseline",), [lambda: [job]])], on_event, _no_limit)
    return done[0]


def _no_limit() -> None:
    """A starting policy may take as long as it takes."""


def _provenance(recipe: Recipe, done: StarterDone) -> Provenance:
    if recipe.starter is None:
        message = f"recipe '{recipe.name}' has no [starter] section"
        raise UsageError(message)
    return Provenance(
        starter=recipe.starter,
        world=recipe.world,
        compute=recipe.compute,
        sources=scan_sources().digest,
        families=done.families,
        retention=done.retention,
    )
