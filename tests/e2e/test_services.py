"""The shipped small recipes on their real services, whole; then again, with the service killed in every stage."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.environments.base import NativeCall, ToolResult
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.gym_python import GymServers, find_gym_python
from experiment.environments.nemo_gym.parity import AgentReplay
from experiment.environments.nemo_gym.replay_policy import ReplayPolicy
from experiment.environments.nemo_gym.service import GymService
from experiment.environments.nemo_gym.tasks import GermanTasks
from experiment.errors import ServiceError, StoppedError, UsageError
from experiment.records.plan import Plan
from experiment.records.rollout import Rollout
from experiment.sealing.canonical import decode_record
from tests.doubles.fresh_clone import ROOT, FreshClone
from tests.doubles.run_digests import compare_runs
from tests.fault.kill_moments import Tail

pytestmark = [pytest.mark.service, pytest.mark.timeout(3000)]


@dataclass(frozen=True)
class Blow:
    """What happens to one session."""

    kind: str
    count: int
    """It falls after so many new records of the kind."""
    signal: signal.Signals
    hits_service: bool
    """Otherwise the driver, as soon as it has a service."""
    code: int
    """How the driver ends."""


BLOWS = (
    Blow("inputs.verified", 1, signal.SIGTERM, hits_service=False, code=StoppedError.exit_code),
    Blow("qual.branch", 1, signal.SIGKILL, hits_service=True, code=ServiceError.exit_code),
    Blow("train.step", 2, signal.SIGSTOP, hits_service=True, code=ServiceError.exit_code),
    Blow("train.step", 2, signal.SIGKILL, hits_service=False, code=-signal.SIGKILL),
    Blow("dev.result", 1, signal.SIGKILL, hits_service=True, code=ServiceError.exit_code),
)
"""A stop while the service starts, services that die or hang, and a driver that dies and takes its service along."""
PATIENCE_S = 1200.0


@dataclass
class Small:
    """A workspace with the plan and the finished run of one small recipe."""

    clone: FreshClone
    recipe: str
    mark: str
    """What the command line of the service's process holds."""
    settings: tuple[str, ...]
    gym: tuple[str, ...]

    def type_in(self, *words: str) -> None:
        """Type a command that has to go well."""
        done = self.clone.experiment(*words)
        assert done.code == 0, done.out[-3000:] + done.err[-3000:]

    def prepare(self, name: str) -> None:
        """Freeze a plan of the recipe."""
        self.type_in("prepare", self.recipe, "--output", f"plans/{name}", *self.settings, *self.gym)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Begin or go on with a run."""
        command = [sys.executable, "-m", "experiment", "run", "--plan", f"plans/{name}/plan.json", *words, *self.gym]
        with self.log_path(name).open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.clone.folder,
                env=self.clone.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log_path(self, name: str) -> Path:
        """What the sessions of a run have said."""
        return self.clone.folder / f"{name}.log"


@pytest.fixture(scope="module", params=["delta_world_small", "german_gym_small"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    clone = FreshClone.make(tmp_path_factory.mktemp("workspace"))
    if request.param == "delta_world_small":
        if importlib.util.find_spec("pyspark") is None:
            pytest.skip("pyspark is not installed (extra `delta`)")
        settings = ("--set", f"world.cache_dir={ROOT / '.cache' / 'delta'}")
        made = Small(clone, f"recipes/{request.param}.toml", "world.Server", settings, ())
    else:
        try:
            gym = ("--gym-python", str(find_gym_python(ROOT)))
        except UsageError as error:
            pytest.skip(f"{error} ({error.remedy})")
        made = Small(clone, f"recipes/{request.param}.toml", "nemo_gym/server/host.py", (), gym)
    made.type_in("baseline", made.recipe, *made.settings, *made.gym)
    made.prepare("whole")
    process = made.start("whole")
    assert process.wait(PATIENCE_S) == 0, made.log_path("whole").read_text()[-3000:]
    return made


def test_a_run_on_a_real_service_is_closed_and_verified(small: Small) -> None:
    run_dir = small.clone.folder / "runs" / "whole"
    result = audit_run(run_dir)
    assert result.exit_code == 0, result
    assert gone(str(small.clone.folder))


def test_the_same_seeds_in_process_give_the_same_evidence(small: Small) -> None:
    if not small.gym:
        pytest.skip("no world in process plays the same tasks")
    german = 'world={name="german_tools", families=["direct", "one_step", "two_step"]}'
    small.type_in("prepare", small.recipe, "--output", "plans/inside", "--set", german)
    process = small.start("inside")
    assert process.wait(PATIENCE_S) == 0, small.log_path("inside").read_text()[-3000:]
    compared = compare_runs(small.clone.folder / "runs" / "whole", small.clone.folder / "runs" / "inside")
    assert compared.differing == ()
    assert compared.total > 100


def test_a_run_whose_service_breaks_in_every_way_ends_with_the_same_digests(small: Small) -> None:
    small.prepare("broken")
    run_dir = small.clone.folder / "runs" / "broken"
    resume: tuple[str, ...] = ()
    for blow in BLOWS:
        process = small.start("broken", *resume)
        try:
            struck = strike(process, Tail(run_dir / "journal"), small.mark, blow)
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        said = f"{blow}\n{small.log_path('broken').read_text()[-3000:]}"
        assert struck > 0, said
        assert code == blow.code, said
        assert blow.code != ServiceError.exit_code or ServiceError.remedy in said
        assert audit_run(run_dir).exit_code == 3, said
        assert gone(str(small.clone.folder)), said
        resume = ("--resume",)
    process = small.start("broken", *resume)
    assert process.wait(PATIENCE_S) == 0, small.log_path("broken").read_text()[-3000:]
    compared = compare_runs(small.clone.folder / "runs" / "whole", run_dir)
    assert compared.differing == ()
    assert compared.total > 100
    assert audit_run(run_dir).exit_code == 0
    assert gone(str(small.clone.folder))


def test_rollouts_of_a_finished_run_are_the_same_through_gyms_own_agent(small: Small, tmp_path: Path) -> None:
    if not small.gym:
        pytest.skip("not a world of NeMo Gym")
    plan = decode_record(Plan, (small.clone.folder / "plans" / "whole" / "plan.json").read_bytes())
    episodes = {each.id: each for each in plan.final}
    tasks, policy = GermanTasks(GermanTools()), ReplayPolicy.start()
    service = GymService.start(Path(small.gym[1]), GymServers(), tmp_path / "gym", tasks=tasks, policy=policy.place)
    try:
        replay = AgentReplay(service.address(), tasks, policy)
        compared = 0
        for path in sorted((small.clone.folder / "runs" / "whole" / "evidence" / "final").glob("*/agent-42.jsonl")):
            for line in path.read_bytes().splitlines():
                rollout = decode_record(Rollout, line)
                assert replay.compare(episodes[rollout.episode], rollout, executed(rollout)) == ()
                compared += 1
        replay.close()
    finally:
        service.stop()
        policy.stop()
    assert compared == 3 * len(plan.final)


def executed(rollout: Rollout) -> list[NativeCall]:
    """The calls that reached the world, from the evidence; tools of this world answer with less than is ever cut."""
    return [
        NativeCall(
            call.name,
            tuple(sorted(json.loads(call.arguments_json).items())),
            ToolResult(call.observation, call.status == "world_error"),
        )
        for turn in rollout.turns
        for call in turn.calls
        if call.status in {"delivered", "world_error", "undelivered"}
    ]


def strike(driver: subprocess.Popen[bytes], tail: Tail, mark: str, blow: Blow) -> int:
    """Strike once there are so many new records, services until the driver gives up; returns how often.

    A service that breaks between two workers is started anew for the second, and nothing is lost; so that breaks too.
    """
    before, struck, stopped = tail.read().count(blow.kind), 0, set[int]()
    while driver.poll() is None:
        if tail.read().count(blow.kind) >= before + blow.count:
            services = [each for each in processes_with(mark) if is_below(each, driver)]
            targets = services if blow.hits_service else [driver.pid] * bool(services and not struck)
            for pid in targets:
                if pid not in stopped:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, blow.signal)
                        stopped.add(pid)
                        struck += 1
        time.sleep(0.02)
    return struck


def gone(mark: str) -> bool:
    """Whether nothing that names a folder lives on; what dies with its owner may take a moment."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not list(processes_with(mark)):
            return True
        time.sleep(0.1)
    return False


def processes_with(mark: str) -> Iterator[int]:
    """Processes whose command line holds a text, our own aside."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in command and int(place.name) != os.getpid():
            yield int(place.name)


def is_below(pid: int, driver: subprocess.Popen[bytes]) -> bool:
    """Whether a process descends from the driver."""
    while pid > 1:
        if pid == driver.pid:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
