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
from experiment.errors import ServiceError, UsageError
from experiment.records.plan import Plan
from experiment.records.rollout import Rollout
from experiment.sealing.canonical import decode_record
from tests.doubles.fresh_clone import ROOT, FreshClone
from tests.doubles.run_digests import compare_runs
from tests.fault.kill_moments import Tail

pytestmark = [pytest.mark.service, pytest.mark.timeout(3000)]

MOMENTS = {"qual.branch": 2, "train.step": 3, "dev.result": 2}
"""After so many records of a type the service is killed, once each."""
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
    assert list(processes_with(str(small.clone.folder))) == []


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


def test_a_killed_service_is_a_typed_fault_and_a_resume_ends_with_the_same_digests(small: Small) -> None:
    small.prepare("killed")
    run_dir = small.clone.folder / "runs" / "killed"
    resume: tuple[str, ...] = ()
    for kind, count in MOMENTS.items():
        process = small.start("killed", *resume)
        try:
            killed = kill_services(process, Tail(run_dir / "journal"), small.mark, kind, count)
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        said = small.log_path("killed").read_text()[-3000:]
        assert killed > 0, said
        assert code == ServiceError.exit_code, said
        assert ServiceError.remedy in said
        assert audit_run(run_dir).exit_code == 3
        resume = ("--resume",)
    process = small.start("killed", *resume)
    assert process.wait(PATIENCE_S) == 0, small.log_path("killed").read_text()[-3000:]
    compared = compare_runs(small.clone.folder / "runs" / "whole", run_dir)
    assert compared.differing == ()
    assert compared.total > 100
    assert audit_run(run_dir).exit_code == 0
    assert list(processes_with(str(small.clone.folder))) == []


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


def kill_services(driver: subprocess.Popen[bytes], tail: Tail, mark: str, kind: str, count: int) -> int:
    """Kill the driver's services once there are so many records, until it gives up; returns how many were killed.

    A service that dies between two workers is started anew for the second, and nothing is lost; so that dies as well.
    """
    killed = 0
    while driver.poll() is None:
        if tail.read().count(kind) >= count:
            for pid in [each for each in processes_with(mark) if is_below(each, driver)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        time.sleep(0.02)
    return killed


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
