"""Families on a real Spark server: the solver solves every kind, near misses do not count, and Spark reads the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `delta` is not installed")

from experiment.environments.delta_world.client import SparkWorkspaces
from experiment.environments.delta_world.environment import DeltaSession, DeltaWorld
from experiment.environments.delta_world.families.every import FAMILIES, KINDS
from experiment.environments.delta_world.fixtures import Fixtures
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import provide_jars
from experiment.environments.delta_world.java import find_java
from experiment.environments.delta_world.launch import ServerOptions
from experiment.environments.delta_world.replay import NeedsSparkError, replay
from experiment.environments.delta_world.rows import count_rows, read_rows
from experiment.environments.delta_world.server import Server
from experiment.environments.delta_world.task import lay_out, parse_task, task_space
from experiment.environments.generation import make_episode
from experiment.records.episode import Episode
from experiment.sealing.trees import scan_tree

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "delta"


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkWorkspaces]:
    """Private workspaces on a server of this module."""
    java = find_java()
    server = Server.start(
        java, provide_jars(CACHE, java), tmp_path_factory.mktemp("server"), ServerOptions(short_lived=True)
    )
    workspaces = SparkWorkspaces(server, Limits(statement_seconds=240.0, stop_seconds=120.0))
    yield workspaces
    workspaces.close()
    server.stop()


@pytest.fixture(scope="module")
def world(workspaces: SparkWorkspaces) -> DeltaWorld:
    """The standard tier on the server."""
    return DeltaWorld(workspaces=workspaces, fixtures=Fixtures(CACHE / "fixtures", workspaces))


def make(kind: str, *, detail: int = 0) -> Episode:
    """Return an episode of the kind's first variant."""
    space = task_space(KINDS[kind].family, "standard")
    for number in range(space.size):
        draft = space.draft(number, 3)
        choice = draft.task["choice"]
        assert isinstance(choice, dict)
        if draft.task["kind"] == kind and choice["variant"] == 0 and choice["detail"] == detail:
            return make_episode("delta_world", draft, episode_id=f"{kind}-{number:04d}", seed=3)
    raise AssertionError(kind)


def solve(world: DeltaWorld, episode: Episode) -> DeltaSession:
    """Return a session in which the scripted solver has been played without an error."""
    session = world.open(episode)
    for turn in world.solve(episode):
        for name, arguments in turn.calls:
            result = session.call(name, dict(arguments))
            assert not result.is_error, (arguments, result.text)
    return session


@pytest.mark.parametrize("kind", KINDS)
def test_solver_solves_every_kind_and_spark_reads_what_the_replay_reads(world: DeltaWorld, kind: str) -> None:
    episode = make(kind, detail=KINDS[kind].details - 1)
    session = solve(world, episode)
    assert session.find_faults() == ()
    workspace = session._workspace
    for table in parse_task(episode.task_json).tables:
        log = replay(workspace.folder / table.folder)
        assert log is not None
        assert count_rows(read_rows(workspace.folder / table.folder, log)) == count_rows(workspace.read(table.name))
    session.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_doing_nothing_and_claiming_success_solve_nothing(world: DeltaWorld, family: str) -> None:
    episode = make(FAMILIES[family][-1].name)
    for turns in ((), world.claim_success(episode)):
        session = world.open(episode)
        for turn in turns:
            for name, arguments in turn.calls:
                assert not session.call(name, dict(arguments)).is_error
        assert not session.verify("The task is solved.").success
        session.close()


