"""How long the audit of a run takes: the command as typed, every byte checked and every decision made again.

Run from the repository root: `python bench/audit_time.py runs/NAME [TIMES]`. Prints the median seconds on the clock and
of the processor, import included, and `seconds: X` on the clock.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time


def audit(run_dir: str) -> tuple[float, float]:
    """Audit a run in a process of its own, and return its seconds on the clock and of the processor."""
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "experiment", "audit", run_dir], capture_output=True, text=True, check=False
    )
    passed, after = time.perf_counter() - started, os.times()
    if done.returncode != 0:
        print(done.stdout + done.stderr, end="")
        raise SystemExit(done.returncode)
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return passed, spent


def main() -> None:
    """Print both medians."""
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    clock_s, processor_s = zip(*(audit(sys.argv[1]) for _ in range(times)), strict=True)
    print(f"processor: {statistics.median(processor_s):.2f} s ({min(processor_s):.2f} to {max(processor_s):.2f})")
    print(f"clock: {statistics.median(clock_s):.2f} s ({min(clock_s):.2f} to {max(clock_s):.2f})")
    print(f"seconds: {statistics.median(clock_s):.2f}")


if __name__ == "__main__":
    main()
