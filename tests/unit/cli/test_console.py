from __future__ import annotations

import errno
import os
from io import StringIO

import pytest
from rich.console import Console

from experiment.cli.console import ConsoleWatcher


def _shown(*, is_terminal: bool) -> tuple[ConsoleWatcher, StringIO]:
    file = StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=120, color_system=None)
    return ConsoleWatcher(console), file


def test_a_log_gets_the_first_and_the_last_line_of_a_piece_of_work() -> None:
    watcher, file = _shown(is_terminal=False)
    with watcher.shown():
        watcher.stage("train", "64 steps of 4 x 4 rollouts")
        for done in range(101):
            watcher.progress("grpo", "grpo [strict]", done, 100)
    assert file.getvalue().splitlines() == [
        "train    64 steps of 4 x 4 rollouts",
        "  grpo [strict]: 0/100",
        "  grpo [strict]: 100/100",
    ]


def test_notes_are_printed_as_they_are() -> None:
    watcher, file = _shown(is_terminal=False)
    with watcher.shown():
        watcher.note("head [red]small[/] 7 b3:00")
        watcher.stage("[bold]", "a [link]")
    assert file.getvalue().splitlines() == ["  head [red]small[/] 7 b3:00", "[bold]   a [link]"]


def test_a_head_is_one_line_however_narrow_the_log() -> None:
    file = StringIO()
    watcher = ConsoleWatcher(Console(file=file, width=40, color_system=None))
    head = f"head small 12 b3:{'0' * 64}"
    with watcher.shown():
        watcher.note(head)
    assert file.getvalue().splitlines() == [f"  {head}"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPIPE, errno.EIO])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_output_that_cannot_be_written_stops_nothing(code: int, is_terminal: bool) -> None:
    class Refusing(StringIO):
        def write(self, _: str) -> int:
            raise OSError(code, os.strerror(code))

    watcher = ConsoleWatcher(Console(file=Refusing(), force_terminal=is_terminal, width=120))
    watcher.stage("train", "64 steps")
    watcher.note("head small 12")
    watcher.progress("grpo", "grpo", 0, 64)


def test_a_terminal_gets_bars() -> None:
    watcher, file = _shown(is_terminal=True)
    with watcher.shown():
        watcher.stage("select", "DEV")
        watcher.progress("dev 1", "dev 1 [grpo@32]", 0, 8)
        watcher.progress("dev 1", "dev 1 [grpo@32]", 8, 8)
    assert "dev 1 [grpo@32]" in file.getvalue()
    assert "8/8" in file.getvalue()
