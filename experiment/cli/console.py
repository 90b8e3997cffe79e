"""Progress for people: bars on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_LOG_EVERY_S = 10.0


class ConsoleWatcher:
    """Shows stages, progress and notes; what cannot be shown is left out, because no run depends on being watched."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._logged: dict[str, float] = {}

    @contextmanager
    def shown(self) -> Iterator[ConsoleWatcher]:
        """Keep the bars on screen while the block runs."""
        with self._progress:
            yield self

    def stage(self, name: str, detail: str) -> None:
        """Begin a stage; the bars of the last one stay as they ended."""
        for task in self._tasks.values():
            self._progress.remove_task(task)
        self._tasks.clear()
        with _left_out_on_error():
            self._progress.console.print(Text.assemble((f"{name:<8}", "bold"), f" {detail}"), soft_wrap=True)

    def progress(self, key: str, label: str, done: int, total: int) -> None:
        """Move a bar, or write a line every few seconds."""
        if not self._console.is_terminal:
            self._log(key, label, done, total)
            return
        with _left_out_on_error():
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(label or key, total=total)
            self._progress.update(self._tasks[key], completed=done, description=label or key)

    def note(self, text: str) -> None:
        """Print a line above the bars; however long, it stays one line, as a head has to."""
        with _left_out_on_error():
            self._progress.console.print(f"  {escape(text)}", style="dim", highlight=False, soft_wrap=True)

    def _log(self, key: str, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done in (0, total) or now - self._logged.get(key, 0.0) >= _LOG_EVERY_S:
            self._logged[key] = now
            with _left_out_on_error():
                line = f"  {label or key}: {done}/{total}"
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _left_out_on_error() -> Iterator[None]:
    """Go on where output cannot be written: its disk is full, or nobody reads the pipe any more (rich then exits)."""
    with suppress(OSError, SystemExit):
        yield
