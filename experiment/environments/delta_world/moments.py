"""When the commits of a fixture happened: fixed moments, so that a history reads the same in every run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_FIRST = datetime(2024, 6, 3, 6, 0, tzinfo=UTC)
_STEP = timedelta(minutes=45)


def commit_moment(version: int) -> datetime:
    """Return the time of a commit."""
    return _FIRST + version * _STEP


def write_moment(version: int, *, minutes_after: int) -> str:
    """Return a time after a commit and before the next, as SQL writes it in UTC."""
    return f"{commit_moment(version) + timedelta(minutes=minutes_after):%Y-%m-%d %H:%M:%S}"
