"""What is evaluated is the baseline with the sealed adapter on it, and what rounding would do to that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer, LoraModel

from experiment.decisions.merging import has_no_effect, merge_problems
from experiment.records.job import CheckpointDone, TrainingDone
from experiment.records.recipe import Lora, Recipe
from experiment.records.verdict import MergeFacts
from experiment.training.merging import load_policy
from experiment.training.models import load_baseline, lora_config
from experiment.training.sampler import build_sampler
from experiment.training.state import adapter_state, parts, reference_digest
from tests.doubles.tiny_training import Branch, tiny_plan


@pytest.fixture(scope="module")
def branch(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Branch:
    return Branch(tmp_path_factory.mktemp("branch"), tiny_plan(baseline, steps=2)).train(2)


@pytest.fixture
def recipe(branch: Branch) -> Recipe:
    return branch.plan.recipe


def problems(branch: Branch, facts: MergeFacts) -> tuple[str, ...]:
    sealed = branch.of(CheckpointDone)[-1]
    return merge_problems(facts, reference=branch.of(TrainingDone)[-1].reference, state=dict(sealed.state))


def saved(recipe: Recipe, folder: Path, value: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """An adapter whose B matrices are filled by `value`."""
    model = get_peft_model(load_baseline(recipe), lora_config(Lora(rank=4, alpha=8)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(value(weight))
            elif "lora_A" in name:
                weight.fill_(0.25)
    model.save_pretrained(folder)
    return folder


def test_trained_checkpoint_is_accounted_for_by_its_own_records(branch: Branch, recipe: Recipe) -> None:
    policy, facts = load_policy(load_baseline(recipe), branch.checkpoint(2))
    assert problems(branch, facts) == ()
    assert not has_no_effect(facts)
    assert facts.form == "merged"
    assert facts.weights == reference_digest(policy) != facts.base
    assert facts.targeted == facts.changed_tensors == 14
    assert 0 < facts.changed <= facts.elements < sum(weight.numel() for weight in policy.parameters())
    assert load_policy(load_baseline(recipe), branch.checkpoint(2))[1] == facts


def test_sampled_weights_of_training_are_the_evaluated_ones(branch: Branch, recipe: Recipe) -> None:
    trained = PeftModel.from_pretrained(load_baseline(recipe), branch.checkpoint(2)).eval()
    sampler: Any = build_sampler(recipe, trained, end_id=1, pad_id=0)
    sampler.refresh()
    _, facts = load_policy(load_baseline(recipe), branch.checkpoint(2))
    assert reference_digest(sampler.policy._model) == facts.weights


def test_counts_are_those_of_a_hand_computation(recipe: Recipe, tmp_path: Path) -> None:
    """Rank 4 of 0.25 times 1e-4, scaled by 2: every targeted element changes by 2e-4."""
    folder = saved(recipe, tmp_path, lambda weight: torch.full_like(weight, 1e-4))
    base = dict(load_baseline(recipe).state_dict())
    _, facts = load_policy(load_baseline(recipe), folder)
    delta = torch.tensor(2e-4)
    targeted = [value for name, value in base.items() if name.endswith("_proj.weight")]
    assert facts.elements == sum(value.numel() for value in targeted)
    assert facts.changed == sum(int((value + delta != value).sum()) for value in targeted)
    vanishing = sum(int(((value + delta).bfloat16() == value.bfloat16()).sum()) for value in targeted)
    assert abs(facts.vanishing - vanishing) <= facts.elements // 500
    assert facts.vanishing > facts.elements // 20
    assert facts.largest == pytest.approx(2e-4, rel=1e-2)


def test_adapter_that_was_never_trained_changes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    _, facts = load_policy(load_baseline(recipe), saved(recipe, tmp_path, torch.zeros_like))
    assert has_no_effect(facts)
    assert (facts.changed, facts.changed_tensors, facts.vanishing, facts.largest) == (0, 0, 0, 0.0)
    assert facts.weights == facts.base


def test_second_merge_and_another_base_are_found_by_the_base_s_digest(branch: Branch, recipe: Recipe) -> None:
    once, _ = load_policy(load_baseline(recipe), branch.checkpoint(2))
    _, twice = load_policy(once, branch.checkpoint(2))
    assert "merged already" in problems(branch, twice)[0]
    other = load_baseline(recipe)
    with torch.no_grad():
        other.get_input_embeddings().weight[0, 0] += 2**-20
    assert "not the baseline's" in problems(branch, load_policy(other, branch.checkpoint(2))[1])[0]


def test_another_adapter_is_found_by_its_digest(branch: Branch, recipe: Recipe, tmp_path: Path) -> None:
    folder = saved(recipe, tmp_path, lambda weight: torch.full_like(weight, 1e-3))
    assert "not the one that was sealed" in problems(branch, load_policy(load_baseline(recipe), folder)[1])[0]


def test_weights_beside_the_adapter_that_move_in_the_merge_are_counted(
    branch: Branch, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = LoraModel.merge_and_unload

    def careless(self: LoraModel, *given: Any, **named: Any) -> Any:
        model = merge(self, *given, **named)
        with torch.no_grad():
            model.get_input_embeddings().weight[3, :2] += 1.0
        return model

    monkeypatch.setattr(LoraModel, "merge_and_unload", careless)
    _, facts = load_policy(load_baseline(recipe), branch.checkpoint(2))
    assert facts.strays == 4  # the output layer is tied to the changed rows, and listed beside them
    assert "not base plus adapter" in problems(branch, facts)[0]


def test_merge_that_adds_the_adapter_twice_is_counted(
    branch: Branch, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = LoraModel.merge_and_unload

    def doubled(self: LoraModel, *given: Any, **named: Any) -> Any:
        for module in self.modules():
            if isinstance(module, LoraLayer):
                module.get_base_layer().weight.data += module.get_delta_weight("default")
        return merge(self, *given, **named)

    monkeypatch.setattr(LoraModel, "merge_and_unload", doubled)
    _, facts = load_policy(load_baseline(recipe), branch.checkpoint(2))
    assert facts.strays > facts.changed // 2
    assert problems(branch, facts)


def test_bfloat16_keeps_the_adapter_apart_and_says_what_merging_would_lose(branch: Branch, recipe: Recipe) -> None:
    compute = recipe.compute.model_copy(update={"dtype": "bfloat16"})
    rounded = recipe.model_copy(update={"compute": compute})
    policy, facts = load_policy(load_baseline(rounded), branch.checkpoint(2))
    assert isinstance(policy, PeftModel)
    assert (facts.form, facts.strays) == ("apart", 0)
    assert facts.weights == facts.base
    assert 0 < facts.vanishing < facts.changed
    assert facts.adapter == dict(parts(adapter_state(policy)))["adapter"]
