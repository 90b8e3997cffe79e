from __future__ import annotations

import pytest

from experiment.decisions.merging import has_no_effect, merge_problems
from tests.doubles.small_assessment import REFERENCE, merge_facts

ADAPTER = "ab" * 32
STATE = {"adapter": ADAPTER, "optimizer": "cd" * 32}


def test_baseline_and_sealed_adapter_have_no_problem() -> None:
    assert merge_problems(merge_facts(ADAPTER), reference=REFERENCE, state=STATE) == ()
    assert not has_no_effect(merge_facts(ADAPTER))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": "0" * 64}, "not the baseline's"),
        ({"adapter": "0" * 64}, "not the one that was sealed"),
        ({"strays": 3}, "3 elements are not base plus adapter"),
        ({"form": "apart"}, "stay apart"),
    ],
)
def test_anything_else_is_named(changes: dict[str, object], said: str) -> None:
    facts = merge_facts(ADAPTER).model_copy(update=changes)
    (problem,) = merge_problems(facts, reference=REFERENCE, state=STATE)
    assert said in problem


def test_a_checkpoint_whose_record_names_no_adapter_is_a_problem() -> None:
    assert merge_problems(merge_facts(ADAPTER), reference=REFERENCE, state={}) != ()


def test_an_adapter_that_changes_nothing_has_no_effect_even_if_it_was_large() -> None:
    assert has_no_effect(merge_facts(ADAPTER).model_copy(update={"changed": 0, "changed_tensors": 0, "largest": 9.0}))
