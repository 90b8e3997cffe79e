"""Journals whose order is right and whose numbers do not follow from the evidence, or whose evidence is forged."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from experiment.audit.case import Case
from experiment.audit.evaluations import check_evaluations
from experiment.audit.findings import Notes
from experiment.audit.recompute import recompute_all
from experiment.audit.steps import StepChecks
from experiment.decisions.selection import DevResult, decide
from experiment.records.entry import EvaluationFinished
from experiment.records.recipe import Arm, Checkpoints
from experiment.sealing.arrays import decode_array, encode_array
from experiment.sealing.canonical import decode, encode
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run

Json = Any


PARTS: dict[str, Callable[[Case], None]] = {
    "steps": lambda case: StepChecks(case, "recompute").check_all(),
    "evaluations": lambda case: check_evaluations(case, "recompute"),
    "decisions": recompute_all,
}


def audit(story: SmallRun, *parts: str) -> set[str]:
    """Identifiers of what the named parts find; all of them by default."""
    case = Case(run_dir=story.run_dir, view=story.view(), plan=story.plan, notes=Notes())
    for part in parts or PARTS:
        PARTS[part](case)
    return {finding.id for finding in case.notes.report().findings}


def change(story: SmallRun, type_: str, edit: Callable[[Json], None], number: int = 0) -> None:
    """Edit the n-th record of a type as JSON."""
    index = story.position(type_, number)
    kind, body, artifacts = story.records[index]
    document = body.model_dump(mode="json")
    edit(document)
    story.records[index] = (kind, type(body).model_validate_json(encode(document)), artifacts)


def forge(story: SmallRun, type_: str, edit: Callable[[list[Json]], None], number: int = 0) -> None:
    """Edit the evidence of the n-th record of a type, and let the record name the forged file."""
    index = story.position(type_, number)
    artifacts = story.records[index][2]
    lines = [decode(line) for line in (story.run_dir / artifacts[0].path).read_bytes().splitlines()]
    edit(lines)
    data = b"".join(encode(line) + b"\n" for line in lines)
    swap_file(story, index, data)


def swap_file(story: SmallRun, index: int, data: bytes) -> None:
    kind, body, _ = story.records[index]
    folder = story.run_dir / "forged"
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir())):06d}.jsonl"
    path.write_bytes(data)
    artifact = story.artifact(path.relative_to(story.run_dir).as_posix(), "evidence")
    document = body.model_dump(mode="json")
    document.get("facts", document)["evidence"] = artifact.b3
    story.records[index] = (kind, type(body).model_validate_json(encode(document)), (artifact,))


def first(lines: list[Json]) -> Json:
    """The rollout of a line, wherever it is."""
    return lines[0].get("rollout") if isinstance(lines[0].get("rollout"), dict) else lines[0]


def test_true_numbers_have_no_finding(story: SmallRun) -> None:
    assert audit(story) == set()


def test_an_outcome_that_its_rollout_does_not_have_is_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["outcomes"][0]["success"] = not body["outcomes"][0]["success"]

    change(story, "final.result", cheat)

    assert audit(story, "evaluations") >= {"R-OUTCOME"}


@pytest.mark.parametrize("field", ["tool_errors", "invalid_calls", "tokens_generated", "tokens_retained"])
def test_a_count_that_its_rollout_does_not_have_is_found(story: SmallRun, field: str) -> None:
    def cheat(body: Json) -> None:
        body["outcomes"][0][field] += 1

    change(story, "dev.result", cheat)

    assert "R-OUTCOME" in audit(story, "evaluations")


@pytest.mark.parametrize("bound", ["low", "high"])
def test_an_interval_that_is_one_ulp_off_is_found(story: SmallRun, bound: str) -> None:
    def cheat(body: Json) -> None:
        interval = body["comparisons"][0]["interval"]
        interval[bound] = math.nextafter(interval[bound], 2.0)

    change(story, "stats.result", cheat)

    assert audit(story, "decisions") == {"R-COMPARE"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("wins", 99), ("difference", 0.75), ("promoted", None), ("sign_test_p", 0.001), ("seeds", [11]), ("before", 0.0)],
)
def test_any_number_of_a_comparison_is_computed_again(story: SmallRun, field: str, value: Any) -> None:
    def cheat(body: Json) -> None:
        found = body["comparisons"][0]
        found[field] = (not found[field]) if value is None else value

    change(story, "stats.result", cheat)

    assert audit(story, "decisions") == {"R-COMPARE"}


def test_a_comparison_left_out_is_found(story: SmallRun) -> None:
    change(story, "stats.result", lambda body: body["comparisons"].pop())

    assert audit(story, "decisions") == {"P-COMPARE"}


def test_another_selection_than_the_rule_makes_is_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        verdict = body["verdict"]
        verdict["selected_step"] = None if verdict["selected_step"] else 1

    change(story, "select.decision", cheat)

    assert "R-SELECT" in audit(story, "decisions")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A run whose candidates 1, 2 and 3 have equal DEV results."""
    marks = Checkpoints(recovery_every=1, candidates=(1, 2, 3), diagnostic=3)
    recipe = small_recipe(steps=3, final=3, arms=(Arm(name="grpo", algorithm="grpo"),))
    run = draft_run(tmp_path_factory.mktemp("tied"), recipe=recipe.model_copy(update={"checkpoints": marks}))
    results = [index for index, record in enumerate(run.records) if record[0] == "dev.result"]
    best = {body.key.suite: body.outcomes for body in (run.records[index][1] for index in results)}
    for index in results:
        body: Any = run.records[index][1]
        if body.key.step:
            won = tuple(each.model_copy(update={"success": True, "tool_errors": 1}) for each in best[body.key.suite])
            run.replace(index, outcomes=won)
    return run


