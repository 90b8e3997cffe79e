"""Makes what a server says the same in every execution: times, identifiers, folders, names.

Time in a workspace stands still between calls. It starts an hour after the newest commit of the fixture, and every
call moves it on by a minute; commits that a call made are dated to the call. So history, time travel and the text
agree, and none of it depends on when the episode is played.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import itertools
import os
import re
import time
import zoneinfo
from pathlib import Path

_HOUR_S, _MINUTE_S, _DAY_S = 3600, 60, 86400

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FILE_UUID = re.compile(rf"(?<=part-\d{{5}}-){_UUID}")
_ANY_UUID = re.compile(_UUID)
_MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d)([ T])(\d\d:\d\d:\d\d)(\.\d+)?(Z|\+00:00)?")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b(?![ T]\d\d:)")
_EPOCH_MS = re.compile(r"(?<![\w.])1\d{12}(?![\w.])")
_EXPRESSION = re.compile(r"(?<=\w)#\d+(?=L?)|\bplan_id=\d+|\[id=#\d+\]")
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?(?::?(\d\d))?")
_DURATION = re.compile(r"(\b\w*(?:Ms|Time|Times|Duration)\b['\"]?\s*(?:->|=|:)\s*['\"]?)\d+(?!\d*-)")


class Normaliser:
    """What one workspace has seen of its server's clock and identifiers."""

    def __init__(self, folder: Path, private: tuple[Path, ...] = ()) -> None:
        """Start the clock after the commits that are in `folder`.

        Args:
            folder: The episode's folder.
            private: Folders whose names the agent is not shown.
        """
        self._folder = folder
        self._private = private
        self._known = {path: entry.st_mtime_ns for path, entry in _commits(folder)}
        newest = max(self._known.values(), default=0) // 10**9
        self._start_s = newest + _HOUR_S
        self._kept = {os.path.dirname(path) for path in self._known}  # noqa: PTH120
        """Logs of the fixture, whose tables keep old commits for ever."""
        self._begun: list[float] = []
        """When each call began, by the server's clock."""
        self._identifiers: dict[str, str] = {}
        self._moments: dict[int, float] = {}
        """Milliseconds of the server's clock -> seconds of the workspace's clock."""
        self._opened_s = time.clock_gettime(time.CLOCK_REALTIME)
        self._zone: datetime.tzinfo = datetime.UTC

    def set_zone(self, name: str) -> None:
        """Take times without a zone for those of the session's zone; one that is unknown here counts as UTC."""
        self._zone = _find_zone(name)

    def begin_call(self) -> None:
        """Move the clock on by a minute."""
        self._begun.append(time.clock_gettime(time.CLOCK_REALTIME))

    def date_commits(self) -> None:
        """Date the commits that the call made to the call, a second apart, in the order in which they were made.

        Tables that the agent made keep their files' times, which are only shown as if: Delta would take commits of so
        long ago for expired.
        """
        fresh = [(entry.st_mtime_ns, path) for path, entry in _commits(self._folder) if path not in self._known]
        for number, (made_ns, path) in enumerate(sorted(fresh)):
            moment = self._now_s + number
            self._moments[made_ns // 10**6] = moment
            self._known[path] = made_ns
            with contextlib.suppress(FileNotFoundError):
                if os.path.dirname(path) not in self._kept:  # noqa: PTH120
                    continue
                os.utime(path, ns=(int(moment) * 10**9, int(moment) * 10**9))

    def data(self, text: str) -> str:
        """Return rows that the agent asked for, with the server's clock and folders replaced, and data left alone."""
        for path, shown in ((self._folder, "dbfs:/workspace"), *((each, "dbfs:") for each in self._private)):
            for prefix in ("file://", "file:", ""):
                text = text.replace(f"{prefix}{path}", shown)
        text = text.replace("spark_catalog", "workspace")
        text = _FILE_UUID.sub(self._identifier, text)
        text = _MOMENT.sub(self._replace_moment, text)
        text = _EPOCH_MS.sub(self._replace_epoch, text)
        return _DATE.sub(self._replace_date, text)

    def printed(self, text: str) -> str:
        """Return what a program printed, with identifiers and durations replaced as well."""
        return _DURATION.sub(r"\g<1>0", _ANY_UUID.sub(self._identifier, self.data(text)))

    def report(self, text: str) -> str:
        """Return what Spark says about tables, plans or errors, with numbers of expressions replaced as well."""
        numbers: dict[str, str] = {}
        counter = itertools.count(1)
        return _EXPRESSION.sub(lambda match: _renumber(match.group(), numbers, counter), self.printed(text))

    @property
    def _now_s(self) -> int:
        return self._start_s + len(self._begun) * _MINUTE_S

    def _identifier(self, match: re.Match[str]) -> str:
        number = len(self._identifiers) + 1
        return self._identifiers.setdefault(match.group(), f"00000000-0000-4000-8000-{number:012x}")

    def _is_present(self, moment_s: float) -> bool:
        """Say whether a time is of the server's clock and not of the data."""
        return self._opened_s - _MINUTE_S <= moment_s <= self._opened_s + _DAY_S

    def _workspace_time(self, moment_s: float) -> datetime.datetime:
        """Return when it was: the time of the commit, else of the call in which it was."""
        call = max(1, bisect.bisect_right(self._begun, moment_s))
        found = self._moments.get(round(moment_s * 1000), self._start_s + call * _MINUTE_S)
        return datetime.datetime.fromtimestamp(found, tz=datetime.UTC)

    def _replace_moment(self, match: re.Match[str]) -> str:
        date, separator, clock, fraction, suffix = match.groups(default="")
        try:
            moment = datetime.datetime.fromisoformat(f"{date}T{clock}{fraction[:7]}")
        except ValueError:
            return match.group()
        zone = self._find_present_zone(moment, (datetime.UTC,) if suffix else (self._zone, datetime.UTC))
        if zone is None:
            return match.group()
        found = self._workspace_time(moment.replace(tzinfo=zone).timestamp()).astimezone(zone)
        return found.strftime(f"%Y-%m-%d{separator}%H:%M:%S{suffix}")

    def _find_present_zone(
        self, moment: datetime.datetime, zones: tuple[datetime.tzinfo, ...]
    ) -> datetime.tzinfo | None:
        """Return the first zone in which the time is of the server's clock; what has been goes before what comes."""
        now = time.clock_gettime(time.CLOCK_REALTIME)
        for latest in (now + _MINUTE_S, self._opened_s + _DAY_S):
            for zone in zones:
                if self._opened_s - _MINUTE_S <= moment.replace(tzinfo=zone).timestamp() <= latest:
                    return zone
        return None

    def _replace_epoch(self, match: re.Match[str]) -> str:
        moment_s = int(match.group()) / 1000
        if not self._is_present(moment_s):
            return match.group()
        return str(int(self._workspace_time(moment_s).timestamp() * 1000))

    def _replace_date(self, match: re.Match[str]) -> str:
        for zone in (self._zone, datetime.UTC):
            today = datetime.datetime.fromtimestamp(self._opened_s, tz=zone).date()
            if match.group() in {today.isoformat(), (today + datetime.timedelta(days=1)).isoformat()}:
                return datetime.datetime.fromtimestamp(self._now_s, tz=zone).date().isoformat()
        return match.group()


def _find_zone(name: str) -> datetime.tzinfo:
    if match := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(each or 0) for each in match.groups()[1:])
        offset = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return datetime.timezone(-offset if match[1] == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        return datetime.UTC


def _commits(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Return path and status of every commit file below `folder`."""
    found = []
    for parent, folders, names in os.walk(folder):
        if parent.endswith("/_delta_log"):
            folders.clear()
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    if name.endswith(".json") and name[:20].isdigit():
                        path = os.path.join(parent, name)  # noqa: PTH118 - a walk over many names, after every call
                        found.append((path, os.stat(path)))  # noqa: PTH116
    return found


def _renumber(found: str, numbers: dict[str, str], counter: itertools.count[int]) -> str:
    if found not in numbers:
        numbers[found] = re.sub(r"\d+", lambda _: str(next(counter)), found)
    return numbers[found]
