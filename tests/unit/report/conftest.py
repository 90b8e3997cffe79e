from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run


@pytest.fixture(scope="session")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A run that is written to disk; tests leave it as it is."""
    run = draft_run(tmp_path_factory.mktemp("reported"), recipe=small_recipe(steps=2, final=4))
    run.write()
    return run


@pytest.fixture(scope="session")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose qualification failed."""
    run = draft_run(tmp_path_factory.mktemp("failed"), recipe=small_recipe(steps=2, final=3), fails_qualification=True)
    run.write()
    return run.run_dir
