"""One tiny policy for all training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.doubles.tiny_training import write_policy
from tests.doubles.trial import Trial, draft_trial, trial_plan


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny policy."""
    folder = tmp_path_factory.mktemp("baseline")
    write_policy(folder)
    return folder


@pytest.fixture(scope="session")
def drafted_trial(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A straight branch and a stopped one; tests work on copies."""
    # Session fixtures come before those of a module, and the process must be configured once at most.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_interop_threads", lambda _: None)
        return draft_trial(tmp_path_factory.mktemp("trial"), trial_plan(baseline))


@pytest.fixture
def trial(drafted_trial: Trial, tmp_path: Path) -> Trial:
    """A straight branch and a stopped one, to be broken."""
    return drafted_trial.copy(tmp_path)


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    """A worker process configures itself once; torch refuses this setting a second time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_interop_threads", lambda _: None)
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        yield
