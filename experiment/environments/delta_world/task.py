"""Tasks: numbered, written into an episode as a record, and made again from that record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from experiment.environments.delta_world.families.every import FAMILIES, KINDS
from experiment.environments.delta_world.kind import MAIN, Expected, Kind, Posed, unchanged
from experiment.environments.delta_world.scene import TIERS, Draw, Scene, Tier
from experiment.environments.delta_world.tables import FixtureTable, Ledger, write_value
from experiment.environments.delta_world.workspace import Table
from experiment.environments.generation import Draft, Space
from experiment.records.base import Count, Digest, Record
from experiment.records.episode import Message
from experiment.sealing.canonical import decode_record, encode
from experiment.sealing.digests import digest_bytes
from experiment.sealing.seeds import derive_seed

CATALOG = "workspace"
SYSTEM = (
    "You are a data engineer on a lakehouse with Delta tables. Use run_sql for single SQL statements and run_python "
    "for Python code, where `spark` is defined. Solve the task, then call submit with a short summary. What counts is "
    "the state that the tables have in the end. Unless the task says otherwise, keep columns, properties and history "
    "of every table, and change no other table."
)
SUBMITTED = "Done."
"""Final text of the scripted solver."""

_BY_NAME = {tier.name: tier for tier in TIERS}


class Choice(Record):
    """Which task of its kind this is."""

    variant: Count
    detail: Count
    schema_name: str
    table: str
    wording: Count


class TaskRecord(Record):
    """A task as the plan freezes it; digests show whether the generator still makes the same one."""

    tier: str
    kind: str
    choice: Choice
    tables: tuple[tuple[str, str], ...]
    """(`schema.table`, folder), distractors included."""
    fixture: Digest
    """Digest of the statements that lay out the tables."""
    goal: Digest
    """Digest of what must be true at the end."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task in full."""

    record: TaskRecord
    tables: tuple[Table, ...]
    layout: Layout
    posed: Posed
    expected: tuple[Expected, ...]
    """One for every table."""

    def fill(self, text: str) -> str:
        """Return `text` with full names instead of `{folder}`."""
        for table in self.tables:
            text = text.replace(f"{{{table.folder}}}", f"{CATALOG}.{table.name}")
        return text

    @property
    def prompt(self) -> str:
        """What the agent is asked."""
        return self.fill(self.posed.prompts[self.record.choice.wording])

    @property
    def solution(self) -> tuple[str, ...]:
        """Statements that solve the task."""
        return tuple(self.fill(statement) for statement in self.posed.statements)


@dataclass(frozen=True, slots=True)
class Layout:
    """What one variant of a kind puts on the server, whatever its tables will be called."""

    kind: str
    tier: str
    variant: int
    tables: tuple[FixtureTable, ...]
    digest: str


@cache
def lay_out(kind: str, tier: str, variant: int) -> Layout:
    """Return the tables of a variant, the main one first and distractors last."""
    scene = _scene(kind, tier, variant)
    tables = KINDS[kind].lay(scene)
    count = scene.tier.distractors if scene.tier.upkeep else variant % (1 + scene.tier.distractors)
    tables = (*tables, *(_distractor(scene, number) for number in range(count)))
    content = [
        [table.folder, [commit.statement for commit in table.commits], [list(pair) for pair in table.properties]]
        for table in tables
    ]
    return Layout(kind, tier, variant, tables, digest_bytes(encode(content)))


def every_layout(families: tuple[str, ...], tiers: tuple[str, ...]) -> tuple[Layout, ...]:
    """Return all layouts that episodes of these families and tiers can need."""
    return tuple(
        lay_out(kind.name, tier, variant)
        for family in families
        for kind in FAMILIES[family]
        for tier in tiers
        for variant in range(len(_BY_NAME[tier].domains))
    )


