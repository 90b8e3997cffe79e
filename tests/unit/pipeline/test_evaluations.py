from __future__ import annotations

import pytest

from experiment.pipeline.evaluations import split_evenly
from experiment.records.verdict import EvaluationKey


def _keys(policies: int, agent: int, retention: int) -> list[EvaluationKey]:
    return [
        EvaluationKey(arm="grpo", step=policy, suite=suite, stage="final", seed=seed)
        for policy in range(policies)
        for suite, count in (("agent", agent), ("retention", retention))
        for seed in range(count)
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("policies", [1, 3, 7])
def test_shares_keep_every_key_once_and_in_order(policies: int, workers: int) -> None:
    keys = _keys(policies, 3, 2)
    shares = split_evenly(keys, workers)
    assert [key for share in shares for key in share] == keys
    assert len(shares) == workers


def test_shares_hold_equally_many_agent_keys() -> None:
    shares = split_evenly(_keys(3, 4, 2), 2)
    assert [sum(key.suite == "agent" for key in share) for share in shares] == [6, 6]


@pytest.mark.parametrize("workers", [1, 2])
def test_retention_keys_alone_go_to_the_first_worker(workers: int) -> None:
    keys = _keys(2, 0, 2)
    assert split_evenly(keys, workers)[0] == keys
    assert split_evenly([], workers) == [[] for _ in range(workers)]
