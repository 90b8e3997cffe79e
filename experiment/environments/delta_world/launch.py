"""How a Spark Connect server is started: Spark's settings, and Java's command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiment.environments.delta_world.jars import Jars
from experiment.environments.delta_world.java import Java

MAIN_CLASS = "world.Server"
OUTGROWN = "outgrown"
"""A file in its folder with which a server says that its memory is nearly full of what it cannot let go."""

ARCHIVE_PATIENCE_S = 600.0
"""How long a server may take to write its class-data archive when it ends."""

SETTINGS = {
    "spark.app.name": "world",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.connect.session.manager.defaultSessionTimeout": "12h",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,world.Guard",
    "spark.connect.grpc.interceptor.classes": "world.Gate",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.sources.default": "delta",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # A fixture's commits are older than what they deleted may be kept by default; the tables say how long theirs are.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Every table is tiny and every plan is new: compiling, splitting and adapting plans costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.sql.parquet.compression.codec": "uncompressed",
    "spark.shuffle.compress": "false",
    "spark.rdd.compress": "false",
    "spark.broadcast.compress": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.commitStats.collect": "false",
    "spark.hadoop.fs.file.impl": "world.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "world.LocalFs",
    "spark.driver.maxResultSize": "64m",
    # Nobody looks at past executions, and a thousand plans with whatever an agent wrote into them fill the memory.
    "spark.sql.ui.retainedExecutions": "4",
    "spark.ui.retainedJobs": "4",
    "spark.ui.retainedStages": "4",
    "spark.ui.retainedTasks": "100",
}

OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
    "sun.security.action",
)
"""Packages of the runtime that Spark reaches into."""

_COMPILING = {
    "InvocationThreshold": 20_000,
    "MinInvocationThreshold": 2_400,
    "CompileThreshold": 60_000,
    "BackEdgeThreshold": 160_000,
}
"""Four times what is usual before Java's second compiler takes a method. A server spends much of its first minutes on
that, for code of which most is soon not used any more."""

LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %maxLen{%m}{500}%n%maxLen{%ex{8}}{2000}
"""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is run; nothing here changes what a statement answers."""

    cores: int = 1
    """Tasks that run at a time."""
    heap_mib: int = 1280
    short_lived: bool = False
    """True compiles quickly and less well: better for a server that lives minutes."""
    class_archive: Path | None = None
    """A class-data archive of exactly this Java and these jars, read where the file exists."""
    writes_archive: Path | None = None
    """Where such an archive is written when the server stops; it stands on the base of `class_archive` for ever."""
    allow_unconfined: bool = False
    """True starts the server with all of the machine in its reach where the kernel cannot confine it."""


def base_archive(archive: Path) -> Path:
    """Return where the archive of Java's own classes is that `archive` stands on."""
    return archive.with_suffix(".base.jsa")


def java_command(java: Java, jars: Jars, folder: Path, options: ServerOptions) -> list[str]:
    """Return the command that starts a server whose files are in `folder`."""
    scratch = folder / "scratch"
    settings = {
        **SETTINGS,
        "spark.master": f"local[{options.cores}]",
        "spark.sql.warehouse.dir": (folder / "nowhere").as_uri(),
        "spark.local.dir": str(scratch),
    }
    flags = [f"-Xmx{options.heap_mib}m", f"-Xmn{options.heap_mib // 3}m", "-Xss4m", "-XX:+UseSerialGC", "-Xshare:auto"]
    flags += ["-XX:+ExitOnOutOfMemoryError", "-XX:MetaspaceSize=320m", "-XX:ReservedCodeCacheSize=400m"]
    flags += ["-XX:-UsePerfData", f"-Dworld.outgrown={folder / OUTGROWN}"]
    if options.short_lived:
        flags.append("-XX:TieredStopAtLevel=1")
    flags += [f"-XX:Tier4{name}={number}" for name, number in _COMPILING.items()]
    archive = options.class_archive
    if archive and options.writes_archive:
        flags.append(f"-XX:SharedArchiveFile={base_archive(archive)}")
        flags.append(f"-XX:ArchiveClassesAtExit={options.writes_archive}")
        flags.append(f"-Dworld.patience={ARCHIVE_PATIENCE_S:.0f}")
    elif archive and archive.is_file():
        flags.append(f"-XX:SharedArchiveFile={base_archive(archive)}:{archive}")
    flags += [f"-Djava.io.tmpdir={scratch}", "-Duser.timezone=UTC", "-Duser.language=en", f"-Duser.home={scratch}"]
    flags += [f"-Dlog4j2.configurationFile={folder / 'logging.properties'}", "-Djava.security.egd=file:/dev/urandom"]
    flags += ["-Dio.netty.tryReflectionSetAccessible=true", "--enable-native-access=ALL-UNNAMED"]
    flags += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
    properties = [f"-D{key}={value}" for key, value in settings.items()]
    return [str(java.executable), *flags, *properties, "-cp", jars.joined, MAIN_CLASS]
