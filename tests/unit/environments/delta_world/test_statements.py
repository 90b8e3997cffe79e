"""Which statements the agent may run."""

from __future__ import annotations

import pytest

from experiment.environments.delta_world.statements import MAX_CHARS, check_statement, first_word

HOSTILE = (
    "SELECT reflect('java.lang.System', 'exit', 3)",
    "select java_method('java.lang.System', 'getenv', 'HOME')",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT `reflect`('java.lang.System', 'exit', 3)",
    "SELECT reflect /* between */ ('java.lang.System', 'exit', 3)",
    "SELECT reflect -- between\n ('java.lang.System', 'exit', 3)",
    "SELECT /* a /* nested */ 'comment */ reflect('java.lang.System', 'exit', 3)",
    "SELECT 'it''s', \"a\\\"b\", reflect('java.lang.System', 'exit', 3)",
    "ADD JAR '/tmp/evil.jar'",
    "ADD FILE '/etc/passwd'",
    "/* first */ add archive '/tmp/evil.zip'",
    "LIST JARS",
    "LIST FILES",
    "LOAD DATA INPATH '/etc/passwd' INTO TABLE workspace.ops.invoices",
    "CREATE FUNCTION f AS 'com.example.Evil'",
    "CREATE OR REPLACE TEMPORARY FUNCTION f AS 'com.example.Evil' USING JAR '/tmp/evil.jar'",
    "INSERT OVERWRITE DIRECTORY '/tmp/out' USING parquet SELECT 1",
    "INSERT OVERWRITE LOCAL DIRECTORY '/tmp/out' SELECT 1",
    "CREATE TABLE workspace.ops.t (line STRING) USING text LOCATION '/etc'",
    "CREATE TABLE workspace.ops.t USING delta LOCATION '/other/episode'",
    "CREATE SCHEMA workspace.s LOCATION '/tmp/s'",
    "ALTER TABLE workspace.ops.t SET LOCATION '/etc'",
    "CREATE TABLE workspace.ops.t (a INT) USING parquet",
    "CREATE TABLE workspace.ops.t (a INT) USING `csv`",
    "CREATE TABLE workspace.ops.t (a INT) STORED AS textfile",
    "CREATE TABLE workspace.ops.t USING delta OPTIONS (path '/other/episode')",
    "CREATE TABLE workspace.ops.t USING delta OPTIONS ('path' = '/other/episode')",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')",
    "CREATE TEMPORARY VIEW v USING jdbc OPTIONS (url 'jdbc:derby:x', dbtable 'y')",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM delta.`/other/episode/invoices`",
    "SELECT * FROM binaryFile . `file:/etc/hostname`",
    "SELECT * FROM csv.`data.csv`",
    "CREATE TABLE delta.`/tmp/t` (a INT)",
    "VACUUM '/other/episode/invoices' RETAIN 0 HOURS",
    "VACUUM delta.`/other/episode/invoices`",
    "DESCRIBE HISTORY '/other/episode/invoices'",
    'DESCRIBE DETAIL "/other/episode/invoices"',
    "CONVERT TO DELTA parquet.`/data`",
    "GENERATE symlink_format_manifest FOR TABLE workspace.ops.t",
    "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 42",
    "CREATE OR REPLACE GLOBAL TEMP VIEW v AS SELECT 42",
    "SELECT * FROM global_temp.v",
    "SELECT * FROM `global_temp`.v",
    "SET",
    "SET -v",
    "RESET",
    "SET spark.sql.runSQLOnFiles = true",
    "SET spark.sql.catalog.workspace.warehouse=/etc",
    "SET spark.sql.catalog.other = org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "SET `spark.sql.extensions` = evil",
    "SET spark.sql.warehouse.dir=/etc",
    "RESET spark.sql.catalog.workspace",
    "SELECT TRANSFORM (id) USING 'sh -c id' AS (x) FROM workspace.ops.t",
    "FROM workspace.ops.t MAP id USING 'cat' AS x",
    "EXECUTE IMMEDIATE 'ADD JAR ''x'''",
    "BEGIN SELECT 1; END",
    f"SELECT '{'x' * MAX_CHARS}'",
)

