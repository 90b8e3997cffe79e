"""OPERATIONS.md and README.md keep their word: every command is typed as it stands there, every exit code produced."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from experiment.journal.reader import read_journal
from tests.doubles.damage import append, cut_records, flip_bit, one, remove
from tests.doubles.forging import edited, rewrite_chain
from tests.doubles.stand_in_run import draft_script, one_arm_recipe
from tests.doubles.typed_workspace import BEGIN, RESUME, RUN_DIR, Done, Situations, Typed

ROOT = Path(__file__).resolve().parents[2]
MANUALS = ("OPERATIONS.md", "README.md")
PROGRAMS = "python|make|audit|run|status|git|apt|cp|rsync|tar|du|df|dmesg|rm|kill|b3sum"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the manuals' commands are for bash")


def commands(name: str) -> list[str]:
    """The commands of a manual: lines of console blocks without their comments, and whole commands within the text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    typed = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(rf"`((?:{PROGRAMS})(?: [^`]+)?)`", prose)
    return [re.sub(r"\s+#.*", "", command) for command in typed] + [each for each in inline if each not in NAMES]


NAMES = {"audit", "run", "status", "make", "python", "tar", "b3sum", "git checkout", "cp -a", "rsync -a"}
"""Programs and commands that are only named."""

UNTYPED = {
    "python3 -m venv .venv-audit": "takes seconds, and `.ci/run` does it",
    ".venv-audit/bin/python -m pip install --require-hashes -r requirements/base.lock": "`.ci/run` does it",
    "apt install python3 python3-venv": "changes the machine",
    "git status": "there is no repository in the workspace",
    "git checkout FILE": "there is no repository in the workspace",
    "kill <pid>": "is sent below, as a signal",
    "kill -9": "is sent in `test_run_kill.py`",
    "dmesg": "may be forbidden",
}


class Trial(NamedTuple):
    """Where a command is typed, and how it ends there."""

    situation: str
    code: int
    shows: str = ""


TRIALS: dict[str, Trial] = {
    "python -m experiment baseline recipes/mine.toml": Trial("clone", 0, "baseline: runs/baselines/"),
    "python -m experiment baseline recipes/quickstart.toml": Trial("clone", 0, "baseline: runs/baselines/"),
    "python -m experiment prepare recipes/mine.toml --output plans/mine": Trial("based", 0, "plan: plans/mine/plan"),
    "python -m experiment prepare recipes/quickstart.toml --output plans/mine": Trial("based", 0, "plan: plans/mine"),
    "python -m experiment doctor recipes/mine.toml": Trial("based", 0, "ok   baseline"),
    BEGIN: Trial("planned", 0, "run: runs/mine"),
    f"nohup {BEGIN} > mine.log 2>&1 &": Trial("planned", 0),
    "run --resume": Trial("stopped", 0, "run: runs/mine"),
    RESUME: Trial("stopped", 0, "run: runs/mine"),
    "python -m experiment status RUN": Trial("stopped", 0, "train"),
    "tail -f RUN/logs/*": Trial("stopped", 124),
    "du -sh .venv RUN/*": Trial("stopped", 0, "checkpoints"),
    "df -h RUN": Trial("stopped", 0),
    "python -m experiment audit RUN": Trial("finished", 0, "VERDICT: closed and verified"),
    "python -m experiment audit runs/mine": Trial("finished", 0, "VERDICT: closed and verified"),
    ".venv-audit/bin/python -m experiment audit RUN": Trial("finished", 0, "VERDICT: closed and verified"),
    'audit RUN --known-head "<run> <size> b3:<hash>"': Trial("finished", 0, "known head: mine"),
    "cp -a RUN RUN-damaged && python -m experiment audit RUN-damaged": Trial("damaged", 4, "finding: T-SEAL"),
    "cp RUN/samples/form.toml form.toml": Trial("finished", 0),
    'python -m experiment record-inspection RUN --form form.toml --reviewer "Your Name"': Trial(
        "read", 0, "inspection: mine"
    ),
    "python -m experiment report runs/mine --output runs/mine-report": Trial("finished", 0, "report: runs/mine-report"),
    "python -m experiment COMMAND --help": Trial("clone", 0, "Usage:"),
    "python -m experiment audit --help": Trial("clone", 0, "--known-head"),
    "status RUN": Trial("finished", 0, "finished"),
}


@pytest.fixture(scope="module")
def situations(tmp_path_factory: pytest.TempPathFactory) -> Situations:
    drafted = draft_script(tmp_path_factory.mktemp("script"), one_arm_recipe())
    return Situations(tmp_path_factory.mktemp("situations"), drafted)


