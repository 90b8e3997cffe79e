"""Episodes of the world `delta_world`: ours against a well-tuned plain way, on the same episodes, in one run.

Run from the repository root: `make bench-delta`, or `python bench/delta_world.py` where the extra `delta` is
installed; if wanted with the number of episodes from a cold start, seconds of a window, pairs of windows, seconds of
work until a server is warm, and episodes over which our server's memory is watched.

- *plain*: a Spark server with the settings that suit tiny tables (no generated code, one partition, raw local files)
  and an ordinary Java; every episode's tables are made by its statements, and judged by `SELECT *`, `DESCRIBE DETAIL`
  and `DESCRIBE HISTORY` before they are dropped.
- *ours*: the world and its server as a rollout uses them: copied fixtures, a private catalog, the log replayed by the
  verifier, Java with an archive of its classes (made once, like the fixtures).

Both play the scripted solver over the same mix of all families, on one server each, 8 episodes at a time and one at a
time; every episode must be solved. First the two servers start and play the first episodes, one after the other. When
both have worked for five minutes, windows of the two alternate; a window ends when the episodes that it began are over.
A ratio is of episodes per second, or of the server's processor seconds per episode, in which other work on the machine
does not count. The last line is `ratio warm8: X`, the median over pairs of windows.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from experiment.environments.delta_world import launch
from experiment.environments.delta_world import server as server_module
from experiment.environments.delta_world.archive import provide_archive
from experiment.environments.delta_world.client import SparkWorkspace, SparkWorkspaces
from experiment.environments.delta_world.environment import DeltaWorld
from experiment.environments.delta_world.fixtures import Fixtures
from experiment.environments.delta_world.formatting import Limits
from experiment.environments.delta_world.jars import Jars, provide_jars
from experiment.environments.delta_world.java import Java, find_java
from experiment.environments.delta_world.launch import ServerOptions
from experiment.environments.delta_world.moments import commit_moment
from experiment.environments.delta_world.rows import count_rows
from experiment.environments.delta_world.server import Server
from experiment.environments.delta_world.tables import TABLE
from experiment.environments.delta_world.task import CATALOG, Task, parse_task
from experiment.records.episode import Episode

CACHE = Path(".cache") / "delta"
CLIENTS = 8
PATIENT = Limits(statement_seconds=600.0, stop_seconds=120.0)
TICKS = os.sysconf("SC_CLK_TCK")

PLAIN_SETTINGS = {
    key: launch.SETTINGS[key]
    for key in (
        *("spark.app.name", "spark.ui.enabled", "spark.driver.host", "spark.driver.bindAddress"),
        *("spark.connect.grpc.binding.address", "spark.connect.grpc.binding.port", "spark.sql.catalog.spark_catalog"),
        *("spark.sql.sources.default", "spark.sql.session.timeZone", "spark.sql.ansi.enabled"),
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration",
        *("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode", "spark.sql.adaptive.enabled"),
        *("spark.sql.shuffle.partitions", "spark.default.parallelism", "spark.databricks.delta.snapshotPartitions"),
        "spark.databricks.delta.commitStats.collect",
    )
} | {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


@dataclass(slots=True)
class Spent:
    """What some episodes took."""

    episodes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the server."""
    prepared_s: float = 0.0
    """Setting up and judging, summed over episodes."""
    played_s: float = 0.0
    """Whole episodes, summed."""

    @property
    def rate(self) -> float:
        """Episodes per second."""
        return self.episodes / self.wall_s

    @property
    def cpu(self) -> float:
        """Processor seconds of the server per episode."""
        return self.cpu_s / self.episodes

    @property
    def share(self) -> float:
        """Part of an episode's time that setting up and judging take."""
        return self.prepared_s / self.played_s

    def __str__(self) -> str:
        return (
            f"{self.episodes} episodes in {self.wall_s:.0f} s, {self.rate:.2f}/s, {self.cpu:.2f} CPU-s each, "
            f"set-up and judging {self.share:.1%}"
        )


class Side(Protocol):
    """One way of playing episodes on a server."""

    def play(self, episode: Episode) -> float:
        """Play and solve an episode; returns the seconds of setting up and judging."""
        ...


class Ours:
    """The world as a rollout uses it."""

    def __init__(self, server: Server) -> None:
        workspaces = SparkWorkspaces(server, PATIENT)
        self._world = DeltaWorld(workspaces=workspaces, fixtures=Fixtures(CACHE.absolute() / "fixtures", workspaces))

    def play(self, episode: Episode) -> float:
        """Play and solve an episode; returns the seconds of setting up and judging."""
        began = time.perf_counter()
        session = self._world.open(episode)
        opened = time.perf_counter()
        for turn in self._world.solve(episode):
            for name, arguments in turn.calls:
                result = session.call(name, dict(arguments))
                require(not result.is_error, episode, result.text)
        solved = time.perf_counter()
        require(session.verify("").success, episode, "not solved")
        session.close()
        return time.perf_counter() - solved + opened - began


