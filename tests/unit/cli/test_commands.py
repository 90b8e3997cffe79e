"""Commands against real files: what they print, and how they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiment.cli.audit import REMEDIES
from experiment.errors import StoppedError
from experiment.records.recipe import Arm
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run
from tests.doubles.stand_in_run import Workspace, draft_script, drive, small_workspace, stand_in_recipe
from tests.unit.cli.conftest import Call

ONE_ARM = stand_in_recipe(
    arms=(Arm(name="grpo", algorithm="grpo"),),
    assessment=small_recipe().assessment.model_copy(update={"seeds": (11,), "retention_seeds": (21,)}),
)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    story = draft_run(tmp_path_factory.mktemp("closed"), recipe=small_recipe(steps=2, final=3))
    story.write()
    return story


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), ONE_ARM)


@pytest.fixture
def workspace(tmp_path: Path, script: SmallRun, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The current folder, with a plan that nobody has claimed."""
    made = small_workspace(tmp_path, script)
    monkeypatch.chdir(tmp_path)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def test_an_audit_of_a_closed_run_ends_with_its_verdict(
    closed: SmallRun, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("audit", str(closed.run_dir)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "VERDICT: closed and verified"


def test_an_audit_of_a_damaged_run_ends_with_the_findings_code(
    closed: SmallRun, call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / closed.run_dir.name
    shutil.copytree(closed.run_dir, run_dir)
    evidence = next(run_dir.glob("evidence/final/*/agent-11.jsonl"))
    evidence.write_bytes(evidence.read_bytes() + b"\n")
    assert call("audit", str(run_dir)) == 4
    shown, told = capsys.readouterr()
    assert "A-DIGEST" in shown and evidence.relative_to(run_dir).as_posix() in shown
    assert told == f"Remedy: {REMEDIES[4]}\n"


def test_an_audit_says_what_the_manual_says_to_do(repository: Path) -> None:
    manual = (repository / "OPERATIONS.md").read_text(encoding="utf-8")
    section = manual.partition("## Exit codes of `audit`")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    said = {int(code): f"{advice[0].upper()}{advice[1:]}." for code, _, advice in rows if code.isdigit()}
    assert {code: said[code] for code in said if code > 2} == REMEDIES


def test_an_audit_as_json_is_json_alone(closed: SmallRun, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", str(closed.run_dir), "--json", "--level", "bytes") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == []


def test_an_unknown_level_is_a_usage_error(closed: SmallRun, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", str(closed.run_dir), "--level", "deep") == 2
    assert "--level deep: expected one of bytes, protocol, recompute" in capsys.readouterr().err


def test_an_audit_of_nothing_is_a_usage_error(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", "runs/none") == 2
    assert "runs/none: no such folder" in capsys.readouterr().err


def test_a_report_of_nothing_is_a_usage_error(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", str(tmp_path), "--output", str(tmp_path / "page")) == 2
    assert "no run with a journal" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_the_status_of_a_closed_run_says_that_it_is_finished(
    closed: SmallRun, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("status", str(closed.run_dir)) == 0
    assert "finished" in capsys.readouterr().out


def test_run_without_words_goes_on_with_the_only_interrupted_run(
    workspace: Workspace, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(qualification_only=True, run_dir=Path("elsewhere/mine"))
    monkeypatch.setattr("experiment.pipeline.run.train", _stop)
    assert call("run", "--resume") == 130
    assert "the run was asked to stop" in capsys.readouterr().err
    assert sorted(path.name for path in Path("elsewhere/mine/journal").iterdir()) == ["000000.jsonl", "000001.jsonl"]


def _stop(_: object) -> None:
    message = "the run was asked to stop"
    raise StoppedError(message)


def test_run_without_words_lists_the_choices(
    workspace: Workspace, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("plans/small", "plans/other")
    assert call("run") == 2
    err = capsys.readouterr().err
    assert "2 new plans (plans/other/plan.json, plans/small/plan.json)" in err
    assert "--plan" in err


def test_run_without_words_and_plans_says_how_to_make_one(
    workspace: Workspace, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("plans")
    assert call("run") == 2
    assert "python -m experiment prepare" in capsys.readouterr().err


def test_run_takes_the_only_new_plan_and_its_name(
    workspace: Workspace, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.pipeline.run.qualify", _stop)
    assert call("run", "--qualification-only") == 130
    assert Path("runs/small/journal").is_dir()


def test_paths_with_brackets_are_printed_as_they_are(
    call: Call, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("recipes/quickstart.toml", "requirements/train.lock"):
        Path(name).parent.mkdir()
        shutil.copyfile(repository / name, name)
    baseline = Path("[bold]model[/]")
    baseline.mkdir(parents=True)
    shutil.copyfile(repository / "experiment/training/chat_template.jinja", baseline / "chat_template.jinja")
    folder = Path("[red]plans/one")
    words = ["prepare", "recipes/quickstart.toml", "--output", str(folder), "--baseline", str(baseline)]
    for change in ("episodes.train.count=4", "episodes.dev.count=3", "episodes.final.count=3"):
        words += ["--set", change]
    assert call(*words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "plan: [red]plans/one/plan.json"
    assert "Smallest paired difference" in out
    assert call(*words) == 2
    assert "[red]plans/one: not empty" in capsys.readouterr().err


def test_inputs_given_by_path_are_those_of_the_plan(
    call: Call, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("recipes/quickstart.toml", "requirements/train.lock"):
        Path(name).parent.mkdir()
        shutil.copyfile(repository / name, name)
    for folder in ("model", "tokenizer"):
        Path(folder).mkdir()
        shutil.copyfile(repository / "experiment/training/chat_template.jinja", f"{folder}/chat_template.jinja")
    for number, name in enumerate(("dev.jsonl", "mgsm.jsonl")):
        row = f'{{"question":"Wie viel ist {number + 2} und 1?","answer_number":{number + 3}}}\n'
        Path(name).write_text(row, encoding="utf-8")
    words = "prepare --output plans/one --baseline model --tokenizer tokenizer --math-dev dev.jsonl --mgsm mgsm.jsonl"
    assert call(*words.split()) == 0
    plan = json.loads(Path("plans/one/plan.json").read_bytes())
    assert {each["role"]: each["path"] for each in plan["inputs"] if each["role"] != "sources"} == {
        "recipe": "recipes/quickstart.toml",
        "lock": "requirements/train.lock",
        "baseline": "model",
        "tokenizer": "tokenizer",
        "retention_dev": "dev.jsonl",
        "retention_final": "mgsm.jsonl",
    }
    assert [each["id"] for each in plan["retention_final"]] == ["retention-final-0000"]


def test_a_new_recipe_is_written_once(
    call: Call, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = str(repository / "recipes/quickstart.toml")
    assert call("new", "mine", "--from", source) == 0
    assert capsys.readouterr().out == "recipes/mine.toml\n"
    assert call("new", "mine", "--from", source) == 2
    assert "recipes/mine.toml: exists already" in capsys.readouterr().err
