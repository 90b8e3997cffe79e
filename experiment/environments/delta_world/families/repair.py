"""Family E: data is repaired or carried over without losing what came later or belongs to others.

Why this family: the first four each turn on one command. Here the final rows need two sources at once, an earlier
version and the present one, or a change feed and a table with columns of its own; a whole-table shortcut (RESTORE,
overwrite) loses something.

Judging. The final rows of every table that the task names, any way to them accepted. A constraint must exist under
the name and with the expression that the task gives; blanks, case, quotes and outer parentheses do not count.
"""

# ruff: noqa: S608 - every name and value in these statements is the generator's own

from __future__ import annotations

from decimal import Decimal

from experiment.environments.delta_world.kind import (
    MAIN,
    Expected,
    Kind,
    Posed,
    append,
    begin,
    fill,
    next_key,
    unchanged,
)
from experiment.environments.delta_world.scene import Scene
from experiment.environments.delta_world.tables import Column, FixtureTable, Ledger, Row, change

FAMILY = "E"
_AMOUNT = 2
_GROUP = 3
_SYNCED = 2
"""Version of the source that the replica has."""


def _lay_zeroed(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    domain = scene.domain
    ledger.update(domain.amount, Decimal("0.00"), domain.group, scene.draw.pick(domain.groups))
    append(scene, ledger, 5)
    append(scene, ledger, 4)
    return (ledger.close(),)


def _pose_zeroed(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, domain = tables[0], scene.domain
    bad = next(version for version, commit in enumerate(main.commits) if commit.statement.startswith("UPDATE"))
    before = {row[0]: row for row in main.commits[bad - 1].rows}
    value = next(r for r in main.commits[bad].rows if r != before[r[0]])[_GROUP]
    rows = change(main.rows, _AMOUNT, lambda r: before[r[0]][_AMOUNT], lambda r: r[0] in before and r[_GROUP] == value)
    source = f"(SELECT * FROM {{main}} VERSION AS OF {bad - 1} WHERE {domain.group} = '{value}')"
    return Posed(
        prompts=(
            (
                f"A faulty UPDATE set {domain.amount} to 0 in every row of {{main}} with {domain.group} '{value}'. Put "
                "the former amounts back. Rows that were loaded afterwards must stay as they are."
            ),
            (
                f"In {{main}} the rows of {domain.group} '{value}' lost their {domain.amount} to a bad UPDATE (it is 0 "
                "now). Repair them from an earlier version without losing later loads."
            ),
        ),
        expected=(Expected(MAIN, main.columns, rows),),
        statements=(
            "DESCRIBE HISTORY {main}",
            (
                f"MERGE INTO {{main}} AS t USING {source} AS s ON t.{domain.key} = s.{domain.key} "
                f"WHEN MATCHED THEN UPDATE SET t.{domain.amount} = s.{domain.amount}"
            ),
        ),
    )


def _lay_replica(scene: Scene) -> tuple[FixtureTable, ...]:
    domain = scene.domain
    main = Ledger(MAIN, scene.columns, {"delta.enableChangeDataFeed": "true"})
    fill(scene, main)
    synced = main.commits[_SYNCED].rows
    main.update(domain.amount, Decimal("12.50"), domain.group, domain.groups[0])
    main.delete(domain.group, domain.groups[1])
    append(scene, main, 4)
    replica = Ledger("replica", (*scene.columns, Column("reviewer", "string")))
    replica.insert([(*row, scene.draw.pick(("mara", "noor", "otis"))) for row in synced])
    # The replica has rows of another system, which the source never knew.
    foreign = scene.make_rows(3, next_key(main) + 1000)
    replica.insert([(*row, "import") for row in foreign])
    return (main.close(), replica.close())


def _pose_replica(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, replica = tables
    key, names = scene.domain.key, [column.name for column in main.columns]
    content = {row[0]: row for row in replica.rows}
    current = {row[0] for row in main.rows}
    for row in main.commits[_SYNCED].rows:
        if row[0] not in current:
            del content[row[0]]
    for row in main.rows:
        content[row[0]] = (*row, content[row[0]][-1] if row[0] in content else None)
    return Posed(
        prompts=(
            (
                f"{{replica}} follows {{main}} by {key} and was last synchronised at version {_SYNCED} of {{main}}, "
                "whose change data feed is on. Apply every change since. Keep the column reviewer of existing rows "
                "(NULL for new ones) and the rows that come from another system."
            ),
            (
                f"Bring {{replica}} up to date with the changes that {{main}} saw after version {_SYNCED} (its change "
                f"data feed is on; match on {key}). reviewer belongs to {{replica}}: keep it, NULL for new rows. Rows "
                "that {main} never had stay."
            ),
        ),
        expected=(unchanged(main), Expected("replica", replica.columns, tuple(content.values()))),
        statements=(
            f"SELECT * FROM table_changes('{{main}}', {_SYNCED + 1}) ORDER BY _commit_version, {key}, _change_type",
            _follow(key, names),
        ),
    )


def _follow(key: str, names: list[str]) -> str:
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY _commit_version DESC) AS place"
    feed = f"table_changes('{{main}}', {_SYNCED + 1})"
    source = f"(SELECT * FROM (SELECT *, {ranked} FROM {feed} WHERE _change_type <> 'update_preimage') WHERE place = 1)"
    sets = ", ".join(f"t.{name} = s.{name}" for name in names)
    return (
        f"MERGE INTO {{replica}} AS t USING {source} AS s ON t.{key} = s.{key} "
        "WHEN MATCHED AND s._change_type = 'delete' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets} "
        "WHEN NOT MATCHED AND s._change_type <> 'delete' "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _lay_people(scene: Scene) -> tuple[FixtureTable, ...]:
    domain = scene.domain
    main = begin(scene)
    contacts = Ledger("contacts", (Column(domain.party, "string"), Column("email", "string")))
    contacts.insert([(name, f"{name.split()[0].lower()}@example.com") for name in domain.parties])
    visits = Ledger(
        "visits", (Column("visit_no", "integer"), Column(domain.party, "string"), Column("seen_on", "date"))
    )
    seen = scene.make_rows(10 + scene.tier.upkeep, 1)
    visits.insert([(row[0], row[1], row[4]) for row in seen])
    return (main.close(), contacts.close(), visits.close())


def _pose_erase(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    party = scene.domain.party
    present = sorted({str(row[1]) for row in tables[0].rows})
    name = present[detail % len(present)]

    def erased(table: FixtureTable) -> Expected:
        place = [column.name for column in table.columns].index(party)
        rows: tuple[Row, ...] = tuple(row for row in table.rows if row[place] != name)
        return Expected(table.folder, table.columns, rows)

    return Posed(
        prompts=(
            (
                f"{party} '{name}' asked for erasure. Delete every row about them from {{main}}, {{contacts}} and "
                "{visits}, and nothing else."
            ),
            (
                f"Remove all data of {party} '{name}': the tables are {{main}}, {{contacts}} and {{visits}}. Other "
                "rows stay."
            ),
        ),
        expected=tuple(erased(table) for table in tables),
        statements=tuple(f"DELETE FROM {{{table.folder}}} WHERE {party} = '{name}'" for table in tables),
    )


def _lay_negative(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    rows = scene.make_rows(5, next_key(ledger))
    ledger.insert([(*row[:_AMOUNT], -Decimal(str(row[_AMOUNT])), *row[_AMOUNT + 1 :]) for row in rows])
    append(scene, ledger, 3)
    return (ledger.close(),)


def _pose_constraint(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main, amount = tables[0], scene.domain.amount
    name = (f"{amount}_not_negative", f"valid_{amount}", f"check_{amount}")[detail]
    rule = f"{amount} >= 0"
    rows = change(main.rows, _AMOUNT, lambda row: abs(Decimal(str(row[_AMOUNT]))), lambda _: True)
    return Posed(
        prompts=(
            (
                f"Some rows of {{main}} have a negative {amount}; only the sign is wrong. Correct it, then add a CHECK "
                f"constraint named {name} with the expression {rule}."
            ),
            (
                f"Make sure that {{main}} can never hold a negative {amount}: turn the sign of the wrong rows around "
                f"and add the CHECK constraint {name} ({rule})."
            ),
        ),
        expected=(Expected(MAIN, main.columns, rows, constraint=(name, rule)),),
        statements=(
            f"UPDATE {{main}} SET {amount} = -{amount} WHERE {amount} < 0",
            f"ALTER TABLE {{main}} ADD CONSTRAINT {name} CHECK ({rule})",
        ),
    )


KINDS = (
    Kind(
        "erase_party", FAMILY, 5, _lay_people, _pose_erase, companions=(("contacts", "contacts"), ("visits", "visits"))
    ),
    Kind("constraint", FAMILY, 3, _lay_negative, _pose_constraint),
    Kind("bad_update", FAMILY, 1, _lay_zeroed, _pose_zeroed),
    Kind("feed_sync", FAMILY, 1, _lay_replica, _pose_replica, companions=(("replica", "replica"),)),
)