@pytest.mark.parametrize("errors", [(1, 1, 1), (3, 1, 2)], ids=["all equal", "tool errors differ"])
def test_ties_are_settled_by_the_rule_in_whatever_order_results_lie_there(
    tied: SmallRun, errors: tuple[int, int, int]
) -> None:
    """The rule: successes, then fewer tool errors, then the earlier step."""
    story = tied.copy()
    positions: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for index, (type_, body, _) in enumerate(story.records):
        if type_ == "dev.result" and body.key.step:
            positions[body.key.step].append(index)
    for step, indices in positions.items():
        for index in indices:
            first, *rest = story.records[index][1].outcomes
            story.replace(index, outcomes=(first.model_copy(update={"tool_errors": errors[step - 1]}), *rest))
    bodies = [body for _, body, _ in story.records if isinstance(body, EvaluationFinished)]
    found = {(body.key.step, body.key.suite): body.outcomes for body in bodies if body.key.stage == "dev"}
    dev = [DevResult(step, found[step, "agent"], found[step, "retention"]) for step in range(4)]
    expected = decide("grpo", dev[0], dev[1:], 3)
    assert [score.step for score in expected.candidates] == ([1, 2, 3] if len(set(errors)) == 1 else [2, 3, 1])
    story.replace(story.position("select.decision"), verdict=expected)
    slots = sorted(index for indices in positions.values() for index in indices)
    for order in permutations((1, 2, 3)):
        shuffled = story.copy()
        moved = [story.records[index] for step in order for index in positions[step]]
        for slot, record in zip(slots, moved, strict=True):
            shuffled.records[slot] = record
        assert "R-SELECT" not in audit(shuffled, "decisions"), order


def test_a_forged_dev_score_is_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["verdict"]["baseline"]["successes"] += 1

    change(story, "select.decision", cheat)

    assert audit(story, "decisions") == {"R-SELECT"}


def test_a_passed_verdict_on_unequal_branches_is_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["steps"][1]["loss"] = math.nextafter(body["steps"][1]["loss"], 1.0)

    change(story, "qual.branch", cheat, number=2)

    assert audit(story, "decisions") == {"R-QUALIFY"}


def test_a_training_that_is_not_the_qualified_one_is_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["facts"]["grad_norm"] = math.nextafter(body["facts"]["grad_norm"], 9.0)

    change(story, "train.step", cheat)

    assert audit(story, "decisions") == {"R-PREFIX"}