def typed(command: str, workspace: Typed) -> str:
    """A command with the reader's own names filled in."""
    if command.split(maxsplit=1)[0] in {"audit", "run", "status"}:
        command = f"python -m experiment {command}"
    if "<hash>" in command:
        view = read_journal(workspace.run_dir)
        command = command.replace("<run> <size> b3:<hash>", f"{view.run} {len(view.entries)} b3:{view.head}")
    if command.startswith("tail -f"):
        command = f"timeout 1 {command}"
    if command.endswith(" &"):
        command += " wait $!"
    return re.sub(r"\bRUN\b", str(RUN_DIR), command).replace("COMMAND", "run")


def _is_make(command: str) -> bool:
    return re.search(r"^(rm -rf \.venv && )?make\b", command) is not None


def test_no_command_of_the_manuals_is_left_out() -> None:
    found = {command for name in MANUALS for command in commands(name) if not _is_make(command)}
    assert found - TRIALS.keys() - UNTYPED.keys() == set()
    assert (TRIALS.keys() | UNTYPED.keys()) - found == set()


@pytest.mark.parametrize("command", TRIALS)
def test_a_command_of_the_manuals_does_what_they_say(situations: Situations, tmp_path: Path, command: str) -> None:
    trial = TRIALS[command]
    workspace = situations.copy(trial.situation, tmp_path)
    done = workspace.type_(typed(command, workspace))
    assert done.code == trial.code, done
    assert trial.shows in done.out
    if "mine.log" in command:
        heads = re.findall(r"^ *head:? mine \d+ b3:[0-9a-f]{64}$", (tmp_path / "mine.log").read_text(), re.MULTILINE)
        assert len(heads) == 4  # two checkpoints, the selection, the end


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_every_target_of_the_manuals_is_there(situations: Situations, tmp_path: Path) -> None:
    workspace = situations.copy("clone", tmp_path)
    for command in sorted({command for name in MANUALS for command in commands(name) if _is_make(command)}):
        dry = re.sub(r"\bmake\b", "make -n", command).replace("/path/to/python3.12", "python3")
        done = workspace.type_(dry)
        # A phony target without a rule is no error to make.
        assert done.code == 0 and "Nothing to be done" not in done.out, (command, done)
    assert workspace.type_("make -n nothing").code == 2


AUDIT = "python -m experiment audit runs/mine"


class Step(NamedTuple):
    """What the manual says to type after an exit code, and how that ends."""

    command: str
    code: int
    shows: str = ""
    before: Callable[[Path], object] = lambda _: None
    """What is done in the workspace before."""


class Ending(NamedTuple):
    """A `run` that ends early, or in another way than with a verdict."""

    code: int
    situation: str
    says: str
    """What the line above the remedy has to hold."""
    command: str = RESUME
    fault: str = ""
    change: Callable[[Path], object] = lambda _: None
    """What is done in the workspace before."""
    then: tuple[Step, ...] = ()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def flip(pattern: str) -> Callable[[Path], object]:
    return lambda folder: flip_bit(one(folder, pattern), -1)


def cut(folder: Path) -> None:
    cut_records(3)(folder / RUN_DIR)


