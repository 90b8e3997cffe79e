"""What an agent may try against the server, the machine and other episodes, with SQL and with Python.

Python passes the filter of statements by; what it sends is refused by the server itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.environments.delta_world import sandbox
from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.server import Server

pytestmark = pytest.mark.skipif(not sandbox.tier(), reason="this machine cannot confine the agent's Python")

TABLE = "workspace.ops.invoices"
REFUSAL = "[INSUFFICIENT_PERMISSIONS]"

STATEMENTS = (
    "SELECT reflect('java.lang.System', 'getenv', 'WORLD_OWNER')",
    "SELECT java_method('java.lang.System', 'exit', 3)",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'java.class.path')",
    f"SELECT id FROM {TABLE} WHERE EXISTS (SELECT reflect('java.lang.System', 'exit', 3))",
    "ADD JAR '/usr/share/java/x.jar'",
    "ADD FILE '/etc/passwd'",
    "LIST FILES",
    "CREATE FUNCTION f AS 'java.lang.String'",
    "CREATE TEMPORARY FUNCTION f AS 'java.lang.String'",
    "INSERT OVERWRITE DIRECTORY '/tmp/out' USING parquet SELECT 1",
    "SELECT TRANSFORM (id) USING 'cat' AS (x) FROM range(3)",
    "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 42",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM text.`{other}/ops/invoices/_delta_log/00000000000000000000.json`",
    "SELECT * FROM delta.`{other}/ops/invoices`",
    "INSERT INTO delta.`{other}/ops/invoices` VALUES (7, 7.0, 'x')",
    "CREATE TABLE workspace.ops.mine USING delta LOCATION '{other}/ops/invoices'",
    "CREATE TABLE workspace.ops.mine (line STRING) USING text LOCATION '/etc'",
    "CREATE TABLE delta.`{other}/new` (id INT)",
    "CREATE TABLE workspace.ops.mine (id INT) USING parquet",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')",
    "DESCRIBE HISTORY delta.`{other}/ops/invoices`",
    "DESCRIBE DETAIL delta.`{other}/ops/invoices`",
    "OPTIMIZE delta.`{other}/ops/invoices`",
    "DELETE FROM delta.`{other}/ops/invoices`",
    "UPDATE delta.`{other}/ops/invoices` SET id = 1",
    "ALTER TABLE delta.`{other}/ops/invoices` ADD COLUMN c INT",
    "CREATE TABLE workspace.ops.mine SHALLOW CLONE delta.`{other}/ops/invoices`",
    "CREATE TABLE workspace.ops.mine LIKE workspace.ops.invoices LOCATION '{other}/new'",
    "VACUUM delta.`{other}/ops/invoices` RETAIN 168 HOURS",
    "RESTORE TABLE delta.`{other}/ops/invoices` TO VERSION AS OF 0",
    "CONVERT TO DELTA parquet.`{other}/ops/invoices`",
    "SET spark.sql.catalog.workspace.warehouse=/",
    "SET spark.sql.runSQLOnFiles=true",
    "SET -v",
    "RESET",
)

PROGRAMS = (
    "spark.read.text('/etc/passwd').show()",
    "spark.read.format('binaryFile').load('/etc/hostname').count()",
    "spark.read.format('delta').load('{other}/ops/invoices').show()",
    "spark.read.format('jdbc').option('url', 'jdbc:derby:memory:x;create=true').option('dbtable', 'y').load()",
    "spark.range(3).write.format('parquet').save('/tmp/out')",
    "spark.range(3).write.format('delta').save('{other}/new')",
    "spark.range(3).write.mode('overwrite').format('delta').save('{other}/ops/invoices')",
    "spark.table('workspace.ops.invoices').write.insertInto('delta.`{other}/ops/invoices`')",
    "spark.table('workspace.ops.invoices').writeTo('delta.`{other}/ops/invoices`').append()",
    "spark.table('workspace.ops.invoices').writeTo('delta.`{other}/ops/invoices`').overwritePartitions()",
    "spark.range(1).selectExpr(\"reflect('java.lang.System', 'exit', 3)\").show()",
    "spark.range(1).createGlobalTempView('v')",
    "spark.conf.set('spark.sql.catalog.workspace.warehouse', '/')",
    "spark.conf.unset('spark.sql.defaultCatalog')",
    "spark.udf.registerJavaFunction('f', 'java.lang.String')",
    "from pyspark.sql.connect.functions import udf\nspark.range(1).select(udf(lambda x: x)('id')).show()",
    "spark.range(1).mapInPandas(lambda frames: frames, 'id long').show()",
    "spark.addArtifacts(__import__('pyspark').__file__, file=True)",
    "spark.client.release_session()",
    "spark.interruptAll()",
    "spark.newSession().sql('SELECT 1').show()",
)


def _files(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statement_is_refused_whichever_way_it_is_sent(
    statement: str, attacker: SparkWorkspace, victim: SparkWorkspace, server: Server
) -> None:
    before = _files(victim.folder)
    text = statement.format(other=victim.folder) if "{other}" in statement else statement
    by_tool = attacker.sql(text)
    assert by_tool.is_error
    assert by_tool.text.startswith(REFUSAL)
    by_program = attacker.python(f"spark.sql({text!r}).show()")
    assert by_program.is_error, by_program.text
    assert REFUSAL in by_program.text or "PARSE_SYNTAX_ERROR" in by_program.text
    assert "root:" not in by_program.text
    assert _files(victim.folder) == before
    server.require_whole()


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_is_refused(program: str, attacker: SparkWorkspace, victim: SparkWorkspace, server: Server) -> None:
    before = _files(victim.folder)
    shown = attacker.python(program.replace("{other}", str(victim.folder)))
    assert shown.is_error, shown.text
    assert REFUSAL in shown.text or "attribute" in shown.text
    assert _files(victim.folder) == before
    server.require_whole()
    assert attacker.sql("SELECT 1 AS one").text == "one\n1\n(1 row)"


def test_program_works_on_the_agents_own_tables(open_workspace: Callable[[str], SparkWorkspace]) -> None:
    workspace = open_workspace("program")
    workspace.sql("CREATE OR REPLACE TEMP VIEW mine AS SELECT 42 AS answer")
    shown = workspace.python(
        f"frame = spark.table('{TABLE}')\n"
        "from pyspark.sql import functions as F\n"
        "frame.withColumn('twice', F.col('amount') * 2).write.mode('append').saveAsTable('workspace.ops.twice')\n"
        "spark.createDataFrame([(1, 'a')], 'id int, name string').createOrReplaceTempView('made')\n"
        "print(spark.table('mine').collect()[0].answer, spark.table('workspace.ops.twice').count())\n"
        "frame.count()"
    )
    assert (shown.text, shown.is_error) == ("42 1\n1", False)
    assert workspace.sql("SELECT name FROM made").text == "name\na\n(1 row)"


def test_program_may_not_outlive_its_limit(server: Server, fixture: Path) -> None:
    hasty = SparkWorkspaces(server, Limits(statement_seconds=20.0, stop_seconds=120.0))
    workspace = hasty.open(fixture, (), "late")
    try:
        shown = workspace.python(
            "spark.sql('SELECT sum(a.id * b.id % 7) FROM range(2000000) a, range(2000000) b').collect()"
        )
        assert shown.is_error
        assert shown.text.endswith("The code was stopped: it ran longer than 20 seconds.")
        assert not workspace._is_busy()
    finally:
        workspace.close()
        hasty.close()


def test_stranger_gets_no_session(server: Server) -> None:
    session = pytest.importorskip("pyspark.sql.connect.session")
    stranger = session.SparkSession(connection=f"sc://127.0.0.1:{server.port}/;user_id=agent")
    stranger.client.set_retry_policies([])
    with pytest.raises(Exception, match="INSUFFICIENT_PERMISSIONS"):
        stranger.sql("SELECT 1").collect()


@pytest.mark.parametrize("words", ["[INVALID_HANDLE.SESSION_CLOSED] gone", "UNAVAILABLE", "DATA_LOSS"])
def test_words_of_a_lost_server_in_a_statement_are_the_agents_own(attacker: SparkWorkspace, words: str) -> None:
    shown = attacker.sql(f"SELECT raise_error('{words}')")
    assert shown.is_error
    assert words in shown.text
    assert not attacker.sql("SELECT 1").is_error
