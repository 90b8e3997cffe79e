"""From a journal to pages that people read."""

from __future__ import annotations

from experiment.report.writing import write_report

__all__ = ["write_report"]