@pytest.mark.parametrize("metric", ["reward", "strict", "rollouts", "sampled_tokens", "observation_tokens"])
def test_a_metric_that_does_not_follow_from_the_rollouts_is_found(story: SmallRun, metric: str) -> None:
    def cheat(body: Json) -> None:
        body["facts"]["metrics"] = [[n, v + 1 if n == metric else v] for n, v in body["facts"]["metrics"]]

    change(story, "train.step", cheat)

    assert "R-STEP" in audit(story, "steps")


@pytest.mark.parametrize("field", ["families", "ends"])
def test_rates_and_ends_follow_from_the_rollouts(story: SmallRun, field: str) -> None:
    def cheat(body: Json) -> None:
        if field == "ends":
            body["ends"][0][1] += 1
        else:
            body["families"][0]["all_fail"] = body["families"][0]["groups"] - body["families"][0]["all_fail"]

    change(story, "train.step", cheat)

    assert "R-STEP" in audit(story, "steps")


def flip_success(lines: list[Json]) -> None:
    first(lines)["score"]["success"] = not first(lines)["score"]["success"]


def change_a_sampled_token(lines: list[Json]) -> None:
    turn = next(line for line in map(rollout_of, lines) if len(line["turns"]) > 1)["turns"][0]
    ids = np.array(decode_array(turn["sampled_ids"], "int32"))
    ids[0] += 1
    turn["sampled_ids"] = encode_array(ids)


def change_what_was_observed(lines: list[Json]) -> None:
    turn = next(line for line in map(rollout_of, lines) if len(line["turns"]) > 1)["turns"][0]
    turn["observation_ids"] = encode_array(np.array(decode_array(turn["observation_ids"], "int32"))[::-1].copy())
    turn["observation_ids"] = encode_array(
        np.arange(1, 1 + len(decode_array(turn["observation_ids"], "int32")), dtype=np.int32)
    )


def drop_a_logprob(lines: list[Json]) -> None:
    turn = first(lines)["turns"][0]
    turn["sampled_logprobs"] = encode_array(np.array(decode_array(turn["sampled_logprobs"], "float32"))[1:])


def hide_a_call(lines: list[Json]) -> None:
    turn = next(line for line in map(rollout_of, lines) if line["turns"][0]["calls"])["turns"][0]
    turn["calls"] = []


def rename_a_call(lines: list[Json]) -> None:
    turn = next(line for line in map(rollout_of, lines) if line["turns"][0]["calls"])["turns"][0]
    turn["calls"][0]["name"] = "anderes"


def count_tokens_wrongly(lines: list[Json]) -> None:
    first(lines)["tokens_retained"] += 1


def count_errors_wrongly(lines: list[Json]) -> None:
    first(lines)["tool_errors"] += 1


def claim_another_end(lines: list[Json]) -> None:
    first(lines)["end"] = "turn_limit"


def lose_the_score(lines: list[Json]) -> None:
    first(lines)["score"] = None


def rollout_of(line: Json) -> Json:
    return line["rollout"] if isinstance(line.get("rollout"), dict) else line


FORGERIES: tuple[Callable[[list[Json]], None], ...] = (
    flip_success,
    change_a_sampled_token,
    change_what_was_observed,
    drop_a_logprob,
    hide_a_call,
    rename_a_call,
    count_tokens_wrongly,
    count_errors_wrongly,
    claim_another_end,
    lose_the_score,
)


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("type_", ["train.step", "final.result"])
def test_a_forged_rollout_is_found(story: SmallRun, type_: str, forgery: Callable[[list[Json]], None]) -> None:
    forge(story, type_, forgery)

    assert audit(story, "steps" if type_ == "train.step" else "evaluations") & {"R-EVIDENCE", "R-OUTCOME", "R-STEP"}


MERGE_LIES: tuple[tuple[str, Any], ...] = (
    ("base", "0" * 64),
    ("adapter", "0" * 64),
    ("strays", 1),
    ("changed", 0),
)


