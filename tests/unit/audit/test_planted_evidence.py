"""Forgeries whose digests are right, planted: the auditor finds each from the files alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest

from experiment.audit import evidence, recompute
from experiment.audit.case import Case
from experiment.audit.findings import Finding, Notes
from experiment.audit.steps import StepChecks
from tests.doubles.small_run import SmallRun
from tests.planted import Planted
from tests.unit.audit import test_recompute as forgeries

Json = Any
Story = Callable[[SmallRun], None]


def findings(story: SmallRun, id_: str) -> list[Finding]:
    """What the part of the audit that has the finding `id_` says: the part on steps, or the one on decisions."""
    case = Case(run_dir=story.run_dir, view=story.view(), plan=story.plan, notes=Notes())
    if id_ in {"R-EVIDENCE", "R-STEP"}:
        StepChecks(case, "recompute").check_all()
    else:
        recompute.recompute_all(case)
    return list(case.notes.report().findings)


def execute_a_cut_call(lines: list[Json]) -> None:
    turn = next(line for line in map(forgeries.rollout_of, lines) if line["turns"][0]["calls"])["turns"][0]
    turn["finish"] = "length"


def lose_a_bit(body: Json) -> None:
    body["steps"][1]["loss"] = math.nextafter(body["steps"][1]["loss"], 1.0)


def gain_a_bit(body: Json) -> None:
    body["facts"]["grad_norm"] = math.nextafter(body["facts"]["grad_norm"], 9.0)


def evidence_of_a_step(forgery: Callable[[list[Json]], None]) -> Story:
    return lambda story: forgeries.forge(story, "train.step", forgery)


def nothing(*_: object) -> None:
    """Check nothing."""


FORGERIES: dict[str, tuple[Story, str, Any, str, Any]] = {
    "sampled token is another one in the evidence": (
        evidence_of_a_step(forgeries.change_a_sampled_token),
        "R-EVIDENCE",
        evidence,
        "digest_bytes",
        lambda _: ANY,
    ),
    "call is left out of the evidence": (
        evidence_of_a_step(forgeries.hide_a_call),
        "R-EVIDENCE",
        evidence,
        "_check_calls",
        nothing,
    ),
    "call of a cut turn was executed, says the evidence": (
        evidence_of_a_step(execute_a_cut_call),
        "R-EVIDENCE",
        evidence,
        "_check_calls",
        nothing,
    ),
    "tokens are counted wrongly in the evidence": (
        evidence_of_a_step(forgeries.count_tokens_wrongly),
        "R-EVIDENCE",
        evidence,
        "_miscounted",
        lambda *_: [],
    ),
    "advantage is another one in the evidence": (
        evidence_of_a_step(forgeries.raise_an_advantage),
        "R-STEP",
        StepChecks,
        "_check_advantages",
        nothing,
    ),
    "branches differ by one bit and are said to be equal": (
        lambda story: forgeries.change(story, "qual.branch", lose_a_bit, number=2),
        "R-QUALIFY",
        recompute,
        "_recompute_qualification",
        lambda *_: True,
    ),
    "trained step is not the qualified one by one bit": (
        lambda story: forgeries.change(story, "train.step", gain_a_bit),
        "R-PREFIX",
        recompute,
        "_check_prefix",
        nothing,
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.planted(name)) for name in FORGERIES])
def test_a_planted_forgery_is_found_by_its_check(
    story: SmallRun, monkeypatch: pytest.MonkeyPatch, planted: Planted, name: str
) -> None:
    forge, id_, owner, check, silent = FORGERIES[name]
    assert findings(story, id_) == []
    forge(story)
    found = findings(story, id_)
    assert found[0].id == id_
    monkeypatch.setattr(owner, check, silent)
    others = findings(story, id_)
    assert found[0] not in others
    without = f"next found: {others[0].message}" if others else "this part of the audit passes"
    planted(found[0], place=found[0].place, without=without)