LOCK_BACK = write("lock.txt", "lock\n")
ENDINGS: dict[str, Ending] = {
    "a fault of the program": Ending(
        1, "planned", "ZeroDivisionError", BEGIN, "bug", then=(Step(AUDIT, 3), Step(RESUME, 0))
    ),
    "a run that is there already": Ending(2, "stopped", "there is a run already", BEGIN),
    "nothing to resume": Ending(2, "planned", "there is nothing to resume", then=(Step(BEGIN, 0),)),
    "a finished run resumed": Ending(2, "finished", "its journal is closed", then=(Step(AUDIT, 0),)),
    "a run that did not qualify resumed": Ending(2, "unqualified", "its journal is closed"),
    "no such plan": Ending(2, "planned", "plans/none.json", "python -m experiment run --plan plans/none.json"),
    "an impossible name": Ending(2, "planned", "'Mine' cannot be the name", BEGIN.replace("runs/mine", "runs/Mine")),
    "a changed input": Ending(
        3,
        "planned",
        "lock.txt: the lock changed",
        BEGIN,
        change=append(b"x", "lock.txt"),
        then=(Step(BEGIN, 0, before=LOCK_BACK),),
    ),
    "a changed input at a resume": Ending(
        3,
        "stopped",
        "lock.txt: the lock changed",
        change=append(b"x", "lock.txt"),
        then=(Step(RESUME, 0, before=LOCK_BACK),),
    ),
    "a removed input": Ending(3, "planned", "lock.txt: the lock cannot be read", BEGIN, change=remove("lock.txt")),
    "a changed plan": Ending(3, "planned", "do not fit plan.seal", BEGIN, change=flip("plans/mine/plan.json")),
    "a changed seal": Ending(
        3, "planned", "do not fit plan.seal", BEGIN, change=append(b"\xff", "plans/mine/plan.seal")
    ),
    "a second run of a plan": Ending(
        3, "stopped", "the plan's one run is runs/mine", f"{BEGIN}-too", then=(Step(RESUME, 0),)
    ),
    "a changed record": Ending(4, "stopped", "J-", change=flip("runs/mine/journal/*"), then=(Step(AUDIT, 4, "J-"),)),
    "a cut journal": Ending(4, "stopped", "J-WATERMARK", change=cut, then=(Step(AUDIT, 4, "J-WATERMARK"),)),
    "a changed checkpoint": Ending(
        4,
        "damaged",
        "T-SEAL",
        then=(
            Step(AUDIT, 4, "adapter.bin"),
            Step(RESUME, 0, before=write("runs/mine/checkpoints/echo/step-000002/adapter.bin", "echo 2")),
        ),
    ),
    "branches that differ": Ending(
        5,
        "planned",
        "echo",
        BEGIN,
        "lie@qualify/echo/resumed",
        then=(Step(AUDIT, 0, "closed: qualification_failed"), Step(RESUME, 2)),
    ),
    "a step that differs": Ending(
        5,
        "planned",
        "step 1: metrics differ",
        BEGIN,
        "differ@train/echo/1",
        then=(Step(RESUME, 0), Step(AUDIT, 0, "sessions ended early: QualificationError")),
    ),
    "a spent budget": Ending(
        6,
        "poor",
        "hours are spent",
        BEGIN,
        then=(Step(AUDIT, 3), Step("python -m experiment report runs/mine --output page", 0), Step(RESUME, 6)),
    ),
    "a broken worker": Ending(
        70,
        "planned",
        "ended with code 1; see runs/mine/logs/",
        BEGIN,
        "exit@train/echo/3",
        then=(Step(AUDIT, 3), Step(RESUME, 0)),
    ),
    "a disagreement": Ending(70, "planned", "sampled ids and mask disagree", BEGIN, "report@train/echo/2"),
    "a stop rule": Ending(
        70, "planned", "1 of 6 rollouts are corrupted", BEGIN, "corrupt@train/echo/3", then=(Step(RESUME, 70),)
    ),
}
"""A refusing file system (74), two processes at once (75) and a stop (130) need processes of their own; see below."""


def check_told(done: Done, says: str) -> None:
    """Standard error holds what happened, and one sentence that says what to do."""
    told = done.err.splitlines()
    assert says in told[-2], done
    assert told[-1].startswith("Remedy: ") and done.remedy.endswith(".") and ". " not in done.remedy, done


@pytest.mark.parametrize("name", ENDINGS)
def test_a_run_that_ends_early_has_its_code_and_what_to_type_next_works(
    situations: Situations, tmp_path: Path, name: str
) -> None:
    ending = ENDINGS[name]
    workspace = situations.copy(ending.situation, tmp_path)
    ending.change(tmp_path)
    done = workspace.do(ending.command, fault=ending.fault)
    assert done.code == ending.code, done
    check_told(done, ending.says)
    for step in ending.then:
        step.before(tmp_path)
        done = workspace.do(step.command)
        assert (done.code, step.shows in done.out) == (step.code, True), (step, done)


def test_every_exit_code_of_the_manual_is_produced_here() -> None:
    manual = (ROOT / "OPERATIONS.md").read_text(encoding="utf-8")
    sections = {int(code) for code in re.findall(r"^### (\d+) ", manual, flags=re.MULTILINE)}
    assert sections == {0, 74, 75, 130} | {ending.code for ending in ENDINGS.values()}


def test_a_refused_write_is_told_and_resumed_once_there_is_space(situations: Situations, tmp_path: Path) -> None:
    workspace = situations.copy("planned", tmp_path)
    done = workspace.type_(f"ulimit -f 24; {BEGIN}")
    assert done.code == 74
    check_told(done, "short write")
    assert [workspace.do(command).code for command in (AUDIT, RESUME, AUDIT)] == [3, 0, 0]