def task_space(family: str, tier: str) -> Space:
    """Return the numbered tasks of a family; its kinds take turns."""
    kinds = FAMILIES[family]
    smallest = min(_size(kind, _BY_NAME[tier]) for kind in kinds)

    def draft(number: int, seed: int) -> Draft:
        place, kind = divmod(number, len(kinds))
        return _draft(kinds[kind], _BY_NAME[tier], place * _size(kinds[kind], _BY_NAME[tier]) // smallest, seed)

    return Space(family=family, size=smallest * len(kinds), draft=draft)


def parse_task(task_json: str) -> Task:
    """Return the task that a record names.

    Raises:
        ValueError: The record is not readable, or the generator no longer makes this task.
    """
    try:
        record = decode_record(TaskRecord, task_json.encode())
    except ValueError as error:
        msg = f"task is not readable ({error})"
        raise ValueError(msg) from error
    try:
        task = _make(record)
    except (KeyError, IndexError) as error:
        msg = f"task names {error}, which the generator does not know"
        raise ValueError(msg) from error
    made = (task.layout.digest, _digest_goal(record.kind, record.tier, record.choice.variant, record.choice.detail))
    if made != (record.fixture, record.goal):
        msg = "the generator makes another task from this record than the one that was frozen"
        raise ValueError(msg)
    return task


def _draft(kind: Kind, tier: Tier, number: int, seed: int) -> Draft:
    number, wording = divmod(number, 2)
    number, schema = divmod(number, len(tier.schemas))
    number, detail = divmod(number, kind.details)
    variant, table = divmod(number, len(tier.domains[0].tables))
    choice = Choice(
        variant=variant,
        detail=detail,
        schema_name=tier.schemas[schema],
        table=tier.domains[variant].tables[table],
        wording=wording,
    )
    layout = lay_out(kind.name, tier.name, variant)
    posed, expected = _pose(kind.name, tier.name, variant, detail)
    record = TaskRecord(
        tier=tier.name,
        kind=kind.name,
        choice=choice,
        tables=_name_tables(layout, choice, tier, seed),
        fixture=layout.digest,
        goal=_digest_goal(kind.name, tier.name, variant, detail),
    )
    task = Task(record, _tables(record), layout, posed, expected)
    messages = (Message(role="system", content=SYSTEM), Message(role="user", content=task.prompt))
    essence: dict[str, object] = {"fixture": record.fixture, "goal": record.goal}
    return Draft(family=kind.family, messages=messages, task=record.model_dump(mode="json"), essence=essence)


def _make(record: TaskRecord) -> Task:
    layout = lay_out(record.kind, record.tier, record.choice.variant)
    posed, expected = _pose(record.kind, record.tier, record.choice.variant, record.choice.detail)
    return Task(record, _tables(record), layout, posed, expected)


@cache
def _pose(name: str, tier: str, variant: int, detail: int) -> tuple[Posed, tuple[Expected, ...]]:
    kind, layout = KINDS[name], lay_out(name, tier, variant)
    posed = kind.pose(_scene(name, tier, variant), layout.tables[: len(kind.companions) + 1], detail)
    judged = {each.folder: each for each in posed.expected}
    return posed, tuple(judged.get(table.folder, unchanged(table)) for table in layout.tables)


def _scene(kind: str, tier: str, variant: int) -> Scene:
    settings = _BY_NAME[tier]
    return Scene(settings, settings.domains[variant], Draw(f"delta_world {kind} {tier} {variant}"))


def _distractor(scene: Scene, number: int) -> FixtureTable:
    table = Ledger(f"other{number}", scene.columns)
    table.insert(scene.make_rows(9, 1))
    return table.close()


def _name_tables(layout: Layout, choice: Choice, tier: Tier, seed: int) -> tuple[tuple[str, str], ...]:
    """Return the tables' names; the seed decides only how distractors are called."""
    kind = KINDS[layout.kind]
    names = {MAIN: choice.table} | {folder: f"{choice.table}_{suffix}" for folder, suffix in kind.companions}
    others = [table.folder for table in layout.tables if table.folder not in names]
    start = derive_seed(seed, "distractors")
    for place, folder in enumerate(others):
        names[folder] = f"{choice.table}_{tier.suffixes[(start + place) % len(tier.suffixes)]}"
    return tuple((f"{choice.schema_name}.{names[table.folder]}", table.folder) for table in layout.tables)


def _tables(record: TaskRecord) -> tuple[Table, ...]:
    return tuple(Table(name, folder) for name, folder in record.tables)


def _size(kind: Kind, tier: Tier) -> int:
    return 2 * len(tier.schemas) * kind.details * len(tier.domains) * len(tier.domains[0].tables)


@cache
def _digest_goal(kind: str, tier: str, variant: int, detail: int) -> str:
    _, expected = _pose(kind, tier, variant, detail)
    return digest_bytes(encode([_write_expected(each) for each in expected]))


def _write_expected(expected: Expected) -> dict[str, object]:
    return {
        "folder": expected.folder,
        "columns": [[column.name, column.type] for column in expected.columns],
        "rows": [[write_value(value) for value in row] for row in expected.rows],
        "clustering": list(expected.clustering),
        "clustered": expected.clustered,
        "keeps_files": expected.keeps_files,
        "restored": expected.restored,
        "constraint": list(expected.constraint or ()),
    }
