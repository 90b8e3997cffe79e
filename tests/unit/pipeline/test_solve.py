from __future__ import annotations

from pathlib import Path

import pytest

from experiment.environments.german_tools.environment import GermanTools
from experiment.pipeline.solve import solve_all
from experiment.records.recipe import Recipe
from experiment.records.world import GermanToolsWorld
from tests.doubles.small_plan import small_recipe


class Bars:
    """Remembers how far the work was."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}

    def stage(self, name: str, detail: str) -> None:
        """Do nothing."""

    def progress(self, key: str, label: str, done: int, total: int) -> None:
        """Remember the last state of a bar."""
        self.last[label] = (done, total)

    def note(self, text: str) -> None:
        """Do nothing."""


def german_recipe() -> Recipe:
    """The small recipe, on families that there are."""
    return small_recipe().model_copy(update={"world": GermanToolsWorld()})


def test_every_set_is_played_by_the_solver_and_by_policies_that_have_to_fail(tmp_path: Path) -> None:
    recipe, bars = german_recipe(), Bars()
    result = solve_all(recipe, bars, tmp_path)
    assert result.is_sound
    counts = {line.partition(":")[0]: line for line in result.lines}
    assert list(counts) == ["train", "dev", "final", "retention-dev", "retention-final", "all 3 sets of german_tools"]
    total = recipe.episodes.train.count + recipe.episodes.dev.count + recipe.episodes.final.count
    said = f"solver {total}/{total}, no-op 0/{total}, skip_calculation 0/{total}, repeat_calculation 0/{total}, "
    assert said in counts["all 3 sets of german_tools"]
    assert counts["dev"].endswith(" episodes/s")
    dev = recipe.episodes.dev.count
    assert bars.last["dev: solver"] == bars.last["dev: skip_calculation"] == (dev, dev)


@pytest.mark.parametrize(("broken", "by"), [("solve", "skip_calculation"), ("skip_calculation", "solve")])
def test_an_unsound_world_is_told(broken: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GermanTools, broken, getattr(GermanTools, by))
    assert not solve_all(german_recipe(), Bars(), tmp_path).is_sound
