"""Puts a report on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiment.errors import UsageError
from experiment.report.facts import RunFacts, load_facts
from experiment.report.markdown import build_markdown
from experiment.report.page import build_page
from experiment.report.tables import all_tables, write_csv

PAGE_NAME = "report.html"


def write_report(run_dirs: Sequence[Path], output: Path) -> Path:
    """Afterwards `output` holds `report.html`, `report.md` and `tables/`; the page's path is returned.

    A run that is not finished, or did not qualify, gets a report that says so. Equal runs give equal bytes.

    Args:
        run_dirs: The runs, at least one; each gets its own part of the page.
        output: A folder; made where it is missing, files of these names in it are replaced.

    Raises:
        UsageError: There is no run in a directory, or none was named.
        JournalError: A journal is damaged.
        PlanError: A run's plan is not the one its journal names.
    """
    if not run_dirs:
        message = "a report needs at least one run"
        raise UsageError(message, remedy="Name a run directory.")
    for run_dir in run_dirs:
        if not (run_dir / "journal").is_dir():
            message = f"{run_dir}: there is no run"
            raise UsageError(message, remedy="Name the run's own directory, the one that holds `journal/`.")
    runs = [load_facts(run_dir) for run_dir in run_dirs]
    output.mkdir(parents=True, exist_ok=True)
    page = output / PAGE_NAME
    page.write_text(build_page(runs), encoding="utf-8")
    (output / "report.md").write_text(build_markdown(runs), encoding="utf-8")
    for run in runs:
        _write_tables(run, output / "tables" if len(runs) == 1 else output / "tables" / run.view.run)
    return page


def _write_tables(run: RunFacts, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for table in all_tables(run):
        write_csv(table, folder)
