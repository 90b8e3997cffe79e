"""Family D: the layout of a table fits its queries.

Judging. The clustering columns of the table, and every file: each must have been written by a clustering of exactly
these columns. Setting the columns without rewriting is not accepted, and neither is a plain OPTIMIZE after a change
of columns, which rewrites nothing. Rows and columns must be as they were.
"""

from __future__ import annotations

from experiment.environments.delta_world.kind import MAIN, Expected, Kind, Posed, append, begin, fill
from experiment.environments.delta_world.scene import Scene
from experiment.environments.delta_world.tables import FixtureTable, Ledger

FAMILY = "D"
_PLACES = (3, 1, 4)
"""Columns that queries filter on."""


def _lay_plain(scene: Scene) -> tuple[FixtureTable, ...]:
    return (begin(scene).close(),)


def _lay_by_key(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = Ledger(MAIN, scene.columns, clustering=(scene.domain.key,))
    fill(scene, ledger)
    ledger.optimize()
    return (ledger.close(),)


def _lay_by_group(scene: Scene) -> tuple[FixtureTable, ...]:
    ledger = Ledger(MAIN, scene.columns, clustering=(scene.domain.group,))
    fill(scene, ledger)
    ledger.optimize()
    append(scene, ledger, 8)
    append(scene, ledger, 6)
    return (ledger.close(),)


def _clustered(main: FixtureTable, *names: str) -> tuple[Expected, ...]:
    return (Expected(MAIN, main.columns, main.rows, clustering=names, clustered=True),)


def _pose_plain(_scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main = tables[0]
    name = main.columns[_PLACES[detail]].name
    return Posed(
        prompts=(
            (
                f"Nearly all queries on {{main}} filter on {name}, but the table is not clustered. Cluster it by "
                f"{name}, and make sure that the data that is already there is clustered as well."
            ),
            f"Turn on clustering of {{main}} by {name} and apply it to all existing data.",
        ),
        expected=_clustered(main, name),
        statements=(f"ALTER TABLE {{main}} CLUSTER BY ({name})", "OPTIMIZE {main}"),
    )


def _pose_wrong(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main, key = tables[0], scene.domain.key
    name = main.columns[_PLACES[detail]].name
    return Posed(
        prompts=(
            (
                f"{{main}} is clustered by {key}, but its queries filter on {name}. Cluster it by {name} instead; all "
                "existing data must be laid out by the new column."
            ),
            f"Change the clustering of {{main}} from {key} to {name}, for the data that is already there too.",
        ),
        expected=_clustered(main, name),
        statements=("DESCRIBE DETAIL {main}", f"ALTER TABLE {{main}} CLUSTER BY ({name})", "OPTIMIZE {main} FULL"),
    )


def _pose_fresh(scene: Scene, tables: tuple[FixtureTable, ...], _detail: int) -> Posed:
    main, group = tables[0], scene.domain.group
    return Posed(
        prompts=(
            (
                f"{{main}} is clustered by {group}, but rows were loaded after its last OPTIMIZE. See to it that every "
                "file of the table is clustered again."
            ),
            f"The latest loads of {{main}} are not laid out by its clustering column {group} yet. Fix that.",
        ),
        expected=_clustered(main, group),
        statements=("DESCRIBE HISTORY {main}", "OPTIMIZE {main}"),
    )


def _pose_pair(_scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main = tables[0]
    first, second = ((3, 4), (1, 3), (4, 1))[detail]
    names = (main.columns[first].name, main.columns[second].name)
    listed = f"{names[0]} and {names[1]}"
    return Posed(
        prompts=(
            (
                f"Queries on {{main}} filter on {listed} together. Cluster the table by these two columns, in this "
                "order, the existing data included."
            ),
            f"Cluster {{main}} by {listed} (in this order), and lay out all of its data that way.",
        ),
        expected=_clustered(main, *names),
        statements=(f"ALTER TABLE {{main}} CLUSTER BY ({', '.join(names)})", "OPTIMIZE {main}"),
    )


def _pose_wrong_group(scene: Scene, tables: tuple[FixtureTable, ...], detail: int) -> Posed:
    main, group = tables[0], scene.domain.group
    name = main.columns[(1, 4)[detail]].name
    return Posed(
        prompts=(
            (
                f"{{main}} was clustered by {group} and partly optimized. Its queries now filter on {name} alone. Make "
                f"{name} the only clustering column and lay out every file by it."
            ),
            f"Move the clustering of {{main}} from {group} to {name}; no file may keep the old layout.",
        ),
        expected=_clustered(main, name),
        statements=("DESCRIBE DETAIL {main}", f"ALTER TABLE {{main}} CLUSTER BY ({name})", "OPTIMIZE {main} FULL"),
    )


KINDS = (
    Kind("fresh_files", FAMILY, 1, _lay_by_group, _pose_fresh),
    Kind("unclustered", FAMILY, 3, _lay_plain, _pose_plain),
    Kind("two_columns", FAMILY, 3, _lay_plain, _pose_pair),
    Kind("wrong_column", FAMILY, 3, _lay_by_key, _pose_wrong),
    Kind("wrong_partly", FAMILY, 2, _lay_by_group, _pose_wrong_group),
)
