"""Kinds of tasks, one module per family."""
