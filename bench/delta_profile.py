"""Where the processor time of a Delta world's server goes, and what settings of Spark change.

Run from the repository root: `python bench/delta_profile.py [EPISODES [SETTINGS ...]]`.

The server plays EPISODES (300) episodes of all families, 8 at a time, and the processor time of each hundred is printed
by kind of thread. Where `JAVA_HOME` names a JDK, that Java is taken, and its flight recorder says how much of another
hundred was spent inside what (a sample counts for everything on its stack, so the parts overlap).

Each of SETTINGS, such as `spark.sql.ansi.enabled=true,spark.sql.caseSensitive=true`, is then compared with none: the
same episodes one at a time, groups of five by turns, on the same warm server. A ratio below 1 says that they help.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from delta_world import (
    BEGAN,
    CACHE,
    CLIENTS,
    TICKS,
    Ours,
    Player,
    build_fixtures,
    choose_episodes,
    cpu_seconds,
    say,
    started,
    unconfined,
)

from experiment.environments.delta_world import client
from experiment.environments.delta_world.archive import provide_archive
from experiment.environments.delta_world.jars import provide_jars
from experiment.environments.delta_world.java import find_java
from experiment.environments.delta_world.launch import ServerOptions
from experiment.environments.delta_world.server import Server, family

HUNDRED = 100
GROUP, ROUNDS = 5, 20
PARTS = {
    "serialising and checking closures": "ObjectOutputStream|SparkClosureCleaner",
    "reading them back": "ObjectInputStream",
    "analysis": r"catalyst\.analysis|Analyzer\.",
    "binding encoders": "resolveAndBind|resolvedEnc",
    "optimisation": r"optimizer\.|Optimizer\.",
    "generating projections": r"CodeGenerator\.generate|GenerateSafeProjection",
    "snapshots of tables": r"delta\.Snapshot",
    "reading and writing Parquet": "parquet",
    "loading classes": r"BuiltinClassLoader|URLClassPath|ClassLoader\.loadClass",
    "files": r"hadoop\.fs|nio\.fs|java\.io\.File",
}
"""What is looked for on the stack."""


def by_thread(server: Server) -> Counter[str]:
    """Return the processor seconds of the server's threads so far, by name without numbers."""
    found: Counter[str] = Counter()
    for pid in family(server.pid):
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                head, _, rest = path.read_text(encoding="ascii", errors="replace").rpartition(")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            found[re.sub(r"[\d#-]+", "", head.partition("(")[2]).strip()] += (int(fields[11]) + int(fields[12])) / TICKS
    return found


def play_hundreds(player: Player, episodes: int) -> None:
    """Play, and print what each hundred episodes took. Threads that have ended since are in the sum only."""
    before = by_thread(player.server)
    for _ in range(episodes // HUNDRED):
        spent = player.play(CLIENTS, lambda number, _seconds: number < HUNDRED)
        now = by_thread(player.server)
        parts = sorted(((now[name] - before[name], name) for name in now), reverse=True)
        before = now
        say(str(spent))
        say("  " + ", ".join(f"{name} {seconds:.1f}" for seconds, name in parts if seconds > 1))


def record(server: Server, home: Path, player: Player, folder: Path) -> None:
    """Print what a flight recording of a hundred episodes holds."""
    pid, target = str(family(server.pid)[-1]), folder / "warm.jfr"
    ask = [home / "bin" / "jcmd", pid]
    # By default a stack is cut where Spark's planning only begins.
    subprocess.run([*ask, "JFR.configure", "stackdepth=128"], check=True, capture_output=True)
    subprocess.run([*ask, "JFR.start", "name=warm", "settings=profile"], check=True, capture_output=True)
    player.play(CLIENTS, lambda number, _: number < HUNDRED)
    subprocess.run([*ask, "JFR.dump", "name=warm", f"filename={target}"], check=True, capture_output=True)
    read = [home / "bin" / "jfr", "print", "--stack-depth", "128", "--events", "jdk.ExecutionSample", target]
    printed = subprocess.run(read, check=True, capture_output=True, text=True).stdout
    samples = printed.split("jdk.ExecutionSample {")[1:]
    say(f"{len(samples)} samples of {HUNDRED} episodes, Java threads only:")
    for part, pattern in PARTS.items():
        say(f"  {sum(bool(re.search(pattern, each)) for each in samples) / len(samples):6.1%} {part}")


def compare(player: Player, arms: Mapping[str, Mapping[str, str]]) -> None:
    """Print what an episode takes under each of `arms`; the first is what the others are compared with."""
    fixed, names = dict(client._FIXED), list(arms)  # noqa: SLF001 - what every session starts with
    spent = {name: [0.0, 0.0] for name in names}
    for number in range(ROUNDS):
        start = number * GROUP % len(player.episodes)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            began, cpu_s = time.perf_counter(), cpu_seconds(player.server)
            with mock.patch.object(client, "_FIXED", fixed | arms[name]):
                for episode in player.episodes[start : start + GROUP]:
                    player.side.play(episode)
            spent[name][0] += time.perf_counter() - began
            spent[name][1] += cpu_seconds(player.server) - cpu_s
    wall_s, cpu_s = spent[names[0]]
    for name, (wall, cpu) in spent.items():
        say(f"{name}: ratio {wall / wall_s:.3f}, by CPU {cpu / cpu_s:.3f}")


def main(episodes: int = 300, settings: Sequence[str] = ()) -> None:
    """Print all of it."""
    home = Path(os.environ.get("JAVA_HOME", ""))
    has_recorder = (home / "bin" / "jfr").is_file()
    java, drawn = find_java(str(home) if has_recorder else ""), choose_episodes()
    jars = provide_jars(CACHE, java)
    arms = {"none": {}} | {text: dict(pair.split("=", 1) for pair in text.split(",")) for text in settings}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-delta-")))
        build_fixtures(java, jars, folder / "builder", drawn)
        options = ServerOptions(class_archive=provide_archive(CACHE, java, jars))
        if has_recorder:
            # A confined server has process numbers of its own, by which nobody outside can ask it for a recording.
            stack.enter_context(unconfined())
        server = stack.enter_context(started(java, jars, folder / "server", options))
        say(f"Java {java.version} ({java.executable})")
        player = Player("ours", server, Ours(server), drawn, BEGAN)
        play_hundreds(player, episodes)
        if has_recorder:
            record(server, home, player, folder)
        if settings:
            compare(player, arms)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:2]), settings=sys.argv[2:])