class Plain:
    """Statements for everything; the world's catalog only keeps the episodes' names apart."""

    def __init__(self, server: Server) -> None:
        self._workspaces = SparkWorkspaces(server, PATIENT)
        self._empty = server.folder / "empty"
        self._empty.mkdir()

    def play(self, episode: Episode) -> float:
        """Play and solve an episode; returns the seconds of setting up and judging."""
        task = parse_task(episode.task_json)
        began = time.perf_counter()
        workspace = self._workspaces.open(self._empty, (), episode.id)
        self._lay(workspace, task)
        opened = time.perf_counter()
        for statement in task.solution:
            run(workspace, statement)
        solved = time.perf_counter()
        for table, expected in zip(task.tables, task.expected, strict=True):
            rows = count_rows(run(workspace, f"SELECT * FROM {CATALOG}.{table.name}"))
            require(rows == Counter(expected.rows), episode, f"{table.name} has {rows}")
            run(workspace, f"DESCRIBE DETAIL {CATALOG}.{table.name}")
            run(workspace, f"DESCRIBE HISTORY {CATALOG}.{table.name}")
            run(workspace, f"DROP TABLE {CATALOG}.{table.name}")
        workspace.close()
        return time.perf_counter() - solved + opened - began

    def _lay(self, workspace: SparkWorkspace, task: Task) -> None:
        names = {table.folder: table.name for table in task.tables}
        run(workspace, f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{task.record.choice.schema_name}")
        for table in task.layout.tables:
            for commit in table.commits:
                run(workspace, commit.statement.replace(TABLE, f"{CATALOG}.{names[table.folder]}"))
        for path in workspace.folder.rglob("_delta_log/*.json"):
            # Tasks name moments of the frozen fixtures.
            moment = commit_moment(int(path.stem)).timestamp()
            os.utime(path, (moment, moment))


def run(workspace: SparkWorkspace, statement: str) -> Any:
    """Run a statement and fetch its rows as any client does."""
    return workspace._session.sql(statement)._to_table()[0]  # noqa: SLF001 - without the world's formatting


def require(holds: bool, episode: Episode, what: str) -> None:  # noqa: FBT001 - a condition
    """Stop the benchmark where an episode went wrong."""
    if not holds:
        msg = f"{episode.id}: {what}"
        raise RuntimeError(msg)


@contextmanager
def unconfined() -> Iterator[None]:
    """Start servers with nothing that confines them."""
    with mock.patch.object(server_module, "_confined", lambda command, *_: list(command)):
        yield


@contextmanager
def plainly() -> Iterator[None]:
    """Start servers the plain way: other settings, and unconfined, so that they reach themselves."""
    with mock.patch.object(server_module, "java_command", plain_command), unconfined():
        yield


def plain_command(java: Java, jars: Jars, folder: Path, _options: ServerOptions) -> list[str]:
    """Return the command line of the plain server: the settings above, and Java as it comes."""
    settings = {
        **PLAIN_SETTINGS,
        "spark.master": "local[2]",
        "spark.sql.warehouse.dir": (folder / "nowhere").as_uri(),
        "spark.local.dir": str(folder / "scratch"),
    }
    flags = ["-Xmx2g", f"-Djava.io.tmpdir={folder / 'scratch'}", f"-Duser.home={folder / 'scratch'}"]
    flags += [f"-Dlog4j2.configurationFile={folder / 'logging.properties'}", "-Duser.timezone=UTC"]
    flags += ["-Dio.netty.tryReflectionSetAccessible=true"]
    flags += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in launch.OPENED]
    properties = [f"-D{key}={value}" for key, value in settings.items()]
    return [str(java.executable), *flags, *properties, "-cp", jars.joined, launch.MAIN_CLASS]


def cpu_seconds(server: Server) -> float:
    """Return the processor time of a server and its processes so far."""
    total = 0
    for pid in server_module.family(server.pid):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


