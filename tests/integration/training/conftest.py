"""One tiny policy for all training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.doubles.tiny_training import write_policy


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny policy."""
    folder = tmp_path_factory.mktemp("baseline")
    write_policy(folder)
    return folder


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    """A worker process configures itself once; torch refuses this setting a second time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_interop_threads", lambda _: None)
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        yield
