from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiment.audit.evaluations import planned_episodes
from experiment.audit.findings import Notes
from experiment.audit.inputs import check_inputs
from experiment.environments.catalogue import build_world
from experiment.errors import PlanError, UsageError
from experiment.pipeline.inputs import verify_inputs
from experiment.pipeline.prepare import _refuse_overlap, fresh_plan_dir, load_plan, prepare
from experiment.records.plan import Plan
from experiment.records.verdict import EvaluationKey
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import digest_file
from tests.unit.pipeline.conftest import RECIPE, SMALL, Bench

OUTPUT = Path("plans/one")
ROW = '{"question":"Anna hat 3 Äpfel und isst 1. Wie viele bleiben?","answer_number":2}\n'
OTHER_ROW = '{"question":"Ben hat 5 Nüsse und findet 2. Wie viele sind es?","answer_number":7}\n'


def test_a_plan_is_written_with_its_seal_and_read_back(bench: Bench) -> None:
    plan = prepare(bench.recipe(), RECIPE, OUTPUT)
    assert sorted(path.name for path in OUTPUT.iterdir()) == ["plan.json", "plan.seal"]
    assert load_plan(OUTPUT / "plan.json")[0] == plan
    assert plan.name == "one"
    assert plan.recipe == bench.recipe()


def test_equal_recipes_and_inputs_give_equal_bytes(bench: Bench) -> None:
    for folder in ("a", "b"):
        prepare(bench.recipe(), RECIPE, Path(folder) / "one")
    assert Path("a/one/plan.json").read_bytes() == Path("b/one/plan.json").read_bytes()
    assert Path("a/one/plan.seal").read_bytes() == Path("b/one/plan.seal").read_bytes()


