"""Values that implementations of JSON write in different ways: the stored bytes are hashed, never a second spelling."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiment.journal.chain import Artifact, envelope_type
from experiment.journal.reader import read_journal
from experiment.records.entry import FamilyRates, StepFacts, TrainStep
from experiment.sealing.canonical import decode, encode, encode_record
from experiment.sealing.digests import digest_bytes
from tests.doubles import second_verifier
from tests.doubles.small_journal import CLOSED, start

NUMBERS = {"ü": 1e-07, "\U0001f600": 1e6, "e\u0301": -0.0, "largest": 2.0**53 - 1, "sum": 0.1 + 0.2, "tiny": 5e-324}


def step(**changes: object) -> TrainStep:
    facts = StepFacts(
        step=1, evidence="a" * 64, learning_rate=1e-07, loss=1e6, grad_norm=-0.0, metrics=tuple(NUMBERS.items())
    )
    rates = FamilyRates(family="ü\U0001f600", rollouts=1, successes=2**53 - 1, groups=1, all_fail=0, all_pass=0)
    return TrainStep(
        arm="grpo",
        facts=facts.model_copy(update=changes),
        families=(rates,),
        ends=(),
        divergences=(),
        seconds=0.5,
        rollout_seconds=0.25,
    )


def write(run_dir: Path) -> Path:
    """A journal of three records, with an artifact whose keys need sorting; returns its only segment."""
    run_dir.mkdir()
    (run_dir / "state.json").write_bytes(encode(NUMBERS))
    size = (run_dir / "state.json").stat().st_size
    artifact = Artifact("state.json", digest_bytes((run_dir / "state.json").read_bytes()), size, "state")
    writer = start(run_dir)
    writer.append("train.step", step(), [artifact])
    writer.close(CLOSED)
    return run_dir / "journal/000000.jsonl"


def test_odd_values_are_read_back_as_themselves_and_verify(tmp_path: Path) -> None:
    write(tmp_path / "run")
    view = read_journal(tmp_path / "run")
    body = view.entries[1].body
    assert isinstance(body, TrainStep)
    assert [value.hex() for _, value in body.facts.metrics] == [
        "0x0.0p+0" if value == 0 else value.hex() for value in NUMBERS.values()
    ]
    assert (body.facts.learning_rate, body.facts.loss, body.families[0].successes) == (1e-07, 1e6, 2**53 - 1)
    assert second_verifier.verify(tmp_path / "run") == (3, view.head)
    assert decode((tmp_path / "run/state.json").read_bytes()) == NUMBERS


def test_a_record_has_the_same_bytes_after_it_was_read_and_written_again(tmp_path: Path) -> None:
    line = write(tmp_path / "run").read_bytes().splitlines()[1]
    raw = line[76:-1]
    assert encode_record(envelope_type(TrainStep).model_validate_json(raw)) == raw
    # A verifier that wrote what it read would refuse this true record.
    again = json.dumps(json.loads(raw), ensure_ascii=False, sort_keys=True, separators=(",", ":"))  # noqa: TID251
    assert again.encode() != raw


@pytest.mark.parametrize("number", [2**53 + 1, 2**53])
def test_a_whole_number_that_json_does_not_carry_exactly_never_reaches_a_journal(tmp_path: Path, number: int) -> None:
    with pytest.raises(ValidationError):
        FamilyRates(family="a", rollouts=1, successes=number, groups=1, all_fail=0, all_pass=0)
    writer = start(tmp_path)
    with pytest.raises(ValueError, match="integer domain"):
        writer.append("train.step", step(loss=float(number)))
    writer.release()
    assert len(read_journal(tmp_path).entries) == 1


READ = """
import json, sys
rows = [json.loads(line[76:-1]) for line in open(sys.argv[1], "rb").read().splitlines()]
state = json.loads(open(sys.argv[2], "rb").read())
print(ascii([sys.version_info[1], rows, [[name, float(value).hex()] for name, value in state.items()]]))
"""


def other_python() -> tuple[str, dict[str, str]]:
    """An interpreter of another version on this machine, with the environment that it needs."""
    for minor in range(15, 8, -1):
        found = shutil.which(f"python3.{minor}")
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment["PYENV_VERSION"] = f"3.{minor}"  # what stands in the search path may only be a launcher
        command = [found or "", "-c", "import sys; print(sys.version_info[1])"]
        if found is None or minor == sys.version_info.minor:
            continue
        if subprocess.run(command, env=environment, capture_output=True, check=False).stdout == f"{minor}\n".encode():
            return found, environment
    pytest.skip("this machine has no Python of another version")


def test_another_version_of_python_reads_the_same_values_from_the_same_bytes(tmp_path: Path) -> None:
    interpreter, environment = other_python()
    segment = write(tmp_path / "run")
    command = [interpreter, "-I", "-c", READ, str(segment), str(tmp_path / "run/state.json")]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    here = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True).stdout
    assert there.partition(",")[2] == here.partition(",")[2] != ""
    assert there != here
