"""Family A: an earlier version of a table is needed again.

Judging. Where the task asks for RESTORE, the history must show one after the version that the agent found, and
the content must be that of the named version: the right rows by DELETE and INSERT alone are not accepted. Where
no statement is asked for, any way to the right rows is accepted.
"""

# ruff: noqa: S608 - every name and value in these statements is the generator's own

from __future__ import annotations

from experiment.environments.delta_world.kind import MAIN, Expected, Kind, Posed, append, begin, unchanged
from experiment.environments.delta_world.moments import write_moment
from experiment.environments.delta_world.scene import Scene
from experiment.environments.delta_world.tables import FixtureTable, Ledger

FAMILY = "A"
_LATER = 2
"""Versions after the damage."""


def _lay_overwritten(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    ledger.overwrite(scene.make_rows(3, 9001))
    if scene.tier.upkeep:
        ledger.insert(scene.make_rows(2, 9101))
    return (ledger.close(),)


def _pose_overwritten(_scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main = tables[0]
    bad = next(version for version, commit in enumerate(main.commits) if "INSERT OVERWRITE" in commit.statement)
    return Posed(
        prompts=(
            (
                "A test job ran an INSERT OVERWRITE against {main} and replaced its content with test rows. Restore "
                "the table to the version just before that job. Use RESTORE, so that the recovery shows in the history."
            ),
            (
                "{main} holds nothing but test rows since a test job overwrote it by mistake. Bring back the last "
                "version before the overwrite with the RESTORE command; the table's history must show it."
            ),
        ),
        expected=(Expected(MAIN, main.columns, main.commits[bad - 1].rows, restored=True),),
        statements=("DESCRIBE HISTORY {main}", f"RESTORE TABLE {{main}} TO VERSION AS OF {bad - 1}"),
    )


def _lay_loads(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    for _ in range(3):
        append(scene, ledger, 2)
    ledger.update(scene.domain.group, "unknown", scene.domain.group, scene.domain.groups[0])
    return (ledger.close(),)


def _pose_moment(_scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main = tables[0]
    version = main.version - _LATER - detail
    moment = write_moment(version, minutes_after=20)
    return Posed(
        prompts=(
            "{main} must go back to the state it had at " + moment + " UTC. Use RESTORE, so that the history shows it.",
            "Everything that happened to {main} after " + moment + " UTC was a mistake. Undo it with the RESTORE "
            "command.",
        ),
        expected=(Expected(MAIN, main.columns, main.commits[version].rows, restored=True),),
        statements=("DESCRIBE HISTORY {main}", f"RESTORE TABLE {{main}} TO TIMESTAMP AS OF '{moment}'"),
    )


def _lay_deleted(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    ledger.delete(scene.domain.group, scene.draw.pick(scene.domain.groups))
    for _ in range(_LATER):
        append(scene, ledger, 4)
    return (ledger.close(),)


def _pose_deleted(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, group = tables[0], scene.domain.group
    bad = next(version for version, commit in enumerate(main.commits) if commit.statement.startswith("DELETE"))
    lost = tuple(row for row in main.commits[bad - 1].rows if row not in main.commits[bad].rows)
    value = lost[0][3]
    return Posed(
        prompts=(
            (
                f"A clean-up job deleted every row of {{main}} whose {group} was '{value}'. New rows have been loaded "
                "since and must stay. Put the deleted rows back exactly as they were."
            ),
            (
                f"By mistake someone ran a DELETE on {{main}} for {group} '{value}'. Recover exactly those rows from "
                "the table's earlier versions and keep everything that was loaded afterwards."
            ),
        ),
        expected=(Expected(MAIN, main.columns, (*main.rows, *lost)),),
        statements=(
            "DESCRIBE HISTORY {main}",
            f"INSERT INTO {{main}} SELECT * FROM {{main}} VERSION AS OF {bad - 1} WHERE {group} = '{value}'",
        ),
    )


def _lay_audited(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = begin(scene)
    ledger.delete(scene.domain.group, scene.draw.pick(scene.domain.groups))
    append(scene, ledger, 3)
    return (ledger.close(), Ledger("audit", scene.columns).close())


def _pose_audit(_scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main, audit = tables
    version = main.version - 1 - detail
    return Posed(
        prompts=(
            (
                f"For an audit, fill the empty table {{audit}} with the rows that {{main}} had at version {version}. "
                "Leave {main} as it is."
            ),
            (
                f"The auditors need the content of {{main}} as of version {version} in {{audit}}, which is empty now. "
                "{main} itself must not change."
            ),
        ),
        expected=(unchanged(main), Expected("audit", audit.columns, main.commits[version].rows)),
        statements=(f"INSERT INTO {{audit}} SELECT * FROM {{main}} VERSION AS OF {version}",),
    )


KINDS = (
    Kind("restore_overwrite", FAMILY, 1, _lay_overwritten, _pose_overwritten),
    Kind("restore_moment", FAMILY, 3, _lay_loads, _pose_moment),
    Kind("deleted_rows", FAMILY, 1, _lay_deleted, _pose_deleted),
    Kind("audit_copy", FAMILY, 3, _lay_audited, _pose_audit, companions=(("audit", "audit"),)),
)