def test_another_process_prepares_the_same_bytes_without_loading_torch(bench: Bench, repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from experiment.pipeline.prepare import prepare; from experiment.pipeline.recipes import load_recipe\n"
        "prepare(load_recipe(Path(sys.argv[1]), sys.argv[2:]), Path(sys.argv[1]), Path('other/one'))\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'safetensors', 'tokenizers', 'datasets', 'accelerate'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository), "PYTHONHASHSEED": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(RECIPE), *SMALL], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    prepare(bench.recipe(), RECIPE, OUTPUT)
    assert Path("other/one/plan.json").read_bytes() == (OUTPUT / "plan.json").read_bytes()


def test_sets_have_the_planned_sizes_and_share_nothing(bench: Bench) -> None:
    plan = prepare(bench.recipe(), RECIPE, OUTPUT)
    sets = (plan.train, plan.dev, plan.final, plan.retention_dev, plan.retention_final)
    assert [len(each) for each in sets] == [8, 6, 6, 4, 4]
    episodes = [episode for each in sets for episode in each]
    assert len({episode.id for episode in episodes}) == len({episode.content for episode in episodes}) == 28


def test_sets_of_equal_seeds_share_nothing_either(bench: Bench) -> None:
    seeds = [f"episodes.{name}.seed=7" for name in ("train", "dev", "final")]
    plan = prepare(bench.recipe(*seeds), RECIPE, OUTPUT)
    contents = [episode.content for each in (plan.train, plan.dev, plan.final) for episode in each]
    assert len(set(contents)) == 20


def test_no_set_has_a_task_that_the_baseline_was_taught(bench: Bench) -> None:
    untaught = prepare(bench.recipe(), RECIPE, OUTPUT)
    taught = sorted({episode.content for episode in (*untaught.train[:3], *untaught.final[:2])})
    bench.teach(taught)
    plan = prepare(bench.recipe(), RECIPE, Path("plans/two"))
    assert list(plan.supervised) == taught
    used = {episode.content for each in (plan.train, plan.dev, plan.final) for episode in each}
    assert not used & set(taught)


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(bench: Bench) -> None:
    OUTPUT.mkdir(parents=True)
    (OUTPUT / "notes.txt").write_text("mine")
    before = bench.files()
    with pytest.raises(UsageError, match="plans/one: not empty, it holds notes.txt"):
        prepare(bench.recipe(), RECIPE, OUTPUT)
    assert bench.files() == before


def test_an_empty_folder_is_accepted(bench: Bench) -> None:
    OUTPUT.mkdir(parents=True)
    assert prepare(bench.recipe(), RECIPE, OUTPUT).name == "one"


def test_an_output_that_is_a_file_is_refused(bench: Bench) -> None:
    Path("plans").mkdir()
    OUTPUT.write_text("mine")
    with pytest.raises(UsageError, match="plans/one: is not a folder"):
        prepare(bench.recipe(), RECIPE, OUTPUT)
    assert OUTPUT.read_text() == "mine"


@pytest.mark.parametrize("name", ["One", "two words", "ünü", ".one", "x" * 64])
def test_a_folder_whose_name_cannot_be_a_plans_is_refused(bench: Bench, name: str) -> None:
    before = bench.files()
    with pytest.raises(UsageError, match="cannot be the name of a plan or run") as caught:
        prepare(bench.recipe(), RECIPE, Path("plans") / name)
    assert "lower-case letters" in caught.value.remedy
    assert bench.files() == before


@pytest.mark.parametrize("name", ["missing.jsonl", "crlf.jsonl", "bom.jsonl", "blank.jsonl", "double.jsonl"])
def test_a_question_file_that_is_not_clean_is_refused_and_nothing_written(bench: Bench, name: str) -> None:
    for file, text in (
        ("crlf.jsonl", ROW.replace("\n", "\r\n")),
        ("bom.jsonl", f"\ufeff{ROW}"),
        ("blank.jsonl", f"{ROW}\n{OTHER_ROW}"),
        ("double.jsonl", ROW + ROW),
    ):
        Path(file).write_bytes(text.encode())
    before = bench.files()
    with pytest.raises(UsageError, match=name):
        prepare(bench.recipe(f"retention.dev={name}"), RECIPE, OUTPUT)
    assert bench.files() == before


def test_a_reasoning_models_stock_template_is_refused_and_its_training_form_accepted(bench: Bench) -> None:
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "chat_templates"
    shutil.copyfile(folder / "qwen3.jinja", bench.baseline / "chat_template.jinja")
    before = bench.files()
    with pytest.raises(UsageError, match="the chat template changes earlier text when a tool result is added"):
        prepare(bench.recipe(), RECIPE, OUTPUT)
    assert bench.files() == before
    shutil.copyfile(folder / "qwen3_training.jinja", bench.baseline / "chat_template.jinja")
    plan = prepare(bench.recipe(), RECIPE, OUTPUT)
    assert plan.chat_template == digest_file(folder / "qwen3_training.jinja")


def test_a_missing_final_newline_changes_no_count(bench: Bench) -> None:
    Path("with.jsonl").write_text(ROW + OTHER_ROW, encoding="utf-8")
    Path("without.jsonl").write_text((ROW + OTHER_ROW).rstrip("\n"), encoding="utf-8")
    plans = [
        prepare(bench.recipe(f"retention.dev={name}.jsonl"), RECIPE, Path("plans") / name)
        for name in ("with", "without")
    ]
    assert plans[0].retention_dev == plans[1].retention_dev
    assert len(plans[0].retention_dev) == 2
    assert [each.digest for each in plans[0].inputs] != [each.digest for each in plans[1].inputs]


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_file_is_counted_alike_when_it_is_prepared_and_when_it_is_audited(bench: Bench, end: str) -> None:
    Path("dev.jsonl").write_text(ROW + OTHER_ROW.rstrip("\n") + end, encoding="utf-8")
    plan = prepare(bench.recipe("retention.dev=dev.jsonl"), RECIPE, OUTPUT)
    key = EvaluationKey(arm="baseline", step=0, suite="retention", stage="dev", seed=1)
    assert len(plan.retention_dev) == len(planned_episodes(plan, key)) == 2
    notes = Notes()
    check_inputs(plan, bench.folder, notes)
    assert notes.report().findings == ()
    # The same lines in other bytes are another file.
    for other in (ROW + OTHER_ROW.rstrip("\n") + ("" if end else "\n"), (ROW + OTHER_ROW).replace("\n", "\r\n")):
        Path("dev.jsonl").write_text(other, encoding="utf-8", newline="")
        notes = Notes()
        check_inputs(plan, bench.folder, notes)
        assert [(finding.id, finding.place) for finding in notes.report().findings] == [("I-INPUT", "dev.jsonl")]
        with pytest.raises(PlanError, match=r"dev.jsonl: the retention_dev changed"):
            verify_inputs(plan)


def test_two_items_of_one_id_are_refused_with_their_lines(bench: Bench) -> None:
    rows = [row.replace('{"q', '{"id":"7","q') for row in (ROW, OTHER_ROW)]
    Path("dev.jsonl").write_text("".join(rows), encoding="utf-8")
    with pytest.raises(UsageError, match=r"dev.jsonl, line 2: 'id 7' is also in line 1"):
        prepare(bench.recipe("retention.dev=dev.jsonl"), RECIPE, OUTPUT)


def test_one_task_in_two_sets_is_refused_with_both_positions(bench: Bench) -> None:
    Path("dev.jsonl").write_text(OTHER_ROW + ROW, encoding="utf-8")
    Path("final.jsonl").write_text(ROW, encoding="utf-8")
    before = bench.files()
    with pytest.raises(UsageError) as caught:
        prepare(bench.recipe("retention.dev=dev.jsonl", "retention.final=final.jsonl"), RECIPE, OUTPUT)
    assert str(caught.value) == (
        "retention-final, position 0 (retention-final-0000): the same task as "
        "retention-dev, position 1 (retention-dev-0001)"
    )
    assert bench.files() == before


def test_an_item_that_is_trained_on_and_measured_under_another_id_is_refused(bench: Bench) -> None:
    plan = prepare(bench.recipe(), RECIPE, OUTPUT)
    leaked = plan.train[3].model_copy(update={"id": "dev-0001"})
    with pytest.raises(UsageError) as caught:
        _refuse_overlap({"train": plan.train, "dev": (plan.dev[0], leaked, *plan.dev[2:])}, ())
    assert str(caught.value) == "dev, position 1 (dev-0001): the same task as train, position 3 (train-0003)"
    doubled = plan.dev[4].model_copy(update={"id": "dev-0001"})
    assert doubled.task_json != plan.dev[1].task_json
    with pytest.raises(UsageError) as caught:
        _refuse_overlap({"train": plan.train, "dev": (*plan.dev[:4], doubled, plan.dev[5])}, ())
    assert str(caught.value) == "dev, position 4 (dev-0001): the same id as dev, position 1 (dev-0001)"


def test_a_task_from_a_file_that_the_baseline_was_taught_is_refused(bench: Bench) -> None:
    Path("dev.jsonl").write_text(ROW, encoding="utf-8")
    plan = prepare(bench.recipe("retention.dev=dev.jsonl"), RECIPE, OUTPUT)
    bench.teach([plan.retention_dev[0].content])
    with pytest.raises(UsageError, match=r"position 0 \(retention-dev-0000\): the same task as the supervised data"):
        prepare(bench.recipe("retention.dev=dev.jsonl"), RECIPE, Path("plans/two"))


@pytest.mark.parametrize("text", ["{}", "[1", '["a", "a"]'])
def test_a_broken_list_of_what_was_taught_is_refused(bench: Bench, text: str) -> None:
    (bench.baseline / "supervised-contents.json").write_text(text)
    with pytest.raises(UsageError, match="supervised-contents.json"):
        prepare(bench.recipe(), RECIPE, OUTPUT)


def test_a_provenance_of_another_version_is_refused(bench: Bench) -> None:
    (bench.baseline / "provenance.json").write_text('{"origin":"elsewhere"}')
    with pytest.raises(UsageError, match="provenance.json: not a provenance of this version"):
        prepare(bench.recipe(), RECIPE, OUTPUT)


def test_episodes_are_those_of_the_world(bench: Bench) -> None:
    plan = prepare(bench.recipe(), RECIPE, OUTPUT)
    world = build_world(plan.recipe.world)
    for episode in plan.train:
        turns = world.solve(episode)
        session = world.open(episode)
        for turn in turns:
            for name, arguments in turn.calls:
                session.call(name, dict(arguments))
        assert session.verify(turns[-1].text).success


def test_fresh_folders_count_up(bench: Bench) -> None:
    assert fresh_plan_dir("mine") == Path("plans/mine-001")
    Path("plans/mine-001").mkdir(parents=True)
    assert fresh_plan_dir("mine") == Path("plans/mine-002")


@pytest.fixture
def plan(bench: Bench) -> Plan:
    return prepare(bench.recipe(), RECIPE, OUTPUT)


def test_a_plan_that_does_not_fit_its_seal_is_refused(plan: Plan) -> None:
    path = OUTPUT / "plan.json"
    path.write_bytes(path.read_bytes().replace(b'"steps":6', b'"steps":7'))
    with pytest.raises(PlanError, match=r"plans/one/plan.json: its bytes do not fit plan.seal"):
        load_plan(path)


@pytest.mark.parametrize("seal", [b"0" * 64, b"", b"\xff" * 64])
def test_another_seal_is_refused(plan: Plan, seal: bytes) -> None:
    (OUTPUT / "plan.seal").write_bytes(seal)
    with pytest.raises(PlanError, match="do not fit plan.seal"):
        load_plan(OUTPUT / "plan.json")


@pytest.mark.parametrize("name", ["plan.json", "plan.seal"])
def test_a_missing_file_of_a_plan_is_a_usage_error_that_names_it(plan: Plan, name: str) -> None:
    (OUTPUT / name).unlink()
    with pytest.raises(UsageError, match=f"plans/one/{name}: cannot be read") as caught:
        load_plan(OUTPUT / "plan.json")
    assert "--plan" in caught.value.remedy


def test_a_plan_is_canonical(plan: Plan) -> None:
    assert (OUTPUT / "plan.json").read_bytes() == encode_record(plan)


def test_a_plan_names_the_runs_that_its_final_episodes_were_used_in(bench: Bench) -> None:
    first = prepare(bench.recipe(), RECIPE, Path("plans/first"))
    assert first.predecessors == ()
    assert prepare(bench.recipe(), RECIPE, Path("plans/unused")).predecessors == ()
    Path("plans/first/claim").write_text("first ../../runs/first\n")
    digest = Path("plans/first/plan.seal").read_text().strip()
    assert prepare(bench.recipe(), RECIPE, Path("plans/second")).predecessors == (digest,)
    fresh = bench.recipe("episodes.final.seed=987654", "episodes.final.count=1")
    overlap = {each.content for each in first.final} & {
        each.content for each in prepare(fresh, RECIPE, Path("plans/third")).final
    }
    assert bool(overlap) == bool(load_plan(Path("plans/third/plan.json"))[0].predecessors)
    assert not overlap


def test_a_plan_that_cannot_be_read_is_no_predecessor_and_no_obstacle(bench: Bench) -> None:
    prepare(bench.recipe(), RECIPE, Path("plans/first"))
    Path("plans/first/claim").write_text("first ../../runs/first\n")
    Path("plans/first/plan.json").write_bytes(b"{}")
    assert prepare(bench.recipe(), RECIPE, Path("plans/second")).predecessors == ()


def test_questions_of_the_fine_tuning_file_beside_dev_are_in_no_set(bench: Bench) -> None:
    maths = bench.folder / "maths"
    maths.mkdir()
    (maths / "dev.jsonl").write_text(ROW)
    (maths / "mgsm.jsonl").write_text(OTHER_ROW)
    paths = ("retention.dev=maths/dev.jsonl", "retention.final=maths/mgsm.jsonl")
    assert "supervised" not in [each.role for each in prepare(bench.recipe(*paths), RECIPE, OUTPUT).inputs]
    train = maths / "train.jsonl"
    train.write_text('{"question":"Clara hat 2 Kekse und isst 2. Wie viele bleiben?","answer_number":0}\n')
    plan = prepare(bench.recipe(*paths), RECIPE, Path("plans/two"))
    assert [each.path for each in plan.inputs if each.role == "supervised"] == ["maths/train.jsonl"]
    assert len(plan.supervised) == 1
    for row, label in ((ROW, "retention-dev"), (OTHER_ROW, "retention-final")):
        train.write_text(row)
        with pytest.raises(UsageError, match=f"{label}, position 0 .*: the same task as the supervised data"):
            prepare(bench.recipe(*paths), RECIPE, Path("plans/three"))
    train.write_text("{}\n")
    with pytest.raises(UsageError, match=r"train\.jsonl.*1"):
        prepare(bench.recipe(*paths), RECIPE, Path("plans/three"))
