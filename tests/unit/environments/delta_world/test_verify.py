"""The verifier: the expected end state of every kind is accepted, and wrong ones of every family are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from experiment.environments.delta_world.families.every import FAMILIES, KINDS
from experiment.environments.delta_world.kind import Expected
from experiment.environments.delta_world.replay import NeedsSparkError
from experiment.environments.delta_world.rows import count_rows
from experiment.environments.delta_world.tables import Row
from experiment.environments.delta_world.task import Task, parse_task, task_space
from experiment.environments.delta_world.verify import judge
from experiment.errors import FaultError
from experiment.sealing.canonical import encode
from tests.doubles.delta_tables import FolderWorkspace, FolderWorld, TableWriter, reach


@dataclass
class Ended:
    """An episode whose tables are as expected, and may be made worse."""

    task: Task
    workspace: FolderWorkspace
    fixture: Path

    def faults(self) -> tuple[str, ...]:
        return judge(self.task, self.workspace, self.fixture)

    def writer(self, place: int) -> TableWriter:
        return TableWriter(self.workspace.folder / self.task.tables[place].folder)

    def changed(self) -> tuple[int, Expected]:
        """The first table that the task changes."""
        for place, (expected, table) in enumerate(zip(self.task.expected, self.task.layout.tables, strict=True)):
            if expected.restored or expected.clustered or expected.constraint or expected.columns != table.columns:
                return place, expected
            if sorted(expected.rows, key=str) != sorted(table.rows, key=str):
                return place, expected
        raise AssertionError(self.task.record.kind)


def find_task(kind: str, tier: str = "standard", *, distractor: bool = False) -> Task:
    space = task_space(KINDS[kind].family, tier)
    for number in range(space.size):
        task = parse_task(encode(space.draft(number, 7).task).decode())
        if task.record.kind == kind and (not distractor or task.tables[-1].folder.startswith("other")):
            return task
    raise AssertionError(kind)


def end(root: Path, task: Task) -> Ended:
    folders = FolderWorld(root)
    fixture = folders.ensure(task.layout)
    workspace = folders.open(fixture, task.tables, task.record.kind)
    ended = Ended(task, workspace, fixture)
    for place, (expected, table) in enumerate(zip(task.expected, task.layout.tables, strict=True)):
        if expected != Expected(table.folder, table.columns, table.rows, table.clustering):
            reach(ended.writer(place), expected)
    return ended


def set_all(ended: Ended, rows: tuple[Row, ...]) -> None:
    """Rewrite the changed table with other rows, everything else as it should be."""
    place, expected = ended.changed()
    operation = "RESTORE" if expected.restored else "WRITE"
    ended.writer(place).set_rows(rows, operation, clustered=expected.clustered)


def lose_row(ended: Ended) -> None:
    set_all(ended, ended.changed()[1].rows[1:])


def double_row(ended: Ended) -> None:
    rows = ended.changed()[1].rows
    set_all(ended, (*rows, rows[0]))


def change_cell(ended: Ended) -> None:
    first, *rest = ended.changed()[1].rows
    place = next(place for place, value in enumerate(first) if isinstance(value, Decimal | str))
    value = first[place]
    new = value + Decimal("0.01") if isinstance(value, Decimal) else f"{value} "
    set_all(ended, ((*first[:place], new, *first[place + 1 :]), *rest))


def empty_cell(ended: Ended) -> None:
    first, *rest = ended.changed()[1].rows
    set_all(ended, ((first[0], None, *first[2:]), *rest))


def rename_column(ended: Ended) -> None:
    writer = ended.writer(ended.changed()[0])
    columns = [(field.name, field.type, field.physical) for field in writer.log.fields]
    name, kind, physical = columns[-1]
    writer.set_columns([*columns[:-1], (f"{name}_2", kind, physical)])


def swap_columns(ended: Ended) -> None:
    writer = ended.writer(ended.changed()[0])
    columns = [(field.name, field.type, field.physical) for field in writer.log.fields]
    writer.set_columns([columns[1], columns[0], *columns[2:]])


def widen_key(ended: Ended) -> None:
    writer = ended.writer(ended.changed()[0])
    columns = [(field.name, field.type, field.physical) for field in writer.log.fields]
    changed = [(name, {"integer": "long", "date": "timestamp"}.get(kind, kind), path) for name, kind, path in columns]
    writer.set_columns(changed)


def lose_property(ended: Ended) -> None:
    writer = ended.writer(ended.changed()[0])
    properties = dict(writer.log.properties)
    del properties["delta.logRetentionDuration"]
    writer.set_properties(properties)


def replace_table(ended: Ended) -> None:
    """The same rows in a table that was dropped and made anew."""
    writer = ended.writer(ended.changed()[0])
    first = writer.log_folder / f"{0:020d}.json"
    first.write_text(first.read_text().replace('"CREATE TABLE"', '"CREATE OR REPLACE TABLE"'))
    assert writer.log.version > 0


def drop_table(ended: Ended) -> None:
    shutil.rmtree(ended.writer(ended.changed()[0]).folder)


def touch_another_table(ended: Ended) -> None:
    """A row goes from a table that the task does not mention."""
    place = len(ended.task.tables) - 1
    ended.writer(place).set_rows(ended.task.layout.tables[place].rows[1:])


def cut_history(ended: Ended) -> None:
    """The log ends before the version that the agent found."""
    writer = ended.writer(ended.changed()[0])
    for path in sorted(writer.log_folder.glob("*.json"))[1:]:
        path.unlink()


EVERYWHERE: tuple[Callable[[Ended], None], ...] = (
    lose_row,
    double_row,
    change_cell,
    empty_cell,
    rename_column,
    swap_columns,
    widen_key,
    lose_property,
    replace_table,
    drop_table,
    touch_another_table,
    cut_history,
)


@pytest.mark.parametrize("tier", ["standard", "hard"])
@pytest.mark.parametrize("kind", KINDS)
def test_expected_end_state_is_accepted(tmp_path: Path, kind: str, tier: str) -> None:
    assert end(tmp_path, find_task(kind, tier)).faults() == ()


@pytest.mark.parametrize("mutation", EVERYWHERE, ids=lambda mutation: mutation.__name__)
@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_end_state_is_not_accepted(tmp_path: Path, family: str, mutation: Callable[[Ended], None]) -> None:
    for kind in FAMILIES[family]:
        ended = end(tmp_path / kind.name, find_task(kind.name, distractor=True))
        assert ended.faults() == ()
        mutation(ended)
        assert ended.faults(), kind.name


@pytest.mark.parametrize("kind", ["restore_overwrite", "restore_moment"])
def test_right_rows_without_a_restore_are_not_what_was_asked(tmp_path: Path, kind: str) -> None:
    task = find_task(kind)
    ended = end(tmp_path, task)
    for path in ended.writer(0).log_folder.glob("*.json"):
        path.write_text(path.read_text().replace('"RESTORE"', '"WRITE"'))
    assert ended.faults() == (f"{task.tables[0].name}: its history shows no RESTORE",)


def test_restore_to_another_version_is_not_accepted(tmp_path: Path) -> None:
    task = find_task("restore_overwrite")
    ended = end(tmp_path, task)
    ended.writer(0).set_rows(task.layout.tables[0].commits[1].rows, "RESTORE")
    assert ended.faults() == (f"{task.tables[0].name}: rows differ",)


@pytest.mark.parametrize("kind", ["rename_column", "drop_column", "widen_column"])
def test_rewritten_files_are_not_accepted_where_the_change_is_in_place(tmp_path: Path, kind: str) -> None:
    task = find_task(kind)
    ended = end(tmp_path, task)
    ended.writer(0).set_rows(task.expected[0].rows)
    assert ended.faults() == (f"{task.tables[0].name}: data files were rewritten",)


def test_rows_may_be_rewritten_where_the_task_leaves_the_way_open(tmp_path: Path) -> None:
    ended = end(tmp_path, find_task("exact_duplicates"))
    ended.writer(0).set_rows(ended.task.expected[0].rows[::-1])
    assert ended.faults() == ()


@pytest.mark.parametrize("kind", [kind.name for kind in FAMILIES["D"]])
def test_layout_is_judged_file_by_file(tmp_path: Path, kind: str) -> None:
    task = find_task(kind)
    name, rows = task.tables[0].name, task.expected[0].rows
    loose = end(tmp_path / "loose", task)
    loose.writer(0).set_rows(rows[2:], clustered=True)
    loose.writer(0).append(rows[:2])
    assert loose.faults() == (f"{name}: 1 of 2 files are not clustered that way",)
    other = end(tmp_path / "other", task)
    writer = other.writer(0)
    writer.cluster_by([task.layout.tables[0].columns[2].name])
    writer.set_rows(rows, clustered=True)
    writer.cluster_by(task.expected[0].clustering)
    assert other.faults() == (f"{name}: 1 of 1 files are not clustered that way",)
    none = end(tmp_path / "none", task)
    none.writer(0).cluster_by([])
    assert f"{name}: clustering columns are []" in none.faults()


def test_order_of_clustering_columns_counts(tmp_path: Path) -> None:
    task = find_task("two_columns")
    ended = end(tmp_path, task)
    ended.writer(0).cluster_by(task.expected[0].clustering[::-1])
    ended.writer(0).set_rows(task.expected[0].rows, clustered=True)
    assert len(ended.faults()) == 2


def test_clustering_that_nobody_asked_for_is_not_accepted(tmp_path: Path) -> None:
    task = find_task("add_column")
    ended = end(tmp_path, task)
    ended.writer(0).cluster_by([task.layout.tables[0].columns[1].name])
    assert len(ended.faults()) == 1


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("{column} >= 0", True),
        ("({column}>=0)", True),
        ("`{COLUMN}`  >=  0", True),
        ("{column} > 0", False),
        ("{column} >= -1", False),
    ],
)
def test_constraint_is_compared_by_its_expression(tmp_path: Path, text: str, accepted: bool) -> None:
    task = find_task("constraint")
    ended = end(tmp_path, task)
    name, rule = task.expected[0].constraint or ("", "")
    column = rule.split()[0]
    written = text.format(column=column, COLUMN=column.upper())
    writer = ended.writer(0)
    writer.set_properties({**writer.log.properties, f"delta.constraints.{name}": written})
    assert (not ended.faults()) is accepted


def test_constraint_under_another_name_is_not_accepted(tmp_path: Path) -> None:
    task = find_task("constraint")
    ended = end(tmp_path, task)
    name, rule = task.expected[0].constraint or ("", "")
    writer = ended.writer(0)
    properties = {key: value for key, value in writer.log.properties.items() if not key.endswith(name)}
    writer.set_properties({**properties, "delta.constraints.other": rule})
    assert len(ended.faults()) == 1


def test_table_that_only_spark_can_read_is_read_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = find_task("exact_duplicates")
    ended = end(tmp_path, task)
    ended.writer(0).commit("UPGRADE", [{"protocol": {"minReaderVersion": 3, "readerFeatures": ["v2Checkpoint"]}}])
    with pytest.raises(FaultError, match="no server"):
        ended.faults()
    columns = list(zip(*task.expected[0].rows, strict=True))
    names = [column.name for column in task.expected[0].columns]
    right = pyarrow.table([list(column) for column in columns], names=names)
    asked: list[str] = []

    def read(table: str, rows: pyarrow.Table | None) -> pyarrow.Table | None:
        asked.append(table)
        return rows

    monkeypatch.setattr(ended.workspace, "read", lambda table: read(table, right))
    assert ended.faults() == ()
    monkeypatch.setattr(ended.workspace, "read", lambda table: read(table, right.slice(1)))
    assert len(ended.faults()) == 1
    monkeypatch.setattr(ended.workspace, "read", lambda table: read(table, None))
    assert len(ended.faults()) == 1
    assert asked == [task.tables[0].name] * 3
    assert count_rows(right).total() == len(task.expected[0].rows)


def test_cell_that_python_cannot_hold_is_a_wrong_cell_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = find_task("exact_duplicates")
    ended = end(tmp_path, task)
    place = [column.type for column in task.expected[0].columns].index("date")
    # -44-03-15, as Spark writes it; and the same read by the server, because nothing else can.
    odd = pyarrow.table({"day": pyarrow.array([-735_160], pyarrow.date32())})
    for each in ended.writer(0).folder.glob("*.parquet"):
        rows = pyarrow.parquet.read_table(each)
        days = pyarrow.array([-735_160] * rows.num_rows, pyarrow.date32())
        pyarrow.parquet.write_table(rows.set_column(place, rows.column_names[place], days), each)
    assert ended.faults() == (f"{task.tables[0].name}: rows differ",)
    monkeypatch.setattr("experiment.environments.delta_world.verify.read_rows", _needs_spark)
    monkeypatch.setattr(ended.workspace, "read", lambda _table: odd)
    assert f"{task.tables[0].name}: rows differ" in ended.faults()


def _needs_spark(*_: object) -> pyarrow.Table:
    raise NeedsSparkError


def test_damaged_fixture_is_a_fault_and_no_verdict(tmp_path: Path) -> None:
    task = find_task("upsert")
    ended = end(tmp_path, task)
    shutil.rmtree(ended.fixture / "main")
    with pytest.raises(FaultError, match="holds no table"):
        ended.faults()
