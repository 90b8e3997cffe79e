"""Family B: duplicates are removed, and changes from another table are merged in.

Judging. Only the final rows count, and they must be exactly the rows that the task defines, once each or as often
as it says; any statement that leads there is accepted. Columns, properties and the first commit must be as they
were, so replacing the table by a new one without its properties is not accepted. Source tables stay as they are.
"""

# ruff: noqa: S608 - every name and value in these statements is the generator's own

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from experiment.environments.delta_world.kind import MAIN, Expected, Kind, Posed, begin, fill, next_key, unchanged
from experiment.environments.delta_world.scene import Scene
from experiment.environments.delta_world.tables import Column, FixtureTable, Ledger, Row, Value

FAMILY = "B"
_UPDATES = "updates"
_OPEN_DAY = datetime(2024, 5, 20, 8, 0, tzinfo=UTC)


def _lay_doubled(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    doubled = scene.draw.sample(ledger.rows, len(ledger.rows) // 3)
    ledger.insert(doubled)
    if scene.tier.upkeep:
        ledger.insert(doubled[:5])
    return (ledger.close(),)


def _pose_doubled(_scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main = tables[0]
    return Posed(
        prompts=(
            (
                "A load into {main} ran more than once, and some rows are now there several times, equal in every "
                "column. Keep one of each."
            ),
            "{main} contains exact duplicates. Remove them, so that every row occurs once.",
        ),
        expected=(Expected(MAIN, main.columns, tuple(dict.fromkeys(main.rows))),),
        statements=(
            "SELECT COUNT(*) AS row_count FROM {main}",
            "INSERT OVERWRITE {main} SELECT DISTINCT * FROM {main}",
        ),
    )


def _lay_versions(scene: Scene) -> tuple[FixtureTable, ...]:
    columns = (*scene.columns, Column("updated_at", "timestamp"))
    ledger = Ledger(MAIN, columns)
    rows = [(*row, _OPEN_DAY) for row in scene.make_rows(scene.count(), 1)]
    ledger.insert(rows)
    for change in range(2 + scene.tier.upkeep // 2):
        again = scene.draw.sample(rows, len(rows) // 4)
        ledger.insert([_age(scene, row, change, place) for place, row in enumerate(again)])
    return (ledger.close(),)


def _age(scene: Scene, row: Row, change: int, place: int) -> Row:
    """Return another row of the same key, older or newer; no two rows of a key have one time."""
    moment = _OPEN_DAY + timedelta(days=(change + 1) * scene.draw.pick((-1, 1)), minutes=7 * place + change)
    fresh = scene.make_rows(1, 1)[0]
    return (row[0], row[1], fresh[2], fresh[3], row[4], moment)


def _pose_latest(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, domain = tables[0], scene.domain
    latest: dict[object, Row] = {}
    for row in sorted(main.rows, key=lambda row: str(row[5])):
        latest[row[0]] = row
    names = ", ".join(column.name for column in main.columns)
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {domain.key} ORDER BY updated_at DESC) AS place"
    return Posed(
        prompts=(
            (
                f"{{main}} should have one row per {domain.key}, but holds several for some. Keep the row with the "
                "latest updated_at and remove the others."
            ),
            (
                f"Deduplicate {{main}} by {domain.key}: where a {domain.key} occurs more than once, only its newest "
                "row by updated_at may remain."
            ),
        ),
        expected=(Expected(MAIN, main.columns, tuple(latest.values())),),
        statements=(
            (
                f"SELECT {domain.key}, COUNT(*) AS row_count FROM {{main}} GROUP BY {domain.key} HAVING COUNT(*) > 1 "
                f"ORDER BY {domain.key}"
            ),
            f"INSERT OVERWRITE {{main}} SELECT {names} FROM (SELECT *, {ranked} FROM {{main}}) WHERE place = 1",
        ),
    )


def _lay_updates(scene: Scene, *, operations: tuple[str, ...]) -> tuple[FixtureTable, ...]:
    main = begin(scene)
    extra = (Column("seq", "integer"), *((Column("op", "string"),) if operations else ()))
    updates = Ledger(_UPDATES, (*scene.columns, *extra))
    known = scene.draw.sample(main.rows, max(6, len(main.rows) // 4))
    fresh = scene.make_rows(4 + scene.tier.upkeep, next_key(main))
    rows: list[Row] = []
    for place, row in enumerate((*known, *fresh)):
        for _ in range(2 if place % 3 == 0 else 1):
            new = scene.make_rows(1, 1)[0]
            op = (operations[0] if place >= len(known) else operations[place % len(operations)],) if operations else ()
            rows.append((row[0], row[1], new[2], new[3], new[4], len(rows) + 1, *op))
    updates.insert(_turn(rows))
    return (main.close(), updates.close())


def _turn(rows: list[Row]) -> list[Row]:
    """Return the rows last first, so that the last one read is not the latest."""
    return rows[::-1]


def _merged(main: FixtureTable, updates: FixtureTable) -> tuple[Row, ...]:
    width = len(main.columns)
    latest: dict[Value, Row] = {}
    for row in sorted(updates.rows, key=lambda row: int(str(row[width]))):
        latest[row[0]] = row
    content = {row[0]: row for row in main.rows}
    for key, row in latest.items():
        if len(row) > width + 1 and row[width + 1] == "D":
            content.pop(key, None)
        else:
            content[key] = row[:width]
    return tuple(content.values())


def _merge(scene: Scene, main: FixtureTable, *, deletes: bool) -> str:
    key, names = scene.domain.key, [column.name for column in main.columns]
    source = (
        f"(SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY seq DESC) AS place "
        f"FROM {{{_UPDATES}}}) WHERE place = 1)"
    )
    sets = ", ".join(f"t.{name} = s.{name}" for name in names)
    inserted = f"({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    return (
        f"MERGE INTO {{main}} AS t USING {source} AS s ON t.{key} = s.{key}"
        + (" WHEN MATCHED AND s.op = 'D' THEN DELETE" if deletes else "")
        + f" WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED"
        + (" AND s.op <> 'D'" if deletes else "")
        + f" THEN INSERT {inserted}"
    )


def _pose_upsert(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, updates = tables
    key = scene.domain.key
    return Posed(
        prompts=(
            (
                f"Merge {{updates}} into {{main}} by {key}: existing rows are updated, missing ones inserted. "
                f"Where {{updates}} repeats a {key}, only its row with the highest seq counts. Keep {{updates}}."
            ),
            (
                f"Apply the pending rows of {{updates}} to {{main}}. Match on {key}; the highest seq wins; unknown "
                "keys are new rows. Leave {updates} as it is."
            ),
        ),
        expected=(Expected(MAIN, main.columns, _merged(main, updates)), unchanged(updates)),
        statements=("SELECT * FROM {updates} ORDER BY seq", _merge(scene, main, deletes=False)),
    )


def _pose_operations(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, updates = tables
    key = scene.domain.key
    return Posed(
        prompts=(
            (
                f"{{updates}} lists changes to {{main}} by {key}: op 'U' writes the row (new or existing), op 'D' "
                f"deletes it. For each {key} only the change with the highest seq counts. Apply them, keep {{updates}}."
            ),
            (
                f"Bring {{main}} up to date from the change list {{updates}}. Per {key} take the entry with the "
                "highest seq: 'D' means the row goes, 'U' means it is updated or inserted. Do not touch {updates}."
            ),
        ),
        expected=(Expected(MAIN, main.columns, _merged(main, updates)), unchanged(updates)),
        statements=("SELECT * FROM {updates} ORDER BY seq", _merge(scene, main, deletes=True)),
    )


def _lay_upsert(scene: Scene) -> tuple[FixtureTable, ...]:
    return _lay_updates(scene, operations=())


def _lay_operations(scene: Scene) -> tuple[FixtureTable, ...]:
    return _lay_updates(scene, operations=("U", "D"))


def _lay_blocked(scene: Scene) -> tuple[FixtureTable, ...]:
    main = Ledger(MAIN, scene.columns)
    fill(scene, main)
    blocked = Ledger("blocked", (Column(scene.domain.key, "integer"), Column("reason", "string")))
    listed = scene.draw.sample(main.rows, len(main.rows) // 3)
    reasons: list[Row] = [(row[0], scene.draw.pick(("fraud", "duplicate", "withdrawn"))) for row in listed]
    # A key that is listed twice, and one that the main table never had.
    blocked.insert([*reasons, reasons[0], (next_key(main) + 5, "fraud")])
    return (main.close(), blocked.close())


def _pose_blocked(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main, blocked = tables
    key, reason = scene.domain.key, ("fraud", "duplicate", "withdrawn")[detail]
    gone = {row[0] for row in blocked.rows if row[1] == reason}
    source = f"(SELECT DISTINCT {key} FROM {{blocked}} WHERE reason = '{reason}')"
    return Posed(
        prompts=(
            (
                f"Delete from {{main}} every row whose {key} is listed in {{blocked}} with the reason '{reason}'. "
                "Other reasons do not count, and {blocked} stays."
            ),
            f"Rows of {{main}} that {{blocked}} names for '{reason}' must go; match on {key}. Leave everything else.",
        ),
        expected=(Expected(MAIN, main.columns, tuple(r for r in main.rows if r[0] not in gone)), unchanged(blocked)),
        statements=(
            f"SELECT COUNT(*) AS row_count FROM {{blocked}} WHERE reason = '{reason}'",
            f"MERGE INTO {{main}} AS t USING {source} AS s ON t.{key} = s.{key} WHEN MATCHED THEN DELETE",
        ),
    )


KINDS = (
    Kind("exact_duplicates", FAMILY, 1, _lay_doubled, _pose_doubled),
    Kind("latest_row", FAMILY, 1, _lay_versions, _pose_latest),
    Kind("upsert", FAMILY, 1, _lay_upsert, _pose_upsert, companions=((_UPDATES, "updates"),)),
    Kind("change_list", FAMILY, 1, _lay_operations, _pose_operations, companions=((_UPDATES, "changes"),)),
    Kind("blocked_keys", FAMILY, 3, _lay_blocked, _pose_blocked, companions=(("blocked", "blocked"),)),
)
