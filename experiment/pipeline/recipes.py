"""Reading recipes: every mistake becomes one sentence that names file, key and fix."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from experiment.errors import UsageError
from experiment.records.recipe import Recipe


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read, override and validate a recipe.

    Args:
        path: A TOML file.
        overrides: `section.key=value` settings, the value in TOML's notation (a bare word is a string).

    Raises:
        UsageError: The file is missing or no TOML, a key is unknown, or a value does not fit.
    """
    try:
        data = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        raise UsageError(message) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{path}: not valid TOML: {error}"
        raise UsageError(message) from error
    for override in overrides:
        _apply(data, override)
    return parse_recipe(data, str(path))


def copy_recipe(source: Path, name: str) -> Path:
    """Write `recipes/NAME.toml` from another recipe, comments and all, and return its path.

    Raises:
        UsageError: The name does not fit, the source is no recipe, or the target exists.
    """
    load_recipe(source)
    target = Path("recipes") / f"{name}.toml"
    original = source.read_text(encoding="utf-8")
    data = {**tomllib.loads(original), "name": name}
    parse_recipe(data, str(target))
    text = re.sub(r'(?m)^name = ".*"$', f'name = "{name}"', original, count=1)
    if tomllib.loads(text) != data:
        message = f'{source}: has no line `name = "..."` of its own to change'
        raise UsageError(message, remedy="Write the name on a line of its own, in double quotes.")
    target.parent.mkdir(exist_ok=True)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        message = f"{target}: exists already"
        raise UsageError(message, remedy="Choose another name.") from None
    return target


def parse_recipe(data: Mapping[str, Any], place: str) -> Recipe:
    """Validate a recipe's data.

    Raises:
        UsageError: Names the first wrong keys.
    """
    if dated := _find_date(data, ""):
        message = f"{place}: key '{dated}' is a date or time, put it in quotes"
        raise UsageError(message)
    try:
        recipe = Recipe.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors()[:3]]
        message = f"{place}: " + "; ".join(problems)
        raise UsageError(message) from error
    _check_consistency(recipe, place)
    return recipe


def _find_date(value: object, key: str) -> str | None:
    """The first key whose value is a date or time, which JSON does not have."""
    if isinstance(value, date | time):
        return key
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    places = (_find_date(each, f"{key}.{name}" if key else str(name)) for name, each in inner)
    return next((place for place in places if place is not None), None)


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        message = f"--set {override}: expected section.key=value"
        raise UsageError(message)
    *sections, last = key.split(".")
    target = data
    for section in sections:
        inner = target.setdefault(section, {})
        if not isinstance(inner, dict):
            message = f"--set {override}: '{section}' is a value, not a section"
            raise UsageError(message)
        target = inner
    try:
        target[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        target[last] = value


def _explain(problem: ErrorDetails) -> str:
    """One clause: the key, what is wrong with it, and what would be right."""
    key, known = _place(problem["loc"], is_unknown=problem["type"] == "extra_forbidden")
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known keys are {', '.join(sorted(known))}"
        return f"unknown key '{key}', {hint}"
    if problem["type"] == "union_tag_not_found":
        return f"key '{key}.name' is missing, add it"
    if problem["type"] == "union_tag_invalid":
        return f"key '{key}.name' is {problem['ctx']['tag']!r}, it must be one of {problem['ctx']['expected_tags']}"
    if problem["type"] == "missing":
        return f"key '{key}' is missing, add it"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    return f"key '{key}' is {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _place(location: tuple[int | str, ...], *, is_unknown: bool) -> tuple[str, list[str]]:
    """The key as the recipe's author knows it, and the keys that are known beside it."""
    model: Any = Recipe
    keys: list[str] = []
    kinds: list[type[BaseModel]] = []
    for part in location[:-1]:
        if isinstance(part, int):
            keys.append(str(part))
        elif part in model.model_fields:
            keys.append(part)
            annotation = model.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            kinds = [each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)]
            model = kinds[0] if kinds else model
        else:  # one of several kinds of section, told apart by its name
            model = next((each for each in kinds if _tag(each) == part), model)
    # Where a key may have one of several types, the validator adds the type's name, which is no key.
    if is_unknown or isinstance(location[-1], int) or location[-1] in model.model_fields:
        keys.append(str(location[-1]))
    return ".".join(keys), list(model.model_fields)


def _tag(kind: type[BaseModel]) -> object:
    """What tells this kind of section from others."""
    return kind.model_fields["name"].default if "name" in kind.model_fields else None


def _check_consistency(recipe: Recipe, place: str) -> None:
    """Refuse settings that are each valid and together are not."""
    training, marks = recipe.training, recipe.checkpoints
    batch = training.prompts_per_step * training.rollouts_per_prompt
    names = [arm.name for arm in recipe.arms]
    learns = [arm.name for arm in recipe.arms if arm.observation_weight and arm.observation_logits == "plain"]
    problems = (
        (not recipe.arms, "key 'arms' is empty, add at least one [[arms]] section"),
        (len(set(names)) != len(names), f"arms share a name ({', '.join(names)}), give each its own"),
        (
            batch % training.gradient_accumulation != 0,
            f"training.gradient_accumulation {training.gradient_accumulation} is no divisor of the {batch} rollouts",
        ),
        (
            recipe.episodes.train.count % training.prompts_per_step != 0,
            f"episodes.train.count {recipe.episodes.train.count} is no multiple of training.prompts_per_step",
        ),
        (
            any(step > training.steps for step in (*marks.candidates, marks.diagnostic)),
            f"checkpoints lie beyond training.steps {training.steps}",
        ),
        (not marks.candidates, "checkpoints.candidates is empty, name at least one step"),
        (
            list(marks.candidates) != sorted(set(marks.candidates)),
            "checkpoints.candidates are not rising, sort them and remove doubles",
        ),
        (
            not 0 < recipe.qualification.stop_at < recipe.qualification.steps <= training.steps,
            "qualification needs 0 < stop_at < steps <= training.steps",
        ),
        (
            bool(learns) and recipe.sampling.temperature != 1.0,
            f"arm '{''.join(learns[:1])}': set sampling.temperature to 1.0, or observation_logits to 'tempered'",
        ),
        (
            len(set(recipe.assessment.seeds)) != len(recipe.assessment.seeds) or not recipe.assessment.seeds,
            "assessment.seeds must be different and at least one",
        ),
        (
            len(set(recipe.assessment.retention_seeds)) != len(recipe.assessment.retention_seeds)
            or not recipe.assessment.retention_seeds,
            "assessment.retention_seeds must be different and at least one",
        ),
    )
    for is_wrong, problem in problems:
        if is_wrong:
            message = f"{place}: {problem}"
            raise UsageError(message)
