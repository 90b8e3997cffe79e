"""Family C: a table's columns change while its data stays.

Judging. Names, types and order of the columns, the rows, and the table's properties. Where the task says that it
is done in place, every data file that the table had must still be part of it: a rewritten or replaced table with
the right columns is not accepted. Renaming and dropping need column mapping, and widening needs type widening;
nothing in the task says so, as nothing on the platform does.
"""

# ruff: noqa: S608 - every name and value in these statements is the generator's own

from __future__ import annotations

from decimal import Decimal

from experiment.environments.delta_world.kind import MAIN, Expected, Kind, Posed, begin, fill, next_key
from experiment.environments.delta_world.scene import Scene
from experiment.environments.delta_world.tables import Column, FixtureTable, Ledger, Row

FAMILY = "C"
_BEYOND_INT = 3_000_000_000
_LOAD = 20
"""Rows of a first load."""
_RENAMABLE = 4
"""All columns but the key."""
_MAP_COLUMNS = "ALTER TABLE {main} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"


def _lay(scene: Scene) -> tuple[FixtureTable, ...]:
    return (begin(scene).close(),)


def _pose_rename(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main = tables[0]
    place = 1 + detail % _RENAMABLE
    old, new = main.columns[place].name, scene.domain.new_names[detail % len(scene.domain.new_names)]
    columns = tuple(Column(new, each.type) if each.name == old else each for each in main.columns)
    return Posed(
        prompts=(
            (
                f"Rename the column {old} of {{main}} to {new}. Do it in place: the table's data files must not be "
                "rewritten."
            ),
            (
                f"Consumers of {{main}} expect the column {old} under the name {new}. Rename it in place, without "
                "rewriting data."
            ),
        ),
        expected=(Expected(MAIN, columns, main.rows, keeps_files=True),),
        statements=("DESCRIBE TABLE {main}", _MAP_COLUMNS, f"ALTER TABLE {{main}} RENAME COLUMN {old} TO {new}"),
    )


def _pose_drop(_scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main = tables[0]
    place = 1 + detail
    old = main.columns[place].name
    columns = (*main.columns[:place], *main.columns[place + 1 :])
    rows = tuple((*row[:place], *row[place + 1 :]) for row in main.rows)
    return Posed(
        prompts=(
            f"Drop the column {old} of {{main}}. Do it in place: the table's data files must not be rewritten.",
            (
                f"The column {old} of {{main}} is no longer needed. Remove it from the table in place, without "
                "rewriting data."
            ),
        ),
        expected=(Expected(MAIN, columns, rows, keeps_files=True),),
        statements=("DESCRIBE TABLE {main}", _MAP_COLUMNS, f"ALTER TABLE {{main}} DROP COLUMN {old}"),
    )


def _lay_counted(scene: Scene) -> tuple[FixtureTable, ...]:
    columns = (*scene.columns, Column("value", "integer"))
    ledger = Ledger(MAIN, columns)
    for count in (_LOAD, _LOAD, *(3 for _ in range(scene.tier.upkeep))):
        rows = scene.make_rows(count, next_key(ledger))
        ledger.insert([(*row, scene.draw.number(1_000, 2_000_000_000)) for row in rows])
    return (ledger.close(),)


def _pose_widen(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main = tables[0]
    columns = (*main.columns[:-1], Column("value", "long"))
    fresh: tuple[Row, ...] = ()
    request = ""
    inserts: tuple[str, ...] = ()
    if detail:
        key, value = 1 + max(int(str(row[0])) for row in main.rows), _BEYOND_INT + 17 * detail
        fresh = ((key, *main.rows[0][1:-1], value),)
        source, name = main.rows[0][0], scene.domain.key
        request = (
            f" Then insert one more row: {name} {key}, value {value}, and the other columns as in the row with {name} "
            f"{source}."
        )
        others = ", ".join(column.name for column in main.columns[1:-1])
        inserts = (f"INSERT INTO {{main}} SELECT {key}, {others}, {value} FROM {{main}} WHERE {name} = {source}",)
    return Posed(
        prompts=(
            "The column value of {main} is INT and will overflow soon. Change its type to BIGINT in place: the "
            "table's data files must not be rewritten." + request,
            "{main} needs BIGINT instead of INT for its column value. Change the type in place, without rewriting "
            "data." + request,
        ),
        expected=(Expected(MAIN, columns, (*main.rows, *fresh), keeps_files=True),),
        statements=(
            "DESCRIBE TABLE {main}",
            "ALTER TABLE {main} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
            "ALTER TABLE {main} ALTER COLUMN value TYPE BIGINT",
            *inserts,
        ),
    )


def _pose_add(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main, amount = tables[0], scene.domain.amount
    limit = 200 + 150 * detail
    name = ("band", "size_class", "priority", "level")[detail]
    columns = (*main.columns, Column(name, "string"))
    rows = tuple((*row, "high" if Decimal(str(row[2])) >= limit else "low") for row in main.rows)
    return Posed(
        prompts=(
            (
                f"Add a column {name} of type STRING at the end of {{main}} and fill it: 'high' where {amount} is "
                f"{limit} or more, else 'low'."
            ),
            (
                f"{{main}} needs a new last column {name} (STRING) with 'high' for rows whose {amount} is at least "
                f"{limit} and 'low' for the rest."
            ),
        ),
        expected=(Expected(MAIN, columns, rows),),
        statements=(
            f"ALTER TABLE {{main}} ADD COLUMN {name} STRING",
            f"UPDATE {{main}} SET {name} = CASE WHEN {amount} >= {limit} THEN 'high' ELSE 'low' END",
        ),
    )


def _lay_two_loads(scene: Scene) -> tuple[FixtureTable, ...]:
    main = Ledger(MAIN, scene.columns)
    fill(scene, main)
    arrivals = Ledger("arrivals", (*scene.columns, Column("note", "string")))
    rows = scene.make_rows(6 + scene.tier.upkeep, next_key(main))
    arrivals.insert([(*row, scene.draw.pick(("checked", "estimated", "late"))) for row in rows])
    return (main.close(), arrivals.close())


def _pose_evolve(_scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, arrivals = tables
    rows = (*((*row, None) for row in main.rows), *arrivals.rows)
    return Posed(
        prompts=(
            (
                "{arrivals} has new rows for {main} and one column more. Append them to {main}, which gets the column "
                "note (STRING) as its last one; it stays NULL in the rows that are there already. {arrivals} stays."
            ),
            (
                "Load all rows of {arrivals} into {main}. The column note (STRING) of {arrivals} must arrive too, as "
                "the last column of {main}, NULL for older rows. Do not change {arrivals}."
            ),
        ),
        expected=(Expected(MAIN, arrivals.columns, rows), Expected("arrivals", arrivals.columns, arrivals.rows)),
        statements=(
            "ALTER TABLE {main} ADD COLUMN note STRING",
            "INSERT INTO {main} SELECT * FROM {arrivals}",
        ),
    )


KINDS = (
    Kind("add_column", FAMILY, 4, _lay, _pose_add),
    Kind("append_evolved", FAMILY, 1, _lay_two_loads, _pose_evolve, companions=(("arrivals", "arrivals"),)),
    Kind("rename_column", FAMILY, 5, _lay, _pose_rename),
    Kind("drop_column", FAMILY, 4, _lay, _pose_drop),
    Kind("widen_column", FAMILY, 3, _lay_counted, _pose_widen),
)