NEAR_MISSES: dict[str, tuple[Sequence[str], ...]] = {
    # The overwrite is version 3: 2 is the version to restore.
    "restore_overwrite": (
        ("RESTORE TABLE {main} TO VERSION AS OF 1",),
        ("INSERT OVERWRITE {main} SELECT * FROM {main} VERSION AS OF 2",),
        ("DELETE FROM {main}", "INSERT INTO {main} SELECT * FROM {main} VERSION AS OF 2"),
        ("CREATE OR REPLACE TABLE {main} AS SELECT * FROM {main} VERSION AS OF 2",),
        ("{solution}", "DELETE FROM {main} WHERE {key} = 1"),
        ("{solution}", "DROP TABLE {main}"),
    ),
    "exact_duplicates": (
        ("CREATE OR REPLACE TABLE {main} AS SELECT DISTINCT * FROM {main}",),
        ("INSERT INTO {main} SELECT DISTINCT * FROM {main}",),
        (
            (
                "DELETE FROM {main} WHERE {key} IN (SELECT {key} FROM {main} VERSION AS OF 3 GROUP BY {key} HAVING "
                "COUNT(*) > 1)"
            ),
        ),
        ("RESTORE TABLE {main} TO VERSION AS OF 1",),
        ("{solution}", "INSERT INTO {main} SELECT * FROM {main} LIMIT 1"),
        ("{solution}", "ALTER TABLE {main} UNSET TBLPROPERTIES ('delta.logRetentionDuration')"),
    ),
    "widen_column": (
        ("ALTER TABLE {main} ALTER COLUMN value TYPE BIGINT",),
        ("ALTER TABLE {main} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",),
        ("CREATE OR REPLACE TABLE {main} AS SELECT * EXCEPT (value), CAST(value AS BIGINT) AS value FROM {main}",),
        ("ALTER TABLE {main} ADD COLUMN value_2 BIGINT", "UPDATE {main} SET value_2 = value"),
        ("{solution}", "INSERT OVERWRITE {main} SELECT * FROM {main}"),
        ("{solution}", "UPDATE {main} SET value = value + 1 WHERE {key} = 1"),
    ),
    "wrong_column": (
        ("ALTER TABLE {main} CLUSTER BY ({column})", "OPTIMIZE {main}"),
        ("ALTER TABLE {main} CLUSTER BY ({column})",),
        ("OPTIMIZE {main} FULL",),
        ("ALTER TABLE {main} CLUSTER BY ({column}, {key})", "OPTIMIZE {main} FULL"),
        ("ALTER TABLE {main} CLUSTER BY NONE",),
        ("CREATE OR REPLACE TABLE {main} CLUSTER BY ({column}) AS SELECT * FROM {main}",),
        ("{solution}", "INSERT INTO {main} SELECT * FROM {main} LIMIT 1"),
    ),
    # The bad update is version 3.
    "bad_update": (
        ("RESTORE TABLE {main} TO VERSION AS OF 2",),
        ("INSERT OVERWRITE {main} SELECT * FROM {main} VERSION AS OF 2",),
        ("INSERT INTO {main} SELECT * FROM {main} VERSION AS OF 2",),
        ("UPDATE {main} SET {amount} = 1 WHERE {amount} = 0",),
        ("DELETE FROM {main} WHERE {amount} = 0",),
        ("{solution}", "UPDATE {main} SET {amount} = {amount} + 0.01 WHERE {key} = 1"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, misses in NEAR_MISSES.items() for number in range(len(misses))]
)
def test_near_miss_is_not_accepted(world: DeltaWorld, kind: str, number: int) -> None:
    episode = make(kind)
    task = parse_task(episode.task_json)
    main = task.layout.tables[0]
    names = {"{key}": main.columns[0].name, "{amount}": main.columns[2].name, "{column}": main.columns[3].name}
    session = world.open(episode)
    for statement in NEAR_MISSES[kind][number]:
        for each in task.solution if statement == "{solution}" else (statement,):
            text = task.fill(each)
            for mark, name in names.items():
                text = text.replace(mark, name)
            session.call("run_sql", {"statement": text})
    assert session.find_faults()
    session.close()


def test_rows_behind_deletion_vectors_are_read_by_spark(world: DeltaWorld) -> None:
    episode = make("blocked_keys")
    task = parse_task(episode.task_json)
    session = world.open(episode)
    vectors = "ALTER TABLE {main} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    for statement in (task.fill(vectors), *task.solution):
        assert not session.call("run_sql", {"statement": statement}).is_error
    folder = session._workspace.folder / "main"
    log = replay(folder)
    assert log is not None
    with pytest.raises(NeedsSparkError, match="deletion vector"):
        read_rows(folder, log)
    assert session.find_faults() == ()
    session.close()


@pytest.mark.parametrize("kind", ["bad_update", "wrong_column"])
def test_same_statements_show_the_same_text(world: DeltaWorld, kind: str) -> None:
    episode = make(kind)
    shown = []
    for _ in range(2):
        session = solve(world, episode)
        history = parse_task(episode.task_json).fill("DESCRIBE HISTORY {main}")
        session.call("run_sql", {"statement": history})
        shown.append([call.result.text for call in session.native_calls()])
        session.close()
    assert shown[0] == shown[1]


def test_fixture_is_the_same_in_every_byte_when_it_is_built_again(
    world: DeltaWorld, workspaces: SparkWorkspaces, tmp_path: Path
) -> None:
    world.open(make("wrong_partly")).close()
    layout = lay_out("wrong_partly", "standard", 0)
    kept = Fixtures(CACHE / "fixtures", workspaces).ensure(layout)
    again = Fixtures(tmp_path, workspaces).ensure(layout)
    assert scan_tree(kept) == scan_tree(again)


def test_episode_leaves_its_fixture_alone(world: DeltaWorld, workspaces: SparkWorkspaces) -> None:
    episode = make("upsert")
    folder = Fixtures(CACHE / "fixtures", workspaces).ensure(parse_task(episode.task_json).layout)
    before = scan_tree(folder)
    solve(world, episode).close()
    assert scan_tree(folder) == before
    assert json.loads(episode.task_json)["kind"] == "upsert"
