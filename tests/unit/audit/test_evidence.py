"""Evidence of single training rows, as the auditor reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiment.audit.evidence import EvidenceError, read_trained
from experiment.records.rollout import Rollout, TrainedRollout
from experiment.sealing.arrays import decode_array, encode_array
from tests.doubles.small_rollouts import LOOKUP, SOLVED, Script, play, trained, write_lines

BROKEN: Script = (
    (f"<tool_call>{LOOKUP}</tool_call>", ("delivered", "Ulm: 12"), "stop"),
    (f"<tool_call>{LOOKUP}</tool_call>", ("infrastructure", ""), "stop"),
)


def group() -> list[Rollout]:
    """One rollout with a verdict, one whose world broke in its second turn."""
    whole, broken = (
        play("train-0000", "direct", number, script, int) for number, script in enumerate((SOLVED, BROKEN))
    )
    return [whole, broken.model_copy(update={"end": "fault", "score": None, "tool_errors": 0})]


def rows(*, learns: bool) -> list[TrainedRollout]:
    """What an arm makes of them; without a verdict there is neither reward nor advantage."""
    whole, broken = trained(group(), format_weight=0.5, learns=learns)
    zero = encode_array(np.zeros(1, dtype=np.float32))
    return [whole, broken.model_copy(update={"reward": None, "advantage": zero})]


def test_row_without_a_verdict_may_not_be_learned_from(tmp_path: Path) -> None:
    whole, broken = rows(learns=True)
    assert decode_array(broken.observation_mask, "uint8").any()
    write_lines(tmp_path / "learned.jsonl", [whole, broken])
    with pytest.raises(EvidenceError, match="rollout 1: has no verdict, and tokens of it were learned"):
        read_trained(tmp_path / "learned.jsonl")
    empty = encode_array(np.zeros(broken.rollout.tokens_retained, dtype=np.uint8))
    write_lines(tmp_path / "kept.jsonl", [whole, broken.model_copy(update={"observation_mask": empty})])
    read = read_trained(tmp_path / "kept.jsonl")
    assert [(each.reward is None, each.learned > 0) for each in read] == [(False, True), (True, False)]
    assert [each.played.problems for each in read] == [(), ()]


@pytest.mark.parametrize("field", ["sampled_logprobs", "sampled_ids"])
def test_token_without_a_sampling_record_is_refused(tmp_path: Path, field: str) -> None:
    """An id that nobody sampled has no log-probability, and a log-probability has an id."""
    whole, broken = rows(learns=False)
    turn = whole.rollout.turns[-1]
    dtype = "int32" if field == "sampled_ids" else "float32"
    shorter = encode_array(np.array(decode_array(getattr(turn, field), dtype)[1:]))
    turns = (*whole.rollout.turns[:-1], turn.model_copy(update={field: shorter}))
    forged = whole.model_copy(update={"rollout": whole.rollout.model_copy(update={"turns": turns})})
    write_lines(tmp_path / "rows.jsonl", [forged, broken])
    first, _ = read_trained(tmp_path / "rows.jsonl")
    assert first.played.problems == ("turn 2 has log-probabilities or observation spans that do not fit its tokens",)
