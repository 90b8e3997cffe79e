from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiment.pipeline.recipes import load_recipe
from experiment.records.recipe import Recipe
from experiment.sealing.canonical import encode

RECIPE = Path("recipes/quickstart.toml")
LOCK = Path("requirements/train.lock")
SMALL = (
    "episodes.train.count=8",
    "episodes.dev.count=6",
    "episodes.final.count=6",
    "retention.dev.count=4",
    "retention.final.count=4",
    "training.steps=6",
    "checkpoints.candidates=[3, 6]",
    "checkpoints.diagnostic=6",
    "checkpoints.recovery_every=3",
)
"""Overrides that make the recipe small."""


@dataclass(frozen=True)
class Bench:
    """A workspace in which a recipe can be prepared."""

    folder: Path

    @property
    def baseline(self) -> Path:
        """A folder that stands for a model."""
        return self.folder / "runs/baselines/quickstart"

    def recipe(self, *overrides: str) -> Recipe:
        """The small recipe."""
        return load_recipe(RECIPE, [*SMALL, *overrides])

    def teach(self, contents: list[str]) -> None:
        """Say what the baseline was fine-tuned on."""
        (self.baseline / "supervised-contents.json").write_bytes(encode(contents))

    def files(self) -> dict[str, bytes]:
        """Everything that is there."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def bench(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A recipe, its lock file, and something in place of its starting policy."""
    monkeypatch.chdir(tmp_path)
    for source, name in (("tests/golden/recipe.toml", RECIPE), ("requirements/train.lock", LOCK)):
        (tmp_path / name).parent.mkdir()
        shutil.copyfile(repository / source, tmp_path / name)
    made = Bench(tmp_path)
    made.baseline.mkdir(parents=True)
    (made.baseline / "model.safetensors").write_bytes(b"weights")
    shutil.copyfile(repository / "experiment/training/chat_template.jinja", made.baseline / "chat_template.jinja")
    return made
