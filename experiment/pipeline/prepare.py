"""From a recipe to a sealed plan. No model is loaded and nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from experiment.decisions.power import power_table
from experiment.environments.base import Environment
from experiment.environments.catalogue import build_retention, build_world, describe_world
from experiment.environments.math_qa.environment import load_mgsm
from experiment.errors import PlanError, UsageError
from experiment.pipeline.baseline import read_provenance
from experiment.pipeline.inputs import freeze_environment, freeze_inputs, supervised_file
from experiment.pipeline.schedule import build_schedule
from experiment.pipeline.template import verify_template
from experiment.records.base import Name
from experiment.records.episode import Episode
from experiment.records.plan import Plan
from experiment.records.recipe import EpisodeSet, Recipe
from experiment.sealing.canonical import decode, decode_record, encode_record
from experiment.sealing.digests import CONTEXT_PLAN, derive
from experiment.sealing.files import write_atomic

PLAN_FILE: Final = "plan.json"
SEAL_FILE: Final = "plan.seal"
CLAIM_FILE: Final = "claim"
CONTENTS_FILE: Final = "supervised-contents.json"


def prepare(recipe: Recipe, recipe_path: Path, output: Path, gym_python: Path | None = None) -> Plan:
    """Freeze an experiment into a folder that holds the plan and its seal.

    Args:
        recipe: The recipe.
        recipe_path: Its file, which is frozen as well.
        output: A fresh folder.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.

    Raises:
        UsageError: The output is not empty, an input is missing, or sets overlap.
    """
    if names := list_folder(output):
        message = f"{output}: not empty, it holds {names[0]}"
        raise UsageError(message, remedy="Name a fresh folder with --output; plans are never overwritten.")
    plan = build_plan(recipe, recipe_path, output.name, describe_world(recipe.world, gym_python))
    data = encode_record(plan)
    output.mkdir(parents=True, exist_ok=True)
    write_atomic(output / PLAN_FILE, data)
    write_atomic(output / SEAL_FILE, f"{derive(CONTEXT_PLAN, data)}\n".encode())
    return plan


def list_folder(folder: Path) -> list[str]:
    """Names of what is in the folder of a plan or run, sorted; empty where it does not exist yet.

    Raises:
        UsageError: It is a file, or its own name cannot be that of a plan or run.
    """
    try:
        TypeAdapter(Name).validate_python(folder.name)
        return sorted(each.name for each in folder.iterdir())
    except ValidationError as error:
        message = f"{folder}: '{folder.name}' cannot be the name of a plan or run"
        remedy = "Use at most 63 lower-case letters, digits, '-' and '_', the first a letter or digit."
        raise UsageError(message, remedy=remedy) from error
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        message = f"{folder}: is not a folder"
        raise UsageError(message, remedy="Name a fresh folder.") from error


def build_plan(recipe: Recipe, recipe_path: Path, name: str, world_facts: tuple[tuple[str, str], ...]) -> Plan:
    """The plan of a recipe; equal recipes on equal inputs give equal plans.

    Raises:
        UsageError: An input is missing or cannot be frozen, or sets overlap.
    """
    inputs = freeze_inputs(recipe, recipe_path)
    tokenizer = Path(recipe.inputs.tokenizer or recipe.inputs.baseline)
    supervised = _supervised_contents(recipe)
    world, retention = build_world(recipe.world), build_retention()
    taken = frozenset(supervised)
    sets: dict[str, tuple[Episode, ...]] = {}
    for label, source in (
        ("train", recipe.episodes.train),
        ("dev", recipe.episodes.dev),
        ("final", recipe.episodes.final),
    ):
        sets[label] = _generate(world, label, source, taken)
        taken |= {episode.content for episode in sets[label]}
    for label, origin in (("retention-dev", recipe.retention.dev), ("retention-final", recipe.retention.final)):
        sets[label] = _retention_set(retention, label, origin, taken)
        taken |= {episode.content for episode in sets[label]}
    _refuse_overlap(sets, supervised)
    provenance = read_provenance(Path(recipe.inputs.baseline))
    measured = provenance.families if provenance else ()
    return Plan(
        name=name,
        recipe=recipe,
        inputs=inputs,
        environment=freeze_environment(),
        chat_template=verify_template(tokenizer),
        world_facts=world_facts,
        tools=world.tools,
        train=sets["train"],
        dev=sets["dev"],
        final=sets["final"],
        retention_dev=sets["retention-dev"],
        retention_final=sets["retention-final"],
        supervised=supervised,
        baseline_successes=sum(family.successes for family in measured),
        baseline_attempts=sum(family.episodes for family in measured),
        schedule=build_schedule(recipe, sets["train"]),
        power=power_table(recipe.episodes.final.count, len(recipe.assessment.seeds)),
        predecessors=find_predecessors(sets["final"]),
    )


def find_predecessors(final: Sequence[Episode]) -> tuple[str, ...]:
    """Digests of the plans under `plans/` that were run and share an episode with a final set, sorted.

    Whoever reads the plan then sees that the set is not fresh, whether or not its author says so.
    """
    contents = {episode.content for episode in final}
    found = set()
    for claim in Path("plans").glob(f"*/{CLAIM_FILE}"):
        try:
            plan, digest = load_plan(claim.parent / PLAN_FILE)
        except (UsageError, PlanError):
            continue  # of another version, or damaged: it cannot be read, so nothing can be said about it
        if contents & {episode.content for episode in plan.final}:
            found.add(digest)
    return tuple(sorted(found))


def fresh_plan_dir(name: str) -> Path:
    """The first unused folder `plans/NAME-001`, `plans/NAME-002` and so on."""
    numbers = (Path("plans") / f"{name}-{number:03d}" for number in count(1))
    return next(folder for folder in numbers if not folder.exists())


def load_plan(path: Path) -> tuple[Plan, str]:
    """Read a plan and its digest; the seal beside it was found to be true.

    Raises:
        UsageError: There is no such file.
        PlanError: The plan does not fit its seal or its schema.
    """
    try:
        data = path.read_bytes()
        sealed = (path.parent / SEAL_FILE).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        message = f"{error.filename}: cannot be read ({error.strerror})"
        raise UsageError(message, remedy="Name the plan.json that `prepare` wrote, with --plan.") from error
    digest = derive(CONTEXT_PLAN, data)
    if digest != sealed:
        message = f"{path}: its bytes do not fit {SEAL_FILE}"
        raise PlanError(message)
    try:
        return decode_record(Plan, data), digest
    except ValueError as error:
        message = f"{path}: not a plan of this version: {error}"
        raise PlanError(message) from error


def _generate(world: Environment, label: str, source: EpisodeSet, taken: frozenset[str]) -> tuple[Episode, ...]:
    return world.generate(prefix=label, count=source.count, seed=source.seed, taken=taken, tier=source.tier)


def _retention_set(
    world: Environment, label: str, origin: EpisodeSet | str, taken: frozenset[str]
) -> tuple[Episode, ...]:
    if isinstance(origin, str):
        return load_mgsm(Path(origin), label)
    return _generate(world, label, origin, taken)


def _supervised_contents(recipe: Recipe) -> tuple[str, ...]:
    """Contents that the baseline was fine-tuned on: those that it lists, and the file beside the DEV questions."""
    listed = _listed_contents(Path(recipe.inputs.baseline))
    beside = supervised_file(recipe)
    if beside is None:
        return listed
    return tuple(sorted({*listed, *(episode.content for episode in load_mgsm(beside, "supervised"))}))


def _listed_contents(baseline: Path) -> tuple[str, ...]:
    path = baseline / CONTENTS_FILE
    if not path.is_file():
        return ()
    try:
        contents = decode(path.read_bytes())
    except ValueError as error:
        message = f"{path}: {error}"
        raise UsageError(message) from error
    if not isinstance(contents, list):
        message = f"{path}: not a list of digests"
        raise UsageError(message)
    return tuple(str(each) for each in contents)


def _refuse_overlap(sets: dict[str, tuple[Episode, ...]], supervised: Sequence[str]) -> None:
    """Refuse an id or a task that appears twice anywhere; positions count from 0."""
    first: dict[tuple[str, str], str] = {("task", content): "the supervised data" for content in supervised}
    for label, episodes in sets.items():
        for position, episode in enumerate(episodes):
            place = f"{label}, position {position} ({episode.id})"
            for key in (("id", episode.id), ("task", episode.content)):
                if key in first:
                    message = f"{place}: the same {key[0]} as {first[key]}"
                    raise UsageError(message, remedy="Remove one of the two from its file, or choose another seed.")
                first[key] = place
