"""Another resources server is a world by its configuration and rows alone: from the recipe to a judged rollout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiment.environments.catalogue import connect_world, start_services
from experiment.pipeline.prepare import prepare
from experiment.pipeline.recipes import load_recipe
from experiment.records.plan import Plan
from tests.integration.gym.conftest import SHIPPED


@pytest.fixture
def plan(gym_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> Plan:
    """A plan on the rows that Gym ships with one of its servers."""
    repository = pytestconfig.rootpath
    (rows,) = gym_python.parent.parent.glob(f"lib/python3*/site-packages/{SHIPPED}/data/example.jsonl")
    shutil.copytree(repository / "requirements", tmp_path / "requirements")
    shutil.copyfile(rows, tmp_path / "rows.jsonl")
    (tmp_path / "model").mkdir()
    shutil.copyfile(repository / "experiment/training/chat_template.jinja", tmp_path / "model/chat_template.jinja")
    monkeypatch.chdir(tmp_path)
    path = repository / "recipes" / "german_gym_small.toml"
    config = f"{SHIPPED}/configs/{Path(SHIPPED).name}.yaml"
    settings = (
        f'world={{name="nemo_gym", configs=["{config}"], rows="rows.jsonl"}}',
        "inputs.baseline=model",
        "episodes.train.count=2",
        "episodes.dev.count=1",
        "episodes.final.count=1",
        "training.prompts_per_step=2",
    )
    return prepare(load_recipe(path, settings), path, Path("plans/other"), gym_python)


def test_its_rows_and_tools_are_frozen(plan: Plan) -> None:
    assert "rows" in {each.role for each in plan.inputs}
    assert len({each.content for each in (*plan.train, *plan.dev, *plan.final)}) == 4
    assert [tool.name for tool in plan.tools] == ["increment_counter", "get_counter_value"]


def test_its_episodes_are_played_and_judged(plan: Plan, gym_python: Path, tmp_path: Path) -> None:
    services = start_services(plan.recipe.world, tmp_path / "services", gym_python)
    try:
        with connect_world(plan.recipe.world, lambda renew: services.address(0, renew=renew)) as world:
            session = world.open(plan.train[0])
            shown = session.call("get_counter_value", {})
            assert not shown.is_error
            assert "count" in shown.text
            assert session.verify("done").success is False
            session.close()
    finally:
        services.stop()
