"""The kill campaign's own rules: what is drawn, and how far a session may get before its blow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fault.kill_moments import STAGES, Blow, Means, Moment, Tail, Watch, draw_deck, stage_of

PLANNED = Counter({"qual.branch": 6, "qual.result": 2, "train.step": 4, "dev.result": 6, "select.decision": 2})
QUALIFIED = ["genesis", "inputs.verified", *6 * ["qual.branch"], "qual.result", "qual.result"]
TRAINED = [*QUALIFIED, *4 * ["train.step"], "train.stop", "train.stop"]


class Journal:
    """A journal that holds nothing but types."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.segment = run_dir / "journal/000000.jsonl"
        self.segment.parent.mkdir()

    def add(self, *types: str) -> None:
        with self.segment.open("ab") as stream:
            stream.writelines(b'{"h":"00","r":{"type":"%s","v":1}}\n' % each.encode() for each in types)

    def watch(self, stage: str) -> Watch:
        return Watch(self.run_dir, Tail(self.segment.parent), PLANNED, stage)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def _blow(moment: Moment, *, when: float = 0.0, which: float = 0.0) -> Blow:
    return Blow(moment, Means.KILL, when, which)


def test_every_stage_is_dealt_every_means_and_no_start_is_dealt_a_dead_worker() -> None:
    for stage in STAGES:
        deck = draw_deck(7, stage)
        assert {each.means for each in deck} == set(Means)
        assert Counter(each.means for each in deck).most_common(1)[0][0] is Means.KILL
        assert not any(each.means is Means.WORKER and each.moment is Moment.STARTING for each in deck)
        assert deck == draw_deck(7, stage) != draw_deck(8, stage)
    assert sum(len(draw_deck(7, stage)) for stage in STAGES) in range(30, 46)


def test_stages_end_with_the_last_record_of_their_last_arm() -> None:
    assert stage_of([], 2) == stage_of(QUALIFIED[:-1], 2) == "qualify"
    assert stage_of(QUALIFIED, 2) == stage_of(TRAINED[:-1], 2) == "train"
    assert stage_of(TRAINED, 2) == "select"
    assert stage_of([*TRAINED, "select.decision", "select.decision"], 2) == "assess"


def test_half_a_record_does_not_count_until_it_is_whole(journal: Journal) -> None:
    tail = Tail(journal.segment.parent)
    journal.add("genesis")
    line = b'{"h":"00","r":{"type":"warn","v":1}}\n'
    with journal.segment.open("ab") as stream:
        stream.write(line[:30])
        stream.flush()
        assert tail.read() == ["genesis"]
        stream.write(line[30:])
    assert tail.read() == ["genesis", "warn"]


def test_a_blow_waits_for_its_stage_and_for_what_its_moment_needs(journal: Journal) -> None:
    journal.add(*TRAINED[:-1])
    watch = journal.watch("select")
    assert not watch.is_due(_blow(Moment.RECORDING), 1)
    journal.add(TRAINED[-1])
    assert not watch.is_due(_blow(Moment.RECORDING), 1)
    journal.add("dev.result")
    assert watch.is_due(_blow(Moment.RECORDING), 1)
    assert watch.stage == "select"


def test_a_checkpoint_that_is_being_saved_is_seen(journal: Journal, tmp_path: Path) -> None:
    journal.add(*QUALIFIED)
    watch = journal.watch("train")
    assert not watch.is_due(_blow(Moment.SAVING), 1)
    part = tmp_path / "work/train-grpo/checkpoint-3/optimizer.pt"
    part.parent.mkdir(parents=True)
    part.touch()
    assert watch.is_due(_blow(Moment.SAVING), 1)


def test_a_session_gets_no_further_than_its_share_however_long_its_blow_is_delayed(journal: Journal) -> None:
    journal.add(*TRAINED)
    watch = journal.watch("select")
    blow = _blow(Moment.WORKING, when=0.999)
    added = 0
    while not watch.is_due(blow, 2):
        journal.add("dev.result")
        added += 1
    assert added == 3  # six facts, two of them kept back, for two blows: two each, and it falls at the third
    assert stage_of(Tail(journal.segment.parent).read(), 2) == "select"


@pytest.mark.parametrize(("left", "moment"), [(2, Moment.LOADING), (1, Moment.STARTING)])
def test_the_last_facts_of_a_stage_are_not_left_to_chance(journal: Journal, left: int, moment: Moment) -> None:
    journal.add(*TRAINED, *(6 - left) * ["dev.result"])
    watch = journal.watch("select")
    assert watch.is_due(_blow(Moment.WORKING), 1) == (moment is Moment.STARTING)
    assert watch.moment is moment