@dataclass(slots=True)
class Player:
    """Plays episodes on one server, always going on where it stopped."""

    name: str
    server: Server
    side: Side
    episodes: Sequence[Episode]
    began: float
    """When the server was started."""
    count: int = 0
    worked_s: float = 0.0
    rss: dict[int, int] = field(default_factory=dict)
    """Episodes -> resident bytes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def play(self, clients: int, may_begin: Callable[[int, float], bool], *, began: float | None = None) -> Spent:
        """Play while `may_begin(number of episodes begun, seconds)` says so."""
        spent, numbers = Spent(), itertools.count()
        started = time.perf_counter() if began is None else began
        cpu_s = 0.0 if began is not None else cpu_seconds(self.server)

        def work() -> None:
            while may_begin(next(numbers), time.perf_counter() - started):
                with self._lock:
                    self.count += 1
                    episode = self.episodes[(self.count - 1) % len(self.episodes)]
                beginning = time.perf_counter()
                prepared_s = self.side.play(episode)
                self._note(spent, prepared_s, time.perf_counter() - beginning)

        with ThreadPoolExecutor(clients) as threads:
            for each in [threads.submit(work) for _ in range(clients)]:
                each.result()
        spent.wall_s = time.perf_counter() - started
        spent.cpu_s = cpu_seconds(self.server) - cpu_s
        self.worked_s += spent.wall_s
        return spent

    def _note(self, spent: Spent, prepared_s: float, played_s: float) -> None:
        with self._lock:
            spent.episodes += 1
            spent.prepared_s += prepared_s
            spent.played_s += played_s
            if self.count % 100 == 0 and self.count not in self.rss:
                self.rss[self.count] = self.server.rss_bytes()
            if spent.episodes % 25 == 0:
                say(f"  {self.name}: {spent.episodes} episodes, {self.server.rss_bytes() / 2**20:.0f} MiB")


def say(text: str) -> None:
    """Print with the time since the start."""
    print(f"[{time.perf_counter() - BEGAN:5.0f} s] {text}", flush=True)


BEGAN = time.perf_counter()


def choose_episodes() -> tuple[Episode, ...]:
    """Return episodes of every kind, families in turn, over one layout a kind."""
    drawn = DeltaWorld().generate(prefix="bench", count=600, seed=1, taken=frozenset())
    families: dict[str, list[Episode]] = {}
    for episode in drawn:
        if json.loads(episode.task_json)["choice"]["variant"] == 0:
            families.setdefault(episode.family, []).append(episode)
    return tuple(itertools.chain(*zip(*families.values(), strict=False)))


@contextmanager
def started(java: Java, jars: Jars, folder: Path, options: ServerOptions) -> Iterator[Server]:
    """A server that is stopped afterwards."""
    server = Server.start(java, jars, folder, options)
    try:
        yield server
    finally:
        server.stop()


def build_fixtures(java: Java, jars: Jars, folder: Path, episodes: Sequence[Episode]) -> None:
    """Afterwards the cache holds what the episodes need."""
    layouts = {task.layout.digest: task.layout for task in (parse_task(episode.task_json) for episode in episodes)}
    with started(java, jars, folder, ServerOptions(short_lived=True)) as server:
        workspaces = SparkWorkspaces(server, PATIENT)
        fixtures = Fixtures(CACHE.absolute() / "fixtures", workspaces)
        for layout in layouts.values():
            fixtures.ensure(layout)
    say(f"{len(episodes)} episodes over {len(layouts)} fixtures")


def measure_windows(ours: Player, plain: Player, clients: int, pairs: int, window_s: float) -> tuple[float, float]:
    """Return the median ratios of episodes per second and of processor seconds per episode."""
    walls, cpus = [], []
    for pair in range(pairs):
        spent = {}
        for player in (ours, plain) if pair % 2 else (plain, ours):
            spent[player.name] = player.play(clients, lambda _, seconds: seconds < window_s)
            say(f"warm, {clients} at a time, pair {pair + 1}, {player.name}: {spent[player.name]}")
        walls.append(spent["ours"].rate / spent["plain"].rate)
        cpus.append(spent["plain"].cpu / spent["ours"].cpu)
    say(f"warm, {clients} at a time: ratios {[round(each, 2) for each in walls]}, by CPU {[round(c, 2) for c in cpus]}")
    return statistics.median(walls), statistics.median(cpus)


def main(cold: int = 100, window_s: float = 60.0, pairs: int = 3, warm_s: float = 300.0, watched: int = 300) -> None:
    """Print every phase, and the ratios."""
    java, episodes = find_java(), choose_episodes()
    jars = provide_jars(CACHE, java)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-delta-")))
        build_fixtures(java, jars, folder / "builder", episodes)
        options = ServerOptions(class_archive=provide_archive(CACHE, java, jars))
        players, first = {}, {}
        for name, make in (("plain", Plain), ("ours", Ours)):
            began = time.perf_counter()
            with plainly() if name == "plain" else nullcontext():
                server = stack.enter_context(started(java, jars, folder / name, options))
            players[name] = Player(name, server, make(server), episodes, began)
            first[name] = players[name].play(CLIENTS, lambda number, _: number < cold, began=began)
            say(f"cold, the start included, {name}: {first[name]}")
        for name, player in players.items():
            least = watched if name == "ours" else 0
            player.play(CLIENTS, lambda _, s, p=player, n=least: p.count < n or p.worked_s + s < warm_s)  # type: ignore[misc]
        rss = {number: f"{size / 2**20:.0f} MiB" for number, size in players["ours"].rss.items()}
        one = measure_windows(players["ours"], players["plain"], 1, 2, window_s / 2)
        eight = measure_windows(players["ours"], players["plain"], CLIENTS, pairs, window_s)
    print(f"memory of ours by episodes: {rss}")
    cold_wall = first["ours"].rate / first["plain"].rate
    print(f"ratio cold, first {cold}: {cold_wall:.2f}, by CPU {first['plain'].cpu / first['ours'].cpu:.2f}")
    print(f"ratio warm1: {one[0]:.2f}, by CPU {one[1]:.2f}")
    print(f"ratio warm8 by CPU: {eight[1]:.2f}")
    print(f"ratio warm8: {eight[0]:.2f}")


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float, int, float, int), sys.argv[1:], strict=False)))