@pytest.mark.parametrize(("field", "value"), MERGE_LIES)
def test_weights_that_are_not_baseline_and_sealed_adapter_are_found(story: SmallRun, field: str, value: Any) -> None:
    assessed: Any = story.records[story.position("final.result", 4)][1]

    def cheat(body: Json) -> None:
        body["facts"][field] = value

    steps = [record[1].step for record in story.records if record[0] == "merge.result"]  # type: ignore[attr-defined]
    change(story, "merge.result", cheat, steps.index(assessed.key.step))

    assert audit(story, "decisions") == {"R-MERGE"}


def test_an_adapter_without_effect_is_a_result_like_any_other_until_it_is_assessed(story: SmallRun) -> None:
    assessed = {record[1].key.step for record in story.records if record[0] == "final.result"}  # type: ignore[attr-defined]
    steps = [record[1].step for record in story.records if record[0] == "merge.result"]  # type: ignore[attr-defined]
    number = next(index for index, step in enumerate(steps) if step not in assessed)

    def weaken(body: Json) -> None:
        body["facts"]["changed"] = 0

    change(story, "merge.result", weaken, number)

    assert audit(story, "decisions") == set()


def test_a_state_that_was_sealed_on_other_base_weights_is_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["state"] = [each for each in body["state"] if each[0] != "reference"]

    change(story, "ckpt.sealed", cheat)

    assert audit(story, "decisions") == {"R-PREFIX"}


def test_samples_that_nobody_played_are_found(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["samples"] = "0" * 64

    change(story, "samples.exported", cheat)

    assert audit(story, "decisions") == {"R-SAMPLES"}


def test_divergences_are_counted_again(story: SmallRun) -> None:
    def cheat(body: Json) -> None:
        body["divergences"] = [["forged_response", 1]]

    change(story, "train.step", cheat)

    assert audit(story, "steps") == {"R-STEP"}


def learn_a_sampled_token(lines: list[Json]) -> None:
    mask = np.array(decode_array(lines[0]["observation_mask"], "uint8"))
    mask[0] = 1
    lines[0]["observation_mask"] = encode_array(mask)


def raise_an_advantage(lines: list[Json]) -> None:
    lines[0]["advantage"] = encode_array(np.asarray([3.0], dtype=np.float32))


def raise_a_reward(lines: list[Json]) -> None:
    lines[0]["reward"] += 0.25


def widen_a_gap(lines: list[Json]) -> None:
    scored = np.array(decode_array(lines[0]["trainer_logprobs"], "float32"))
    scored[0] -= 11.0
    lines[0]["trainer_logprobs"] = encode_array(scored)


def shorten_the_scores(lines: list[Json]) -> None:
    lines[0]["trainer_logprobs"] = encode_array(np.array(decode_array(lines[0]["trainer_logprobs"], "float32"))[1:])


@pytest.mark.parametrize(
    ("forgery", "expected"),
    [
        (learn_a_sampled_token, "R-EVIDENCE"),
        (shorten_the_scores, "R-EVIDENCE"),
        (raise_an_advantage, "R-STEP"),
        (raise_a_reward, "R-STEP"),
        (widen_a_gap, "R-STEP"),
    ],
)
def test_a_forged_training_row_is_found(story: SmallRun, forgery: Callable[[list[Json]], None], expected: str) -> None:
    forge(story, "train.step", forgery)

    assert expected in audit(story, "steps")


@pytest.mark.parametrize(
    "data",
    [b"", b"{}\n", b'{"a":1,"a":1}\n', b"not json\n", b"\xff\n", b'{"schema_version": 1}\n', b"{}"],
    ids=["empty", "no rollout", "duplicate key", "no json", "no utf-8", "not canonical", "no line end"],
)
def test_evidence_that_cannot_be_read_is_a_finding_and_no_crash(story: SmallRun, data: bytes) -> None:
    swap_file(story, story.position("final.result"), data)

    assert audit(story, "evaluations") & {"R-EVIDENCE", "R-OUTCOME"}


def test_evidence_that_no_artifact_vouches_for_is_a_finding(story: SmallRun) -> None:
    index = story.position("final.result")
    kind, body, _ = story.records[index]
    story.records[index] = (kind, body, ())

    assert audit(story, "evaluations") == {"R-EVIDENCE"}
