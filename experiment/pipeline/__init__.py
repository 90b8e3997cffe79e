"""The main path: prepare, then run, which is qualify, train, select, assess."""
