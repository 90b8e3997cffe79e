from __future__ import annotations

import pytest

from experiment.journal.reader import JournalView
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run


@pytest.fixture(scope="session")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A true story with all its files; tests copy it before they edit it, and leave the files alone."""
    return draft_run(tmp_path_factory.mktemp("drafted"), recipe=small_recipe(steps=2, final=3))


@pytest.fixture
def story(drafted: SmallRun) -> SmallRun:
    return drafted.copy()


@pytest.fixture
def drafted_view(drafted: SmallRun) -> JournalView:
    return drafted.view()
