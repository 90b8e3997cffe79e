"""The German experiment at full size is prepared in seconds, and its plan holds every value of the protocol."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from experiment.pipeline.prepare import prepare
from experiment.pipeline.recipes import load_recipe
from experiment.records.plan import Plan
from experiment.sealing.canonical import encode

INPUTS = (
    "inputs.baseline=merged",
    "inputs.tokenizer=tokenizer",
    "retention.dev=dev.jsonl",
    "retention.final=mgsm.jsonl",
)
LONGEST_S = 30.0


def write_questions(path: Path, name: str, count: int) -> None:
    """Write questions in MGSM's format."""
    lines = []
    for each in range(count):
        question = f"{name}: Anna hat {each} Äpfel und kauft {each + 1}. Wie viele?"
        lines.append(encode({"question": question, "answer": 2 * each + 1}) + b"\n")
    path.write_bytes(b"".join(lines))


@pytest.fixture(scope="module")
def prepared(
    gym_python: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> tuple[Plan, float]:
    """The plan on synthetic inputs of full size, and the seconds that it took."""
    repository, workspace = pytestconfig.rootpath, tmp_path_factory.mktemp("full")
    shutil.copytree(repository / "requirements", workspace / "requirements")
    for name in ("merged", "tokenizer"):
        (workspace / name).mkdir()
        template = repository / "experiment" / "training" / "chat_template.jinja"
        shutil.copyfile(template, workspace / name / "chat_template.jinja")
    (workspace / "merged" / "model.safetensors").write_bytes(bytes(1 << 20))
    write_questions(workspace / "dev.jsonl", "Auswahl", 128)
    write_questions(workspace / "train.jsonl", "Feinabstimmung", 500)
    write_questions(workspace / "mgsm.jsonl", "Prüfung", 250)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        path = repository / "recipes" / "german_grpo_gym.toml"
        started = time.monotonic()
        plan = prepare(load_recipe(path, INPUTS), path, Path("plans/full"), gym_python)
        return plan, time.monotonic() - started


def test_it_takes_seconds(prepared: tuple[Plan, float]) -> None:
    assert prepared[1] < LONGEST_S


def test_the_plan_holds_the_sets_of_the_protocol(prepared: tuple[Plan, float]) -> None:
    plan = prepared[0]
    sizes = [len(each) for each in (plan.train, plan.dev, plan.final, plan.retention_dev, plan.retention_final)]
    assert sizes == [256, 64, 256, 128, 250]
    assert plan.recipe.episodes.train.seed == 20261020
    assert len(plan.supervised) == 500
    assert {each.role for each in plan.inputs} >= {
        "baseline",
        "tokenizer",
        "retention_dev",
        "retention_final",
        "supervised",
    }
    steps = [step.episodes for step in plan.schedule]
    assert len(steps) == 256
    assert sorted(episode for step in steps for episode in step) == sorted(each.id for each in plan.train)


def test_the_plan_holds_the_settings_of_the_protocol(prepared: tuple[Plan, float]) -> None:
    recipe = prepared[0].recipe
    training, marks, assessment = recipe.training, recipe.checkpoints, recipe.assessment
    assert (training.steps, training.rollouts_per_prompt, training.lora.rank) == (256, 4, 16)
    assert {step.learning_rate for step in prepared[0].schedule} == {5e-6}
    assert (training.kl, recipe.compute.dtype, recipe.compute.device) == (0.1, "bfloat16", "cuda")
    assert (marks.recovery_every, marks.candidates, marks.diagnostic) == (64, (64, 128, 256), 256)
    assert (recipe.qualification.steps, recipe.qualification.stop_at) == (4, 2)
    assert assessment.seeds == (42, 1729, 20261020)
    assert (assessment.retention_seeds, assessment.resamples) == ((42, 20261020), 10_000)
    assert recipe.budget_hours == 8.0
    assert [(arm.name, arm.algorithm) for arm in recipe.arms] == [("grpo", "grpo"), ("echo", "echo")]


def test_the_plan_freezes_the_service(prepared: tuple[Plan, float]) -> None:
    facts = dict(prepared[0].world_facts)
    assert facts["nemo_gym"] == "0.4.0"
    assert {"config", "distributions", "lock", "nemo_gym_files", "python", "server_sources"} <= facts.keys()
