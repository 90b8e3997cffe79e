"""Names of worlds and what they stand for; the one place that knows every world."""

from __future__ import annotations

from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.math_qa.environment import MathQA
from experiment.records.recipe import World


def build_world(settings: World) -> GermanTools:
    """The world that a recipe's `[world]` names."""
    return GermanTools(settings.families, settings.number_formats)


def build_retention() -> MathQA:
    """The world of the retention suite."""
    return MathQA()
