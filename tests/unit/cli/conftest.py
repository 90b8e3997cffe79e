from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from experiment.cli.app import main

Call = Callable[..., int]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Types a command; returns its exit code."""

    def type_(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["experiment", *words])
        return main()

    return type_
