"""Tests of worlds on their real services have a mark of their own, since not every environment can start them."""

from __future__ import annotations

from pathlib import Path

import pytest

_SERVICES = {"delta", "gym"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in the folder of a service."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in _SERVICES:
            item.add_marker(pytest.mark.service)
