"""Planted faults: tests that break something on purpose, and a list of what caught each.

A test marked `planted("the fault")` reports through the fixture of the same name what caught the fault, the place that
was named, and what happens where exactly that check is left out. One that passes without a report fails: a fault that
nobody caught is no proof. `pytest -m planted` ends with the list.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pytest

from experiment.audit.findings import Finding
from experiment.records.verdict import Divergence

_REPORTS = pytest.StashKey[list[str]]()


@dataclass(frozen=True, slots=True)
class Planted:
    """Takes the report on the fault of one test."""

    lines: list[str]

    def __call__(self, found: BaseException | Divergence | Finding, *, place: str, without: str) -> None:
        """Report a fault as caught.

        Args:
            found: What caught it.
            place: What was named; it has to occur in what `found` says.
            without: What happens where the check that found it is left out.
        """
        by, said = _catcher(found)
        assert place in said, f"{place!r} is not named in {said!r}"
        self.lines.append(f"{by} names {place} | without the check: {without}")


def _catcher(found: BaseException | Divergence | Finding) -> tuple[str, str]:
    if isinstance(found, BaseException):
        return type(found).__name__, str(found)
    if isinstance(found, Divergence):
        return "the verdict on branches", found.place
    return f"audit finding {found.id}", f"{found.place}: {found.message}"


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Planted:
    """The report on the planted fault of this test."""
    return Planted(request.node.stash.setdefault(_REPORTS, []))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that planted a fault and did not report it as caught."""
    yield
    mark = item.get_closest_marker("planted")
    if mark is not None and not item.stash.get(_REPORTS, []):
        pytest.fail(f"nothing was reported to have caught the planted fault '{mark.args[0]}'", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hand the lines of a test over to the summary."""
    report = yield
    mark = item.get_closest_marker("planted")
    if mark is not None and call.when == "call" and not report.skipped:
        lines = item.stash.get(_REPORTS, []) if report.passed else ["NOT CAUGHT"]
        report.planted = [(mark.args[0], line) for line in lines]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the planted faults where they were asked for, else count them."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    found = [pair for each in reports for pair in getattr(each, "planted", [])]
    if not found:
        return
    if "planted" not in config.getoption("markexpr"):
        terminalreporter.write_line(f"{len(found)} planted faults; `pytest -m planted` lists what caught each")
        return
    terminalreporter.write_sep("=", f"{len(found)} planted faults")
    for fault, line in sorted(found):
        terminalreporter.write_line(f"{fault} | {line}")
