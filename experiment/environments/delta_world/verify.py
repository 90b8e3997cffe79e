"""The verifier: the final state of every table of an episode against what the task expects.

What counts is only what lies in the tables' folders when the agent has finished. Each kind's module says how its
tasks are judged, and `Expected` names the rules that there are. Every table of the episode is judged, distractors
included: one that nobody asked to change must still be what it was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from experiment.environments.delta_world.kind import Expected
from experiment.environments.delta_world.replay import LOG, NeedsSparkError, TableLog, replay
from experiment.environments.delta_world.rows import UNHELD, count_rows, read_rows
from experiment.environments.delta_world.task import Task
from experiment.environments.delta_world.workspace import Table, Workspace
from experiment.errors import FaultError

_ORDER_TAG = "ZCUBE_ZORDER_BY"
"""Tag of a file that names the physical columns it was clustered by."""
_PROVIDER = "liquid"
_CONSTRAINT = "delta.constraints."
_FIRST_COMMIT = f"{0:020d}.json"


def judge(task: Task, workspace: Workspace, fixture: Path) -> tuple[str, ...]:
    """Return what is wrong with the tables, one sentence each; nothing where the task is solved.

    Raises:
        FaultError: The server broke while it read a table for the verifier.
    """
    wrong: list[str] = []
    for table, expected in zip(task.tables, task.expected, strict=True):
        wrong += [f"{table.name}: {fault}" for fault in _judge_table(table, expected, workspace, fixture)]
    return tuple(wrong)


def _judge_table(table: Table, expected: Expected, workspace: Workspace, fixture: Path) -> Iterable[str]:
    folder = workspace.folder / table.folder
    before = _read_fixture(fixture / table.folder)
    try:
        log = replay(folder)
    except NeedsSparkError as error:
        return [f"its log cannot be judged: {error}"]
    if log is None or _first_commit(folder) != _first_commit(fixture / table.folder):
        return ["the table is gone, or another one is in its place"]
    faults = [*_judge_log(log, expected, before), *_judge_files(log, expected, before)]
    columns = tuple((column.name, column.type) for column in expected.columns)
    if tuple((each.name, each.type) for each in log.fields) != columns:
        faults.append("columns differ")
    elif _count(log, table, workspace) != Counter(expected.rows):
        faults.append("rows differ")
    return faults


def _judge_log(log: TableLog, expected: Expected, before: TableLog) -> list[str]:
    faults = [
        f"property {key} is not '{value}'"
        for key, value in before.properties.items()
        if log.properties.get(key) != value
    ]
    if log.version < before.version:
        faults.append("its history was cut")
    if expected.restored and not any(
        operation.name == "RESTORE" and operation.version > before.version for operation in log.operations
    ):
        faults.append("its history shows no RESTORE")
    if expected.constraint is not None:
        name, rule = expected.constraint
        found = log.properties.get(f"{_CONSTRAINT}{name.lower()}")
        if found is None or _bare(found) != _bare(rule):
            faults.append(f"constraint {name} is missing or has another expression")
    return faults


def _judge_files(log: TableLog, expected: Expected, before: TableLog) -> list[str]:
    faults = []
    if log.clustering != expected.clustering:
        faults.append(f"clustering columns are {list(log.clustering)}")
    if expected.keeps_files and not before.files.keys() <= log.files.keys():
        faults.append("data files were rewritten")
    if expected.clustered:
        physical = {each.name: each.physical for each in log.fields}
        order = [physical.get(name, name) for name in expected.clustering]
        loose = sum(
            file.provider != _PROVIDER or json.loads(file.tags.get(_ORDER_TAG, "[]")) != order
            for file in log.files.values()
        )
        if loose:
            faults.append(f"{loose} of {len(log.files)} files are not clustered that way")
    return faults


def _count(log: TableLog, table: Table, workspace: Workspace) -> Counter[tuple[object, ...]] | None:
    """Return how often each row occurs; None where the agent left a table or a cell that cannot be read."""
    try:
        rows = read_rows(workspace.folder / table.folder, log)
    except NeedsSparkError:
        rows = workspace.read(table.name)
    try:
        return None if rows is None else count_rows(rows)
    except UNHELD:  # no row that a task expects has such a cell
        return None


def _bare(expression: str) -> str:
    """Return an expression without blanks, quotes and outer parentheses, in lower case."""
    text = "".join(expression.split()).replace("`", "").lower()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return text


def _first_commit(folder: Path) -> bytes | None:
    try:
        return (folder / LOG / _FIRST_COMMIT).read_bytes()
    except OSError:
        return None


@lru_cache(maxsize=1024)
def _read_fixture(folder: Path) -> TableLog:
    """Return the state that the agent found.

    Raises:
        FaultError: The fixture is damaged.
    """
    try:
        log = replay(folder)
    except NeedsSparkError as error:
        msg = f"fixture {folder}: {error}"
        raise FaultError(msg) from error
    if log is None:
        msg = f"fixture {folder} holds no table"
        raise FaultError(msg)
    return log
