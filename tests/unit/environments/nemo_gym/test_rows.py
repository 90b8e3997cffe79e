"""Rows of any NeMo Gym server as episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiment.environments.nemo_gym.rows import RowTasks
from experiment.errors import ServiceError, UsageError

TYPES = {
    "text": {"type": "string", "description": "A text"},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "maybe": {"type": ["string", "null"]},
    "choice": {"enum": ["a", "b"]},
    "whole": {"type": "integer"},
    "list": {"type": "array", "items": {"type": "integer"}},
    "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
}


def tool(name: str = "do", properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {}, "required": sorted(properties or {})}
    return {"type": "function", "name": name, "parameters": parameters, **more}


def row(number: int, *tools: dict[str, Any], given: Any = None) -> dict[str, Any]:
    prompt = given or [{"role": "developer", "content": "Sei kurz."}, {"role": "user", "content": f"Frage {number}"}]
    return {"responses_create_params": {"input": prompt, "tools": list(tools)}, "expected": number}


def tasks(path: Path, *rows: Any) -> RowTasks:
    path.write_text("\n".join(json.JSONEncoder().encode(each) for each in rows) + "\n")
    return RowTasks(path)


def test_rows_are_chosen_by_the_seed_and_keep_all_they_hold(tmp_path: Path) -> None:
    rows = [row(number, tool()) for number in range(12)]
    made = tasks(tmp_path / "rows", *rows)
    one = made.generate(prefix="train", count=6, seed=1, taken=frozenset())
    other = made.generate(prefix="dev", count=6, seed=2, taken=frozenset(each.content for each in one))
    assert sorted(made.row(each)["expected"] for each in (*one, *other)) == list(range(12))
    assert [made.row(each) for each in one] == [rows[made.row(each)["expected"]] for each in one]
    assert [message.role for message in one[0].messages] == ["system", "user"]
    assert one == made.generate(prefix="train", count=6, seed=1, taken=frozenset())
    assert one != made.generate(prefix="train", count=6, seed=2, taken=frozenset())
    with pytest.raises(UsageError, match="used up"):
        made.generate(prefix="e", count=13, seed=1, taken=frozenset())


def test_text_alone_is_a_question(tmp_path: Path) -> None:
    made = tasks(tmp_path / "rows", row(1, given="Wie viel?"))
    (episode,) = made.generate(prefix="e", count=1, seed=1, taken=frozenset())
    assert [message.model_dump() for message in episode.messages] == [{"role": "user", "content": "Wie viel?"}]
    assert made.tools == ()


@pytest.mark.parametrize(
    ("name", "text", "sent"),
    [
        ("text", "3", "3"),
        ("either", "3", "3"),
        ("maybe", "null", "null"),
        ("choice", "a", "a"),
        ("whole", "3", 3),
        ("whole", "drei", "drei"),
        ("whole", "NaN", "NaN"),
        ("whole", "9" * 5000, "9" * 5000),
        ("list", "[1, 2]", [1, 2]),
        ("list", "[" * 200 + "]" * 200, "[" * 200 + "]" * 200),
        ("list", "[" * 9000, "[" * 9000),
        ("flag", "true", True),
        ("flag", "null", None),
    ],
)
def test_values_are_what_the_schema_asks_for(tmp_path: Path, name: str, text: str, sent: object) -> None:
    made = tasks(tmp_path / "rows", row(1, tool(properties=TYPES)))
    assert made.arguments("do", {name: text}) == {name: sent}


def test_empty_text_leaves_out_what_is_not_required(tmp_path: Path) -> None:
    declared = tool(properties={"a": {"type": "string"}, "b": {"type": "integer"}})
    declared["parameters"]["required"] = ["a"]
    made = tasks(tmp_path / "rows", row(1, declared))
    assert made.arguments("do", {"a": "", "b": ""}) == {"a": ""}
    assert made.tools[0].parameters == (("a", "a"), ("b", "b (integer as JSON text, may be empty)"))


@pytest.mark.parametrize(
    ("reward", "success", "form"), [(1, True, 1.0), (1.5, True, 1.0), (0.99, False, 0.99), (-2.0, False, 0.0)]
)
def test_success_is_a_reward_of_at_least_one(tmp_path: Path, reward: float, success: bool, form: float) -> None:
    score = tasks(tmp_path / "rows", row(1)).read_score({"reward": reward}, "Fertig")
    assert (score.success, score.format, score.malformed_answer) == (success, form, False)


def test_verdict_without_a_reward_is_a_fault(tmp_path: Path) -> None:
    made = tasks(tmp_path / "rows", row(1))
    assert made.read_score({"reward": 1.0}, " \n").malformed_answer
    for verdict in ({}, {"reward": "1"}, {"reward": float("inf")}):
        with pytest.raises(ServiceError, match="no finite reward"):
            made.read_score(verdict, "Fertig")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "every line has to be"),
        ([[]], "every line has to be"),
        ([{"expected": 1}], "every line has to be"),
        ([row(1, tool("a")), row(2, tool("b"))], "line 2: declares other tools"),
        ([row(1, tool("verify"))], "tool 'verify' is no function"),
        ([row(1, tool("a/b"))], "tool 'a/b' is no function"),
        ([row(1, {"type": "web_search", "name": "web"})], "tool 'web' is no function"),
        ([row(1, {"type": "function"})], "a row cannot be played here"),
        ([row(1, tool(parameters={"type": "array"}))], "takes no object"),
        ([row(1, given=[{"role": "assistant", "content": "x"}])], "role 'assistant'"),
        ([row(1, given=[{"role": "user", "content": [{"type": "input_image"}]}])], "without plain text"),
        ([{**row(1), "expected": 2**60}], "can be frozen"),
    ],
)
def test_row_that_cannot_be_played_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tasks(tmp_path / "rows", *rows)


def test_file_that_is_no_jsonl_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("{}\n{")
    for path in (tmp_path / "rows", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="is no JSONL file"):
            RowTasks(path)


def test_rows_have_no_solver_and_know_their_own_episodes(tmp_path: Path) -> None:
    made = tasks(tmp_path / "rows", row(1, tool()))
    (episode,) = made.generate(prefix="e", count=1, seed=1, taken=frozenset())
    with pytest.raises(UsageError, match="no scripted solver"):
        made.solve(episode)
    with pytest.raises(UsageError, match="belongs to world"):
        made.row(episode.model_copy(update={"world": "german_tools"}))
    (probe,) = made.probes()
    assert (probe.turns, probe.success, made.families) == ((), None, ("rows",))
    assert made.read_log({}) is None
