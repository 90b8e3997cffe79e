from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.errors import PlanError, UsageError
from experiment.pipeline import inputs
from experiment.pipeline.inputs import freeze_inputs, verify_inputs, verify_world
from experiment.pipeline.prepare import prepare
from experiment.records.plan import Plan
from tests.unit.pipeline.conftest import RECIPE, Bench

ROWS = '{"question":"Anna hat 3 Äpfel und isst 1. Wie viele bleiben?","answer_number":2}\n'
MORE_ROWS = '{"question":"Ben hat 5 Nüsse und findet 2. Wie viele sind es?","answer_number":7}\n'


@pytest.fixture
def plan(bench: Bench) -> Plan:
    """A plan that consumes every kind of input."""
    shutil.copytree(bench.baseline, "tokenizer")
    Path("dev.jsonl").write_text(ROWS, encoding="utf-8")
    Path("final.jsonl").write_text(MORE_ROWS, encoding="utf-8")
    recipe = bench.recipe("inputs.tokenizer=tokenizer", "retention.dev=dev.jsonl", "retention.final=final.jsonl")
    return prepare(recipe, RECIPE, Path("plans/one"))


def _append(path: str) -> None:
    with Path(path).open("ab") as file:
        file.write(b" ")


def _flip(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[-1] ^= 1
    Path(path).write_bytes(data)


def test_untouched_inputs_are_accepted(plan: Plan) -> None:
    assert {frozen.role for frozen in plan.inputs} == {
        "sources",
        "recipe",
        "lock",
        "baseline",
        "tokenizer",
        "retention_dev",
        "retention_final",
    }
    assert verify_inputs(plan) == sum(frozen.size_bytes for frozen in plan.inputs)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("recipes/quickstart.toml", "recipes/quickstart.toml: the recipe changed"),
        ("requirements/train.lock", "requirements/train.lock: the lock changed"),
        ("runs/baselines/quickstart/model.safetensors", "runs/baselines/quickstart: the baseline changed"),
        ("tokenizer/chat_template.jinja", "tokenizer: the tokenizer changed"),
        ("dev.jsonl", "dev.jsonl: the retention_dev changed"),
        ("final.jsonl", "final.jsonl: the retention_final changed"),
    ],
)
@pytest.mark.parametrize("change", [_append, _flip])
def test_one_changed_byte_is_refused_and_named(
    plan: Plan, file: str, named: str, change: Callable[[str], None]
) -> None:
    change(file)
    with pytest.raises(PlanError) as caught:
        verify_inputs(plan)
    assert str(caught.value) == f"{named} since the plan was prepared"
    assert caught.value.exit_code == 3


def test_changed_sources_are_refused(plan: Plan) -> None:
    changed = tuple(
        each.model_copy(update={"digest": "0" * 64}) if each.role == "sources" else each for each in plan.inputs
    )
    with pytest.raises(PlanError, match="experiment: the sources changed since the plan was prepared"):
        verify_inputs(plan.model_copy(update={"inputs": changed}))


def test_a_file_that_appears_in_the_baseline_is_refused(plan: Plan, bench: Bench) -> None:
    (bench.baseline / "adapter.bin").write_bytes(b"")
    with pytest.raises(PlanError, match="the baseline changed"):
        verify_inputs(plan)


@pytest.mark.parametrize("file", ["requirements/train.lock", "runs/baselines/quickstart/model.safetensors"])
def test_a_link_to_equal_bytes_is_refused_after_preparation(plan: Plan, file: str) -> None:
    os.rename(file, "elsewhere")
    os.symlink(Path("elsewhere").resolve(), file)
    with pytest.raises(PlanError, match=r"cannot be read any more: .*link"):
        verify_inputs(plan)


def test_a_folder_replaced_by_a_link_is_refused_after_preparation(plan: Plan, bench: Bench) -> None:
    bench.baseline.rename("elsewhere")
    bench.baseline.symlink_to(Path("elsewhere").resolve())
    with pytest.raises(PlanError, match="the baseline cannot be read any more"):
        verify_inputs(plan)


def test_a_link_on_the_way_to_an_input_may_not_lead_elsewhere_later(bench: Bench) -> None:
    Path("runs").rename("store")
    shutil.copytree("store", "other")
    Path("other/baselines/quickstart/model.safetensors").write_bytes(b"Weights")
    Path("runs").symlink_to("store")
    plan = prepare(bench.recipe(), RECIPE, Path("plans/one"))
    verify_inputs(plan)
    Path("runs").unlink()
    Path("runs").symlink_to("other")
    with pytest.raises(PlanError, match="runs/baselines/quickstart: the baseline changed"):
        verify_inputs(plan)


