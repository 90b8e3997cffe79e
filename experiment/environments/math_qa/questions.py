"""Generator of German word problems: one more or one fewer of 2 … 11 things."""

from __future__ import annotations

import math
from decimal import Decimal

from experiment.environments.generation import Draft, Space
from experiment.environments.german_tools.numbers import format_number
from experiment.records.episode import Message

WORLD = "math_qa"
FAMILIES = ("plus", "minus")
"""The generated families, easiest first."""
SYSTEM = "Du rechnest."
MGSM_FAMILY = "mgsm"
"""Family of the questions that come from a file."""
MGSM_SYSTEM = "Löse die Aufgabe. Die letzte Zeile lautet „Antwort: “ und die Zahl."

_NAMES = ("Anna", "Ben", "Clara", "David", "Eva", "Finn", "Jörg", "Lea", "Max", "Käthe", "Paul", "Sören")
_THINGS = ("Äpfel", "Birnen", "Nüsse", "Bücher", "Knöpfe", "Brötchen", "Möhren", "Stühle", "Gläser", "Töpfe")
_TEMPLATES = {
    "plus": (
        "{name} hat {a} {thing} und kauft {b} dazu. Wie viele sind es?",
        "{name} hat {a} {thing} und bekommt {b}. Wie viele sind es?",
    ),
    "minus": (
        "{name} hat {a} {thing} und verkauft {b}. Wie viele bleiben?",
        "{name} hat {a} {thing} und verschenkt {b}. Wie viele bleiben?",
    ),
}
# From 2 on, so that the plural is always right; by 1, so that a policy made from nothing in a minute can learn it.
_PAIRS = {family: tuple((a, 1) for a in range(2, 12)) for family in FAMILIES}


def make_question(family: str, question: str, answer: Decimal) -> Draft:
    """Return the draft of one question; those from a file also say how the answer is written.

    Raises:
        GermanNumberError: The answer is longer than the grammar of German numbers allows.
    """
    system = MGSM_SYSTEM if family == MGSM_FAMILY else SYSTEM
    task: dict[str, object] = {"answer": format_number(answer)}
    messages = (Message(role="system", content=system), Message(role="user", content=question))
    return Draft(family=family, messages=messages, task=task, essence=task)


def question_space(family: str) -> Space:
    """Return the numbered questions of `family`."""
    choices = (_TEMPLATES[family], _NAMES, _THINGS, _PAIRS[family])

    def draft(number: int, _seed: int) -> Draft:
        number, template = divmod(number, len(_TEMPLATES[family]))
        number, name = divmod(number, len(_NAMES))
        pair, thing = divmod(number, len(_THINGS))
        a, b = _PAIRS[family][pair]
        question = _TEMPLATES[family][template].format(name=_NAMES[name], a=a, b=b, thing=_THINGS[thing])
        return make_question(family, question, Decimal(a + b if family == "plus" else a - b))

    return Space(family=family, size=math.prod(len(choice) for choice in choices), draft=draft)
