"""From measurements to verdicts: pure functions, used by the run to decide and by the audit to decide again."""
