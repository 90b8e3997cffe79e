"""Evidence files and what the statistics see."""

from __future__ import annotations

from pathlib import Path

from experiment.records.rollout import Rollout
from experiment.rollout.evidence import item_outcomes, write_evidence
from experiment.sealing.canonical import decode_record
from experiment.sealing.digests import digest_file
from tests.doubles.char_stage import EPISODES, lookup, play, solution


def test_evidence_is_one_canonical_record_a_line_and_comes_back_equal(tmp_path: Path) -> None:
    records = [each.record for each in play([solution(episode) for episode in EPISODES[:3]])]
    path = tmp_path / "new" / "folder" / "step-000001.jsonl"
    digest = write_evidence(path, records)
    assert digest == digest_file(path)
    assert path.read_bytes().endswith(b"\n")
    assert [decode_record(Rollout, line) for line in path.read_bytes().splitlines()] == records


def test_step_that_comes_out_differently_is_written_beside_the_first(tmp_path: Path) -> None:
    first = [each.record for each in play([solution(EPISODES[0])])]
    other = [each.record for each in play([["Antwort: 1"]])]
    path, beside = tmp_path / "step.jsonl", tmp_path / "step.jsonl.differs"
    digest = write_evidence(path, first)
    assert write_evidence(path, [each.record for each in play([solution(EPISODES[0])])]) == digest
    assert not beside.exists()
    assert write_evidence(path, other) == digest_file(beside) != digest
    assert digest_file(path) == digest


def test_empty_evidence_is_an_empty_file(tmp_path: Path) -> None:
    write_evidence(tmp_path / "none.jsonl", [])
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_outcomes_leave_out_rollouts_without_a_verdict_and_count_the_rest() -> None:
    scripts = [
        solution(EPISODES[0]),
        [lookup("nichts"), "<tool_call>x</tool_call>", "hm"],
        solution(EPISODES[2]),
        ["x" * 500],
    ]
    records = [each.record for each in play(scripts)]
    records[2] = records[2].model_copy(update={"score": None, "end": "fault"})
    solved, failed, capped = item_outcomes(records)
    assert [each.item for each in (solved, failed, capped)] == [EPISODES[number].id for number in (0, 1, 3)]
    assert (solved.success, solved.malformed, solved.capped) == (True, False, False)
    assert (failed.success, failed.tool_errors, failed.invalid_calls, failed.malformed) == (False, 1, 1, True)
    assert (capped.capped, capped.tokens_generated, capped.tokens_retained) == (True, 400, 400)
    assert (failed.tokens_generated, failed.tokens_retained) == (
        records[1].tokens_generated,
        records[1].tokens_retained,
    )
