"""The append-only, hash-chained record of a run."""
