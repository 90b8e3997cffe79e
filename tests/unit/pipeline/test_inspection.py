"""Samples leave the run by themselves; a named reviewer's findings come back afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiment.audit import audit_run
from experiment.audit.findings import AuditReport
from experiment.errors import JournalError, UsageError
from experiment.pipeline.inspection import record_inspection
from experiment.records.entry import SamplesExported
from experiment.records.inspection import Sample
from experiment.sealing.canonical import decode_record
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun
from tests.doubles.stand_in_run import RUN_DIR, Workspace, draft_script, drive, small_workspace, stand_in_recipe

RECIPE = stand_in_recipe(
    assessment=small_recipe().assessment.model_copy(update={"seeds": (11,), "retention_seeds": (21,), "inspected": 2}),
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return draft_script(tmp_path_factory.mktemp("script"), RECIPE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, script: SmallRun) -> Workspace:
    workspace = small_workspace(tmp_path_factory.mktemp("finished"), script)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.folder)
        for name, value in workspace.environment().items():
            patch.setenv(name, value)
        drive()
    return workspace


@pytest.fixture
def run_dir(finished: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished run, in a folder where nothing else is at hand."""
    shutil.copytree(finished.run_dir, tmp_path / RUN_DIR)
    monkeypatch.chdir(tmp_path)
    return RUN_DIR


def filled(run_dir: Path, **answers: str) -> Path:
    """A filled-in copy of the run's form."""
    text = (run_dir / "samples/form.toml").read_text()
    for key, value in {"language": "ok", "format": "ok", **answers}.items():
        text = text.replace(f'{key} = ""', f'{key} = "{value}"')
    form = Path("form.toml")
    form.write_text(text)
    return form


def fact(report: AuditReport, key: str) -> str:
    return next(value for name, value in report.facts if name == key)


def test_a_run_exports_the_first_episodes_of_both_suites_with_every_policy(finished: Workspace) -> None:
    lines = (finished.run_dir / "samples/samples.jsonl").read_bytes().splitlines()
    samples = [decode_record(Sample, line) for line in lines]
    plan = finished.plan
    expected = [each.id for each in (*plan.final[:2], *plan.retention_final[:2])]
    assert [each.episode for each in samples] == expected
    policies = [answer.policy for answer in samples[0].answers]
    assert [each.partition("@")[0] for each in policies] == ["baseline", "grpo", "echo"]
    assert all(answer.turns for each in samples for answer in each.answers)
    page = (finished.run_dir / "samples/samples.md").read_text()
    assert all(each in page for each in (*expected, *policies))
    exported = [entry for entry in finished.view().entries if isinstance(entry.body, SamplesExported)]
    assert len(exported) == 1
    assert [each.path for each in exported[0].artifacts] == [
        f"samples/{n}" for n in ("form.toml", "samples.jsonl", "samples.md")
    ]


def test_an_inspection_names_its_reviewer_and_the_audit_says_so(run_dir: Path) -> None:
    assert fact(audit_run(run_dir), "inspected by") == "nobody"
    line = record_inspection(run_dir, filled(run_dir), reviewer="Ada Beispiel", kind="human")
    assert line.startswith("small/inspections 1 b3:")
    record_inspection(run_dir, filled(run_dir, format="not ok"), reviewer="reader-7", kind="agent")
    report = audit_run(run_dir)
    assert (report.exit_code, report.findings) == (0, ())
    assert fact(report, "inspected by") == "Ada Beispiel (human), 0 of 8 not ok; reader-7 (agent), 8 of 8 not ok"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not TOML", "cannot be read as TOML"),
        ("remarks = ''", "the findings are not those of the samples"),
    ],
)
def test_a_form_of_something_else_is_refused_and_nothing_is_written(run_dir: Path, text: str, said: str) -> None:
    form = Path("form.toml")
    form.write_text(text)
    with pytest.raises(UsageError, match=said):
        record_inspection(run_dir, form, reviewer="Ada Beispiel", kind="human")
    assert not (run_dir / "inspections").exists()


def test_a_form_with_an_answer_left_out_names_the_finding_and_the_key(run_dir: Path) -> None:
    form = filled(run_dir)
    form.write_text(form.read_text().replace('language = "ok"', 'language = ""', 1))
    with pytest.raises(UsageError, match="key 'language'") as caught:
        record_inspection(run_dir, form, reviewer="Ada Beispiel", kind="human")
    assert "final-0000" in str(caught.value)


def test_a_form_with_a_section_twice_is_refused(run_dir: Path) -> None:
    form = filled(run_dir)
    text = form.read_text()
    form.write_text(text + text[text.index("[[findings]]") :])
    with pytest.raises(UsageError, match="not those of the samples"):
        record_inspection(run_dir, form, reviewer="Ada Beispiel", kind="human")


def test_a_reviewer_has_a_name(run_dir: Path) -> None:
    with pytest.raises(UsageError, match="--reviewer ''"):
        record_inspection(run_dir, filled(run_dir), reviewer="", kind="human")


def test_changed_samples_are_not_inspected(run_dir: Path) -> None:
    form = filled(run_dir)
    path = run_dir / "samples/samples.jsonl"
    path.write_bytes(path.read_bytes().replace(b"true", b"false", 1))
    with pytest.raises(JournalError, match="A-DIGEST"):
        record_inspection(run_dir, form, reviewer="Ada Beispiel", kind="human")


def test_a_damaged_inspection_is_a_finding(run_dir: Path) -> None:
    record_inspection(run_dir, filled(run_dir), reviewer="Ada Beispiel", kind="human")
    path = run_dir / "inspections/000000.json"
    path.write_bytes(path.read_bytes().replace(b"Ada", b"Eva"))
    report = audit_run(run_dir, level="bytes")
    assert (report.exit_code, [each.id for each in report.findings]) == (4, ["J-HASH"])


def test_a_run_that_is_not_finished_cannot_be_inspected(
    script: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = small_workspace(tmp_path, script)
    monkeypatch.chdir(tmp_path)
    for name, value in workspace.environment().items():
        monkeypatch.setenv(name, value)
    drive(qualification_only=True)
    with pytest.raises(UsageError, match="is not finished"):
        record_inspection(RUN_DIR, Path("form.toml"), reviewer="Ada Beispiel", kind="human")
