"""Shows an audit as stable `key: value` lines, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiment.audit import audit_run
from experiment.errors import UsageError

LEVELS = ("bytes", "protocol", "recompute")
REMEDIES = {
    3: "Look at `python -m experiment status RUN`; resume it, or accept that it never ended.",
    4: "Restore the named file from a copy; compare copies with `b3sum`.",
    5: "Audit in a checkout of the frozen sources (`git checkout`), or restore the input.",
    6: "Ask whoever holds the run for the one that the head belongs to.",
    7: "Fetch the named files, or audit with a newer release.",
    8: "Read the finding; the claim does not stand as made.",
}
"""What to do about a verdict, as OPERATIONS.md says it, by exit code."""


def show_audit(run_dir: Path, *, plan: Path | None, heads: Sequence[str], level: str, as_json: bool) -> int:
    """Print the audit of a run and return its exit code.

    Raises:
        UsageError: There is no such level or no such folder.
    """
    if level not in LEVELS:
        message = f"--level {level}: expected one of {', '.join(LEVELS)}"
        raise UsageError(message)
    if not run_dir.is_dir():
        message = f"{run_dir}: no such folder"
        raise UsageError(message, remedy="Name the folder of a run.")
    report = audit_run(run_dir, plan=plan, level=level, known_heads=heads)  # type: ignore[arg-type]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if as_json:
        console.print(json.dumps(report.document(), ensure_ascii=True, indent=2))
    for line in () if as_json else report.lines():
        console.print(line)
    if report.exit_code in REMEDIES:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
            f"Remedy: {REMEDIES[report.exit_code]}"
        )
    return report.exit_code
