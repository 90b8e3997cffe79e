"""The clock and the identifiers of a workspace."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from experiment.environments.delta_world.normalising import Normaliser

NEWEST = 1_718_000_000  # 2024-06-10 06:13:20


def _commit(folder: Path, table: str, version: int, moment: float | None = None) -> Path:
    log = folder / table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    path = log / f"{version:020}.json"
    path.write_text("{}")
    if moment is not None:
        os.utime(path, (moment, moment))
    return path


@pytest.fixture
def clock(tmp_path: Path) -> Normaliser:
    _commit(tmp_path, "ops/a", 0, NEWEST - 60)
    _commit(tmp_path, "ops/b", 0, NEWEST)
    return Normaliser(tmp_path, private=(tmp_path.parent,))


def _now() -> float:
    """The server's clock, a little later: its texts stop at milliseconds."""
    return time.clock_gettime(time.CLOCK_REALTIME) + 0.005


def _text(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def test_present_is_an_hour_after_the_fixture_and_a_minute_per_call(clock: Normaliser) -> None:
    now = _text(_now())
    clock.begin_call()
    assert clock.data(now) == "2024-06-10 07:14:20"
    clock.begin_call()
    assert clock.data(_text(_now())) == "2024-06-10 07:15:20"


def test_time_of_the_data_is_left_alone(clock: Normaliser) -> None:
    clock.begin_call()
    for text in ("2024-06-01 02:30:00", "1999-12-31 23:59:59.5", "2024-06-01", "9999-99-99 00:00:00", "1718000000000"):
        assert clock.data(text) == text


def test_commits_are_dated_to_their_call_in_order(tmp_path: Path, clock: Normaliser) -> None:
    clock.begin_call()
    later = _commit(tmp_path, "ops/a", 1, _now())
    sooner = _commit(tmp_path, "ops/b", 1, _now() - 1)
    shown = _text(later.stat().st_mtime)
    clock.date_commits()
    assert sooner.stat().st_mtime == NEWEST + 3660
    assert later.stat().st_mtime == NEWEST + 3661
    clock.begin_call()
    assert clock.data(shown) == "2024-06-10 07:14:21"


def test_commits_of_the_fixture_keep_their_time(tmp_path: Path, clock: Normaliser) -> None:
    clock.begin_call()
    clock.date_commits()
    assert (tmp_path / "ops/a/_delta_log" / f"{0:020}.json").stat().st_mtime == NEWEST - 60


def test_tables_of_the_agent_keep_the_time_of_their_files(tmp_path: Path, clock: Normaliser) -> None:
    clock.begin_call()
    now = _now()
    made = _commit(tmp_path, "ops/mine", 0, now)
    clock.date_commits()
    assert made.stat().st_mtime == now
    assert clock.data(_text(now)) == "2024-06-10 07:14:20"


def test_folders_and_the_catalog_have_public_names(tmp_path: Path, clock: Normaliser) -> None:
    text = f"file:{tmp_path}/ops/a and {tmp_path}/ops/b in `spark_catalog`.`ops`, not file://{tmp_path.parent}/x"
    assert clock.data(text) == "dbfs:/workspace/ops/a and dbfs:/workspace/ops/b in `workspace`.`ops`, not dbfs:/x"


def test_identifiers_are_numbered_where_spark_speaks_and_kept_in_data(clock: Normaliser) -> None:
    first, second = "1f0c5d9e-0000-4000-8000-0123456789ab", "2f0c5d9e-0000-4000-8000-0123456789ab"
    assert clock.data(f"id {first}") == f"id {first}"
    assert clock.report(f"{second} {first} {second}") == (
        "00000000-0000-4000-8000-000000000001 00000000-0000-4000-8000-000000000002 00000000-0000-4000-8000-000000000001"
    )
    assert clock.data(f"part-00000-{first}.c000.parquet").startswith("part-00000-00000000-0000-4000-8000-000000000002")


def test_expressions_are_numbered_afresh_in_every_report(clock: Normaliser) -> None:
    assert clock.report("Filter (id#812 > 1) [id#812, n#907L]") == "Filter (id#1 > 1) [id#1, n#2L]"
    assert clock.report("(id#99 = id#98)") == "(id#1 = id#2)"
    assert clock.data("order#812") == "order#812"


def test_durations_are_zero_in_reports(clock: Normaliser) -> None:
    text = "{numFiles -> 1, executionTimeMs -> 812, scanTimeMs: 3, rewriteTimeMs='7', numOutputRows -> 2}"
    assert (
        clock.report(text)
        == "{numFiles -> 1, executionTimeMs -> 0, scanTimeMs: 0, rewriteTimeMs='0', numOutputRows -> 2}"
    )
    assert clock.data(text) == text


ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata", "+02:00", "GMT-7", "UTC+05:45")


def _local(moment: float, zone: str) -> str:
    offsets = {"+02:00": 7200, "GMT-7": -25200, "UTC+05:45": 20700}
    found = datetime.timezone(datetime.timedelta(seconds=offsets[zone])) if zone in offsets else ZoneInfo(zone)
    return datetime.datetime.fromtimestamp(moment, tz=found).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


@pytest.mark.parametrize("zone", ZONES)
def test_time_is_the_workspaces_in_every_zone_of_the_session(zone: str, clock: Normaliser) -> None:
    clock.begin_call()
    clock.set_zone(zone)
    present = NEWEST + 3660
    assert clock.data(_local(_now(), zone)) == _local(present, zone)[:-4]
    assert clock.data(_local(_now(), zone)[:10]) == _local(present, zone)[:10]
    # What is printed by a program is in UTC whatever the session's zone.
    assert clock.data(_text(_now())) == _text(present)[:-4]
    assert clock.data(f"{_text(_now())}Z") == f"{_text(present)[:-4]}Z"
    for text in ("2024-06-10 08:13:20", "2024-10-27 02:30:00"):
        assert clock.data(text) == text


@pytest.mark.parametrize("zone", ZONES)
def test_commit_is_shown_with_its_time_in_every_zone(zone: str, tmp_path: Path, clock: Normaliser) -> None:
    clock.begin_call()
    made = float(int(_now()) + 1)  # no rounding between here and the file
    _commit(tmp_path, "ops/a", 1, made)
    clock.date_commits()
    clock.begin_call()
    clock.begin_call()
    clock.set_zone(zone)
    assert clock.data(_local(made, zone)) == _local(NEWEST + 3660, zone)[:-4]


@pytest.mark.parametrize("zone", ["PST", "../../etc/passwd", "", "Nowhere/At_All"])
def test_zone_that_is_unknown_here_counts_as_utc(zone: str, clock: Normaliser) -> None:
    clock.begin_call()
    clock.set_zone(zone)
    assert clock.data(_text(_now())) == "2024-06-10 07:14:20"
