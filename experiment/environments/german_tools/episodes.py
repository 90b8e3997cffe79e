"""Generator of the German lookup and calculator world: short prompts over small tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from experiment.environments.generation import Draft, Space
from experiment.environments.german_tools.numbers import calculate, format_number, parse_number
from experiment.records.episode import Message
from experiment.sealing.seeds import derive_seed

WORLD = "german_tools"
FAMILIES = ("direct", "one_step", "two_step")
"""All families, easiest first."""
NUMBER_FORMATS = ("integer", "decimal", "thousands", "negative")
SYSTEM = "Du nutzt Werkzeuge."
KEYS = (
    "Äpfel", "Birnen", "Käse", "Brötchen", "Grüße", "Straße", "Müller", "Schlüssel", "Bücher", "Stühle",
    "Tische", "Gläser", "Flöße", "Häuser", "Bäume", "Züge", "Räder", "Hühner", "Kühe", "Schafe",
    "Nüsse", "Kürbis", "Möhren", "Rüben", "Zwiebeln", "Gemüse", "Öl", "Mehl", "Zucker", "Salz",
    "Maße", "Füße", "Hände", "Knöpfe", "Töpfe", "Körbe", "Säcke", "Fässer", "Übung", "Ärmel",
)  # fmt: skip
LEFT = tuple(range(11, 21))
RIGHT = tuple(range(2, 10))
"""`LEFT` × `RIGHT` are the 80 ordered operand pairs."""
OPERATIONS = ("plus", "minus", "mal")
DISTRACTORS = 2

_SCALES = {"integer": Decimal(1), "decimal": Decimal("0.1"), "thousands": Decimal(1000), "negative": Decimal(-1)}
_TEMPLATES = {
    "direct": ("Welchen Wert hat {a}?", "Nenne den Wert von {a}.", "Wie lautet der Wert von {a}?"),
    "one_step": ("Was ergibt {a} {op} {b}?", "Berechne {a} {op} {b}.", "Wie viel ist {a} {op} {b}?"),
    "two_step": ("Was ergibt {a} {op} {b}?", "Berechne {a} {op} {b}.", "Wie viel ist {a} {op} {b}?"),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What distinguishes one task of a family from another."""

    template: str
    keys: tuple[str, ...]
    left: str
    """Canonical German number."""
    right: str
    operation: str


def task_space(family: str, number_formats: tuple[str, ...]) -> Space:
    """Return the numbered tasks of `family` whose operands are written in `number_formats`."""

    def draft(number: int, seed: int) -> Draft:
        return _draft(family, _choose(family, number_formats, number), number_formats, seed)

    return Space(family=family, size=math.prod(_bases(family, len(number_formats))), draft=draft)


def write_number(value: int, number_format: str) -> str:
    """Return the operand in the canonical German form of the format: 15 is `15`, `1,5`, `15.000` or `-15`."""
    return format_number(value * _SCALES[number_format])


def _bases(family: str, formats: int) -> tuple[int, ...]:
    """Numbers of choices of a family, in the order in which `_choose` takes them; 1 where there is no choice."""
    calculates = family != "direct"
    return (
        len(_TEMPLATES[family]),
        len(KEYS),
        len(KEYS) - 1 if family == "two_step" else 1,
        len(LEFT),
        formats,
        len(RIGHT) if calculates else 1,
        formats if calculates else 1,
        len(OPERATIONS) if calculates else 1,
    )


def _choose(family: str, number_formats: tuple[str, ...], number: int) -> Choice:
    picks: list[int] = []
    for base in _bases(family, len(number_formats)):
        number, pick = divmod(number, base)
        picks.append(pick)
    template, key, offset, left, left_format, right, right_format, operation = picks
    second = KEYS[(key + 1 + offset) % len(KEYS)]
    return Choice(
        template=_TEMPLATES[family][template],
        keys=(KEYS[key], second) if family == "two_step" else (KEYS[key],),
        left=write_number(LEFT[left], number_formats[left_format]),
        right=write_number(RIGHT[right], number_formats[right_format]),
        operation=OPERATIONS[operation],
    )


def _draft(family: str, choice: Choice, number_formats: tuple[str, ...], seed: int) -> Draft:
    is_direct = family == "direct"
    values = dict(zip(choice.keys, (choice.left, choice.right), strict=False))
    prompt = choice.template.format(a=choice.keys[0], op=choice.operation, b=(*choice.keys, choice.right)[1])
    answer = choice.left
    if not is_direct:
        answer = format_number(calculate(choice.operation, parse_number(choice.left), parse_number(choice.right)))
    essence: dict[str, object] = {
        "answer": answer,
        "given": choice.right if family == "one_step" else None,
        "lookups": list(choice.keys),
        "operation": None if is_direct else choice.operation,
    }
    return Draft(
        family=family,
        messages=(Message(role="system", content=SYSTEM), Message(role="user", content=prompt)),
        task={**essence, "table": values | _distractors(choice.keys, number_formats, seed)},
        essence={**essence, "values": values},
    )


def _distractors(keys: tuple[str, ...], number_formats: tuple[str, ...], seed: int) -> dict[str, str]:
    """Return `DISTRACTORS` further table entries, which no required call touches."""
    others = [key for key in KEYS if key not in keys]
    entries: dict[str, str] = {}
    for counter in range(DISTRACTORS):
        key = others.pop(derive_seed(seed, "distractor key", counter) % len(others))
        value = LEFT[derive_seed(seed, "distractor value", counter) % len(LEFT)]
        number_format = number_formats[derive_seed(seed, "distractor format", counter) % len(number_formats)]
        entries[key] = write_number(value, number_format)
    return entries