@pytest.mark.parametrize("file", ["requirements/train.lock", "dev.jsonl", "tokenizer"])
def test_a_vanished_input_is_refused(plan: Plan, file: str) -> None:
    os.rename(file, "elsewhere")
    with pytest.raises(PlanError, match=f"{file}: the .* cannot be read any more"):
        verify_inputs(plan)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("blake3", "environment: blake3 is not installed, the plan froze 0.0.1"),
        ("numpy", "environment: numpy is .*, the plan froze 0.0.1"),
    ],
)
def test_another_version_of_a_distribution_is_refused(plan: Plan, name: str, said: str) -> None:
    frozen = dict(plan.environment.distributions)
    frozen[f"{name}-once" if "not installed" in said else name] = "0.0.1"
    said = said.replace(": blake3 ", ": blake3-once ")
    environment = plan.environment.model_copy(update={"distributions": tuple(sorted(frozen.items()))})
    with pytest.raises(PlanError, match=said):
        verify_inputs(plan.model_copy(update={"environment": environment}))


def test_a_distribution_that_was_added_is_refused(plan: Plan) -> None:
    frozen = dict(plan.environment.distributions)
    version = frozen.pop("pydantic")
    environment = plan.environment.model_copy(update={"distributions": tuple(sorted(frozen.items()))})
    with pytest.raises(PlanError, match=f"environment: pydantic is {version}, the plan froze not installed"):
        verify_inputs(plan.model_copy(update={"environment": environment}))


@pytest.mark.parametrize("label", ["python", "implementation", "machine"])
def test_another_interpreter_is_refused(plan: Plan, label: str) -> None:
    environment = plan.environment.model_copy(update={label: "other"})
    with pytest.raises(PlanError, match=f"environment: {label} is .*, the plan froze other"):
        verify_inputs(plan.model_copy(update={"environment": environment}))


def test_a_missing_baseline_is_refused_with_how_to_make_one(bench: Bench) -> None:
    shutil.rmtree(bench.baseline)
    with pytest.raises(UsageError, match="runs/baselines/quickstart: the baseline does not exist") as caught:
        freeze_inputs(bench.recipe(), RECIPE)
    assert "python -m experiment baseline" in caught.value.remedy


def test_a_linked_baseline_is_refused(bench: Bench) -> None:
    bench.baseline.rename("elsewhere")
    bench.baseline.symlink_to(Path("elsewhere").resolve())
    with pytest.raises(UsageError, match="runs/baselines/quickstart: the baseline is a link"):
        freeze_inputs(bench.recipe(), RECIPE)


@pytest.mark.parametrize("target", ["/etc/hostname", "model.safetensors", "loop"])
def test_a_link_inside_the_baseline_is_refused(bench: Bench, target: str) -> None:
    (bench.baseline / "loop").symlink_to(target)
    with pytest.raises(UsageError, match="loop: is a link"):
        freeze_inputs(bench.recipe(), RECIPE)


def test_a_world_that_depends_on_something_else_than_was_frozen_is_refused(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = (("java", "17.0.15"), ("sandbox", "landlock"))
    monkeypatch.setattr(inputs, "describe_world", lambda _settings, _python: facts)
    verify_world(plan.model_copy(update={"world_facts": facts}), None)
    for frozen, said in (
        ((("java", "21.0.8"), facts[1]), "world: java is 17.0.15, the plan froze 21.0.8"),
        (facts[:1], "world: sandbox is landlock, the plan froze nothing"),
        ((*facts, ("settings", "a")), "world: settings is missing, the plan froze a"),
    ):
        with pytest.raises(PlanError, match=said):
            verify_world(plan.model_copy(update={"world_facts": frozen}), None)


def test_a_world_that_can_no_longer_be_described_is_refused_with_the_way_out(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_settings: object, _python: object) -> None:
        message = "no Java 17 to 24"
        raise UsageError(message, remedy="Install one.")

    monkeypatch.setattr(inputs, "describe_world", missing)
    with pytest.raises(PlanError, match="world: no Java 17 to 24") as caught:
        verify_world(plan, None)
    assert caught.value.remedy == "Install one."
