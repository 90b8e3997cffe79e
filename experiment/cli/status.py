"""Shows a run's status once, or until it ends."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from experiment.report.status import read_status, render_status

_REFRESH_S = 2.0


def show_status(run_dir: Path, *, watch: bool) -> None:
    """Print the status; with `watch`, refresh it in place until the run is closed or nobody works on it."""
    console = Console()
    status = read_status(run_dir)
    if not watch:
        console.print(render_status(status))
        return
    with Live(render_status(status), console=console, refresh_per_second=4) as live:
        while status.is_live:
            time.sleep(_REFRESH_S)
            status = read_status(run_dir)
            live.update(render_status(status))
