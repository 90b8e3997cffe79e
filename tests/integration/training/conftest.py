"""One tiny policy for all training tests."""

from __future__ import annotations

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


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process configures itself once; torch refuses this setting a second time."""
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda _: None)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