def test_a_second_process_is_told_who_works_on_the_run(situations: Situations, tmp_path: Path) -> None:
    workspace = situations.copy("stopped", tmp_path)
    first = workspace.start(RESUME, pace_s=30)
    try:
        second = workspace.do(RESUME)
        assert second.code == 75
        check_told(second, f"in use by pid {first.pid} on ")
    finally:
        first.kill()
        first.communicate()
    assert workspace.do(RESUME).code == 0


@pytest.mark.parametrize("asked_by", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_asked_to_stop_can_be_resumed(
    situations: Situations, tmp_path: Path, asked_by: signal.Signals
) -> None:
    workspace = situations.copy("stopped", tmp_path)
    running = workspace.start(RESUME, pace_s=0.5)
    running.send_signal(asked_by)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    check_told(Done(130, "", err), "asked to stop")
    assert workspace.do(RESUME).code == 0


def forge(folder: Path) -> None:
    def solve_one_more(body: dict[str, list[dict[str, int]]]) -> None:
        body["comparisons"][0]["wins"] += 1

    rewrite_chain(folder / RUN_DIR, edited("stats.result", solve_one_more))


AUDITS: dict[int, tuple[str, Callable[[Path], object], str]] = {
    0: ("finished", lambda _: None, ""),
    3: ("stopped", lambda _: None, ""),
    4: ("finished", flip("runs/mine/evidence/final/*/*"), ""),
    5: ("finished", append(b"x", "lock.txt"), ""),
    6: ("finished", lambda _: None, f' --known-head "mine 3 b3:{"0" * 64}"'),
    7: ("finished", remove("runs/mine/evidence/dev/*/*"), ""),
    8: ("finished", forge, ""),
}


@pytest.mark.parametrize("code", AUDITS)
def test_an_audit_has_its_code_and_says_what_to_do(situations: Situations, tmp_path: Path, code: int) -> None:
    situation, change, words = AUDITS[code]
    workspace = situations.copy(situation, tmp_path)
    change(tmp_path)
    done = workspace.do(AUDIT + words)
    assert done.code == code, done
    assert done.out.splitlines()[-1].startswith("VERDICT: ")
    # Beside the verdict there is one sentence, and none where there is nothing to do.
    assert done.err.count("\n") == (code != 0) and bool(done.remedy) == (code != 0), done


def test_an_audit_of_nothing_is_a_usage_error(situations: Situations, tmp_path: Path) -> None:
    done = situations.copy("clone", tmp_path).do(AUDIT)
    assert done.code == 2
    check_told(done, "runs/mine: no such folder")


@pytest.mark.parametrize("copy", ["cp -a runs/mine ../there", "tar -C runs -c mine | tar -C ../there -x"])
def test_a_copy_of_a_finished_run_audits_anywhere(situations: Situations, tmp_path: Path, copy: str) -> None:
    there = tmp_path / "there"
    there.mkdir()
    workspace = situations.copy("finished", tmp_path / "here")
    assert workspace.type_(copy).code == 0
    done = Typed(there, workspace.script).do("python -m experiment audit mine")
    assert done.code == 0, done
    assert "input lock: lock.txt not checked (not at hand)" in done.out


def test_links_in_a_copy_are_refused(situations: Situations, tmp_path: Path) -> None:
    workspace = situations.copy("finished", tmp_path)
    done = workspace.type_("cp -as $PWD/runs/mine runs/linked; python -m experiment audit runs/linked")
    assert done.code == 4


def test_what_may_be_deleted_after_the_run_is_not_missed(situations: Situations, tmp_path: Path) -> None:
    workspace = situations.copy("finished", tmp_path)
    for name in ("recovery", "logs", "work"):
        shutil.rmtree(workspace.run_dir / name, ignore_errors=True)
    assert workspace.do(AUDIT).code == 0
    shutil.rmtree(workspace.run_dir / "qualification")
    assert workspace.do(AUDIT).code == 7


def test_a_run_that_was_killed_before_its_journal_began_is_started_again(
    situations: Situations, tmp_path: Path
) -> None:
    workspace = situations.copy("stopped", tmp_path)
    shutil.rmtree(workspace.run_dir)
    assert [workspace.do(command).code for command in (RESUME, BEGIN)] == [2, 0]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_an_environment_that_was_moved_is_built_anew(situations: Situations, tmp_path: Path) -> None:
    workspace = situations.copy("clone", tmp_path)
    place, stamp = tmp_path / ".venv/place", tmp_path / ".venv/train.stamp"
    place.write_text(str(tmp_path))
    stamp.touch()
    assert workspace.type_("make help").code == 0 and stamp.exists()
    place.write_text(str(tmp_path.parent))
    assert workspace.type_("make help").code == 0 and not stamp.exists()
