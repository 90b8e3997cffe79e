"""A worker without a model: speaks the protocol of `records/job.py` and plays back a script (`stand_in_run.py`).

It imports nothing of the package, so that a run of a dozen workers takes a second or two. `STAND_IN_SCRIPT` is the
script's folder, `STAND_IN_PACE` the seconds that a step or an evaluation takes, and `STAND_IN_FAULT` what goes wrong
where, for example `exit@train/grpo/3`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT = Path(os.environ["STAND_IN_SCRIPT"])
PACE_S = float(os.environ.get("STAND_IN_PACE", "0"))
FAULT, _, FAULT_PLACE = os.environ.get("STAND_IN_FAULT", "").partition("@")
STOPPED, MISUSED = 130, 64
ENDS = {"exit": 1, "vanish": 0}
WORDS = {
    "half": b"",
    "garbage": b"\xff loading weights: 100 %\n",
    "stranger": b'{"body":{},"event":"Rumour"}\n',
    "astray": b'{"body":{"number":7},"event":"TaskStarted"}\n',
}
CHANGES = {
    "differ": (b'["rollouts",6]', b'["rollouts",7]'),
    "rate": (b'"learning_rate":', b'"learning_rate":-'),
    "corrupt": (b'["corrupted_rollouts",0]', b'["corrupted_rollouts",1]'),
    "stray": (b'"strays":0', b'"strays":1'),
    "idle": (b'"changed":900', b'"changed":0'),
    "nan": (b'"not_finite":[]', b'"not_finite":["loss"]'),
}

EVALUATION_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "lose": lambda line: re.sub(rb'"outcomes":\[\{.*?\},', b'"outcomes":[', line, count=1),
    "double": lambda line: re.sub(rb'"outcomes":\[(\{.*?\},)', rb'"outcomes":[\1\1', line, count=1),
    "other": lambda line: line.replace(b'"seed":', b'"seed":7'),
}

_stop_requested = False


def _note(signum: int, frame: object) -> None:
    global _stop_requested  # noqa: PLW0603 - a signal handler has nowhere else to write
    _stop_requested = True


def _send(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _emit(event: str, **body: Any) -> None:
    """Send an event of whole numbers and plain strings; what holds fractions comes from the script."""
    text = json.dumps({"body": body, "event": event}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)  # noqa: TID251
    _send(text.encode())


def _wait_for_stop() -> None:
    deadline = time.monotonic() + 60
    while not _stop_requested and time.monotonic() < deadline:
        time.sleep(0.005)


def _misbehave(place: str, line: bytes) -> None:
    if place != FAULT_PLACE:
        return
    if FAULT == "wait":
        _wait_for_stop()
    if FAULT in ENDS:
        sys.exit(ENDS[FAULT])
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "report":
        _emit("Failed", error="AlignmentError", message="sampled ids and mask disagree")
        sys.exit(70)
    if FAULT in WORDS:
        sys.stdout.buffer.write(WORDS[FAULT] or line[: len(line) // 2])
        sys.stdout.buffer.flush()
        if FAULT == "half":
            sys.exit(0)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(source, partial)
    partial.replace(target)


def _copy_tree(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent.parent / f".{target.name}-{os.getpid()}"
    shutil.copytree(source, partial)
    partial.rename(target)


def _first_step(job: dict[str, Any]) -> int:
    if job["resume_from"] is None:
        return 1
    arm, _, step = (Path(job["resume_from"]) / "adapter.bin").read_text().partition(" ")
    if arm != job["arm"]:
        sys.exit(MISUSED)
    return int(step) + 1


def _train(job: dict[str, Any]) -> int:
    arm, first = job["arm"], _first_step(job)
    if first > job["stop_at"]:
        return MISUSED  # a trainer would make a step too many
    stage = "qualify" if "/qualification/" in job["evidence_dir"] else "train"
    marks = json.loads((SCRIPT / "marks.json").read_text())
    step = first - 1
    for step in range(first, job["stop_at"] + 1):
        time.sleep(PACE_S)
        evidence = Path(job["evidence_dir"]) / f"step-{step:06d}.jsonl"
        _copy_file(SCRIPT / "evidence/train" / arm / evidence.name, evidence)
        line = (SCRIPT / "events" / arm / f"step-{step:06d}").read_bytes()
        place = f"{stage}/{arm}/{step}"
        _misbehave(place, line)
        if place == FAULT_PLACE:
            line = line.replace(*CHANGES.get(FAULT, (line, line)))
            line = re.sub(rb'"loss":[^,]+', b'"loss":null', line) if FAULT == "nan" else line
        _send(line.replace(b"@EVIDENCE@", str(evidence).encode()))
        if step in marks or step == job["stop_at"] or _stop_requested:
            checkpoint = Path(job["checkpoint_dir"]) / f"step-{step:06d}"
            _copy_tree(SCRIPT / "checkpoints" / arm / checkpoint.name, checkpoint)
            line = (SCRIPT / "events" / arm / f"checkpoint-{step:06d}").read_bytes()
            if FAULT == "moved" and place == FAULT_PLACE:
                line = line.replace(b'["reference","', b'["other","')
            _send(line.replace(b"@CHECKPOINT@", str(checkpoint).encode()))
        if _stop_requested or (FAULT == "short" and place == FAULT_PLACE):
            break
    line = (SCRIPT / "events" / arm / f"done-{step:06d}").read_bytes()
    if FAULT == "lie" and f"{stage}/{arm}/{Path(job['evidence_dir']).parent.name}" == FAULT_PLACE:
        start = line.index(b'["adapter","') + len(b'["adapter","')
        line = line[:start] + b"0" * 64 + line[start + 64 :]
    _send(line)
    return 0


def _evaluate(job: dict[str, Any]) -> int:
    merged = None
    for key in (key for policy in job["policies"] for key in policy["keys"]):
        if key["step"] and merged != (key["arm"], key["step"]):
            merged = (key["arm"], key["step"])
            line = (SCRIPT / "events" / key["arm"] / f"merge-{key['step']:06d}").read_bytes()
            if f"{key['stage']}/{key['arm']}@{key['step']}" == FAULT_PLACE:
                line = line.replace(*CHANGES.get(FAULT, (line, line)))
            _send(line)
        if _stop_requested:
            _emit("Failed", error="StoppedError", message="asked to stop")
            return STOPPED
        time.sleep(PACE_S)
        place = f"{key['arm']}@{key['step']}/{key['suite']}-{key['seed']}"
        evidence = Path(job["evidence_dir"]) / f"{place}.jsonl"
        _copy_file(SCRIPT / "evidence" / key["stage"] / f"{place}.jsonl", evidence)
        line = (SCRIPT / "events" / key["stage"] / place).read_bytes()
        _misbehave(f"{key['stage']}/{place}", line)
        if FAULT in EVALUATION_CHANGES and f"{key['stage']}/{place}" == FAULT_PLACE:
            line = EVALUATION_CHANGES[FAULT](line)
        _send(line.replace(b"@EVIDENCE@", str(evidence).encode()))
    return 0


def _make_starter(job: dict[str, Any]) -> int:
    """A policy that nothing can be sampled from, but that a plan can be prepared on."""
    template = Path(__file__).resolve().parents[2] / "experiment/training/chat_template.jinja"
    shutil.copyfile(template, Path(job["output_dir"]) / template.name)
    families = [
        {"family": family, "episodes": 8, "successes": 3} for family in (*job["recipe"]["world"]["families"], "maths")
    ]
    _emit("StarterDone", families=families[:-1], retention=families[-1])
    return 0


def main() -> int:
    """Do the job like a worker would; the exit code tells how it ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _note)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return MISUSED
    code = 0
    for number, task in enumerate(json.loads(Path(sys.argv[1]).read_bytes())["tasks"]):
        if code or _stop_requested:
            break
        _emit("TaskStarted", number=number)
        _send((SCRIPT / "events" / "ready").read_bytes())
        _emit("Progressed", label="", done=0, total=1)
        code = {"train": _train, "evaluate": _evaluate, "starter": _make_starter}[task["kind"]](task)
    return code


if __name__ == "__main__":
    sys.exit(main())