ORDINARY = (
    "SELECT * FROM workspace.ops.invoices",
    "  -- a comment\nSELECT count(*) FROM workspace.ops.invoices VERSION AS OF 2;",
    "SELECT location, path, `using`, directory FROM workspace.ops.sites",
    "SELECT 'reflect(1)', \"ADD JAR\" AS note",
    "SELECT a.`total amount` FROM workspace.ops.invoices a JOIN workspace.ops.sites USING (id)",
    "SELECT transform(array(1, 2), x -> x + 1)",
    "SELECT reflect FROM workspace.ops.optics",
    "WITH t AS (SELECT 1 AS id) SELECT * FROM t",
    "INSERT INTO workspace.ops.invoices VALUES (1, 'a/b', '2024-01-01')",
    "INSERT OVERWRITE workspace.ops.invoices SELECT DISTINCT * FROM workspace.ops.invoices",
    "MERGE INTO workspace.ops.invoices t USING staged s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *",
    "MERGE INTO t USING (SELECT * FROM s) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    "UPDATE workspace.ops.invoices SET amount = 0 WHERE id = 1",
    "DELETE FROM workspace.ops.invoices WHERE note = 'file:/etc/passwd'",
    "RESTORE TABLE workspace.ops.invoices TO VERSION AS OF 2",
    "RESTORE TABLE workspace.ops.invoices TO TIMESTAMP AS OF '2024-06-01 02:30:00'",
    "DESCRIBE HISTORY workspace.ops.invoices",
    "DESCRIBE DETAIL workspace.ops.invoices",
    "ALTER TABLE workspace.ops.invoices SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "ALTER TABLE workspace.ops.invoices RENAME COLUMN a TO b",
    "ALTER TABLE workspace.ops.invoices CLUSTER BY (region)",
    "ALTER TABLE workspace.ops.invoices ADD CONSTRAINT positive CHECK (amount > 0)",
    "OPTIMIZE workspace.ops.invoices FULL",
    "VACUUM workspace.ops.invoices RETAIN 168 HOURS",
    "CREATE TABLE workspace.ops.t (id INT, location STRING) USING delta CLUSTER BY (id)",
    "CREATE OR REPLACE TABLE workspace.ops.t AS SELECT id, CAST(value AS BIGINT) value FROM workspace.ops.t",
    "CREATE TABLE workspace.ops.t SHALLOW CLONE workspace.ops.u",
    "CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM workspace.ops.t",
    "CREATE FUNCTION workspace.ops.f(x INT) RETURNS INT RETURN x + 1",
    "SET TIME ZONE 'Europe/Berlin'",
    "SET spark.databricks.delta.schema.autoMerge.enabled = true",
    "SET spark.sql.ansi.enabled=false",
    "RESET spark.sql.ansi.enabled",
    "SELCT 1",
    "",
)


@pytest.mark.parametrize("statement", HOSTILE, ids=lambda text: text[:60])
def test_hostile_statement_is_refused(statement: str) -> None:
    assert check_statement(statement).startswith("[INSUFFICIENT_PERMISSIONS] ")


@pytest.mark.parametrize("statement", ORDINARY, ids=lambda text: text[:60])
def test_ordinary_statement_is_let_through(statement: str) -> None:
    assert check_statement(statement) == ""


def test_unclosed_comment_hides_nothing() -> None:
    assert check_statement("SELECT 1 /* no end */ */ , reflect('a', 'b')") != ""
    assert check_statement("SELECT 1 /* no end reflect('a', 'b')") == ""


def test_first_word_is_found_behind_comments_and_brackets() -> None:
    assert first_word("/* a */ -- b\n ((select 1))") == "SELECT"
    assert first_word(" ; ") == ""
