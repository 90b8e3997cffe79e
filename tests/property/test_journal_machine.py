"""A journal lives through any order of appends, marks, kills, torn ends, clock steps and readers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from experiment.errors import LockedError, UsageError
from experiment.journal.reader import read_journal
from experiment.records.entry import StepFacts, TrainStep, Warned
from tests.doubles import second_verifier
from tests.doubles.small_journal import CLOSED, SetClock, note, resume, seal_checkpoint, start

if TYPE_CHECKING:
    from experiment.journal.chain import Entry

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


class JournalMachine(RuleBasedStateMachine):
    """The model is the list of acknowledged records; the journal must always say the same."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="journal-machine-"))
        self.run_dir = self.folder / "run"
        self.clock = SetClock(seconds=7200, mono_us=10**9)
        self.writer = start(self.run_dir, clock=self.clock)
        self.model: list[Entry] = list(self.writer.entries)
        self.torn = 0
        self.seals = 0
        self.is_live = True
        self.is_closed = False
        self.heads: list[tuple[int, str]] = []

    def _learn(self, *expected: str) -> None:
        """Take over what was acknowledged; a clock that went back adds one warning."""
        new = [entry for entry in self.writer.entries[len(self.model) :] if not _is_clock_warning(entry)]
        assert [entry.type for entry in new] == list(expected)
        assert self.writer.entries[: len(self.model)] == tuple(self.model)
        self.model = list(self.writer.entries)

    @precondition(lambda self: self.is_live)
    @rule(text=TEXT)
    def append(self, text: str) -> None:
        assert self.writer.append("warn", note(text)).body == note(text)
        self._learn("warn")

    @precondition(lambda self: self.is_live)
    @rule(number=NUMBER, name=TEXT)
    def append_numbers(self, number: float, name: str) -> None:
        facts = StepFacts(
            step=1, evidence="a" * 64, learning_rate=0.0, loss=number, grad_norm=None, metrics=((name, number),)
        )
        body = TrainStep(
            arm="grpo", facts=facts, families=(), ends=(), divergences=(), seconds=1.0, rollout_seconds=1.0
        )
        if number.is_integer() and 2.0**53 <= abs(number) < 1e21:
            # Such a number would be written as an integer that no reader accepts.
            with pytest.raises(ValueError, match="integer domain"):
                self.writer.append("train.step", body)
            self._learn()
        else:
            assert self.writer.append("train.step", body).body == body
            self._learn("train.step")

    @precondition(lambda self: self.is_live)
    @rule()
    def mark(self) -> None:
        run, size, digest = self.writer.mark().split()
        assert (run, int(size), digest) == ("small-journal", len(self.model), f"b3:{self.model[-1].hash}")
        self.heads.append((int(size), digest[3:]))

    @precondition(lambda self: self.is_live)
    @rule(record=st.booleans())
    def seal(self, record: bool) -> None:
        self.seals += 1
        body = seal_checkpoint(self.run_dir, self.seals)
        if record:
            self.writer.append("ckpt.sealed", body)
            self._learn("ckpt.sealed")

    @precondition(lambda self: self.is_live)
    @rule(seconds=st.integers(-3600, 3600))
    def step_the_wall_clock(self, seconds: int) -> None:
        self.clock.seconds = max(0, min(self.clock.seconds + seconds, 80_000))

    @precondition(lambda self: self.is_live)
    @rule()
    def open_a_second_writer(self) -> None:
        with pytest.raises(LockedError):
            resume(self.run_dir)

    @precondition(lambda self: self.is_live)
    @rule(tail=st.binary(max_size=40).map(lambda tail: tail.replace(b"\n", b"")), zeros=st.integers(0, 700))
    def kill(self, tail: bytes, zeros: int) -> None:
        self.writer._session.lock.forget()
        with max((self.run_dir / "journal").iterdir()).open("ab") as stream:
            stream.write(tail + bytes(zeros))
        self.torn += len(tail) + zeros
        self.is_live = False

    @precondition(lambda self: not self.is_live and not self.is_closed)
    @rule()
    def die_while_resuming(self) -> None:
        count = len(list((self.run_dir / "journal").iterdir()))
        (self.run_dir / "journal" / f"{count:06d}.jsonl").write_bytes(b'{"h":"')
        self.torn += 6

    @precondition(lambda self: not self.is_live and not self.is_closed)
    @rule(reboots=st.booleans())
    def go_on(self, reboots: bool) -> None:
        if reboots:
            self.clock = SetClock(seconds=self.clock.seconds, boot=f"boot-{len(self.model)}")
        self.writer = resume(self.run_dir, clock=self.clock)
        self._learn("resume")
        self.torn = 0
        self.is_live = True

    @precondition(lambda self: self.is_live and len(self.model) > 4)
    @rule()
    def close(self) -> None:
        self.writer.close(CLOSED)
        self._learn("close")
        self.is_live = False
        self.is_closed = True

    @precondition(lambda self: self.is_closed)
    @rule()
    def go_on_after_the_end(self) -> None:
        with pytest.raises(UsageError):
            resume(self.run_dir)

    @invariant()
    def a_reader_sees_the_model(self) -> None:
        view = read_journal(self.run_dir)
        assert list(view.entries) == self.model
        assert (view.torn_bytes, view.is_closed) == (self.torn, self.is_closed)
        assert all(view.entries[size - 1].hash == digest for size, digest in self.heads)
        assert second_verifier.verify(self.run_dir) == (len(self.model), self.model[-1].hash)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.writer._session.lock.forget()
            shutil.rmtree(self.folder)


def _is_clock_warning(entry: Entry) -> bool:
    return isinstance(entry.body, Warned) and entry.body.kind == "clock"


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    # Shrinking a story of file operations takes longer than reading it.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
