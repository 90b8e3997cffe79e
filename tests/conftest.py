"""Tiers by folder, offline tests, reproducible generated inputs.

A test belongs to the tier of the folder it lies in. The three fast tiers run offline (only loopback
sockets) and turn every warning into an error; the other two run third-party training code, which warns.
"""

from __future__ import annotations

import os

# Before anything imports the libraries that read them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = ["tests.planted"]

TIERS = ("unit", "property", "fault", "integration", "e2e")
OFFLINE_TIERS = ("unit", "property", "fault")

# Shared machines make deadlines flaky; derived examples make a red run red again.
hypothesis.settings.register_profile("here", deadline=None, derandomize=True)
hypothesis.settings.load_profile("here")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with the tier of its folder; a test outside the tiers is an error."""
    for item in items:
        tier = item.path.relative_to(config.rootpath / "tests").parts[0]
        if tier not in TIERS:
            msg = f"{item.path}: tests live in one of tests/{{{','.join(TIERS)}}}/"
            raise pytest.UsageError(msg)
        item.add_marker(getattr(pytest.mark, tier))
        if tier in OFFLINE_TIERS:
            item.add_marker(pytest.mark.filterwarnings("error"), append=False)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests counted, as `name: value`, whether or not their output was captured."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{name}: {value}")


@pytest.fixture(autouse=True)
def _offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that leaves the machine, and every look-up that would ask a name server."""
    if not any(request.node.get_closest_marker(tier) for tier in OFFLINE_TIERS):
        return
    look_up = socket.getaddrinfo

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        _require_loopback(host)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _guarded_connect(getattr(socket.socket, name)))


def _guarded_connect(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            _require_loopback(address[0])
        return connect(self, address)

    return guarded


def _require_loopback(host: str | bytes | None) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name in {None, "", "localhost"}:
        return
    try:
        is_loopback = ipaddress.ip_address(str(name)).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        pytest.fail(f"a test of an offline tier tried to reach {name!r}")


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent
