"""The maths suite: generated questions, files of questions, verifier."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiment.environments.base import Environment
from experiment.environments.math_qa.environment import MathQA, load_mgsm
from experiment.environments.math_qa.questions import question_space
from experiment.errors import FaultError, UsageError
from experiment.records.rollout import Score
from experiment.sealing.canonical import encode

WORLD: Environment = MathQA()


def test_solver_solves_every_question_and_silence_or_claims_solve_none() -> None:
    for episode in WORLD.generate(prefix="m", count=500, seed=3, taken=frozenset()):
        (turn,) = WORLD.solve(episode)
        assert turn.calls == ()
        assert WORLD.open(episode).verify(turn.text) == Score(success=True, format=1.0, malformed_answer=False)
        for text in ("", "Die Aufgabe ist gelöst."):
            assert WORLD.open(episode).verify(text) == Score(success=False, format=0.0, malformed_answer=True)


def test_answers_follow_from_the_prompt_and_lie_between_0_and_20() -> None:
    episodes = WORLD.generate(prefix="m", count=400, seed=3, taken=frozenset())
    assert [episode.family for episode in episodes[:4]] == ["plus", "minus", "plus", "minus"]
    for episode in episodes:
        a, b = (int(digits) for digits in re.findall(r"\d+", episode.messages[1].content))
        answer = int(json.loads(episode.task_json)["answer"])
        assert answer == (a + b if episode.family == "plus" else a - b)
        assert 0 <= answer <= 20
        assert len(episode.messages[1].content) <= 80


@pytest.mark.parametrize("family", ["plus", "minus"])
def test_each_family_has_at_least_300_distinct_questions(family: str) -> None:
    space = question_space(family)
    drafts = [space.draft(number, 0) for number in range(space.size)]
    assert len({draft.messages[1].content for draft in drafts}) == space.size >= 300


@pytest.mark.parametrize(
    ("text", "success", "malformed"),
    [
        ("Antwort: 7", True, False),
        ("Antwort: 7,0", True, False),
        ("3 und 4 sind 7.\nAntwort: 7\n", True, False),
        ("Antwort: 8", False, False),
        ("Antwort: 7\nAntwort: 8", False, False),
        ("Antwort: 8\nAntwort: 7", True, False),
        ("7", False, True),
        ("Es sind 7. Antwort: 7", False, True),
        ("Antwort: 7\nFertig", False, True),
        ("Antwort: 7.", False, True),
    ],
)
def test_last_line_holds_the_exact_number(tmp_path: Path, text: str, success: bool, malformed: bool) -> None:
    (episode,) = load(tmp_path, '{"question":"Was ist 3 plus 4?","answer_number":7}')
    score = WORLD.open(episode).verify(text)
    assert (score.success, score.malformed_answer) == (success, malformed)
    assert score.format == (1.0 if success else 0.0 if malformed else 0.5)


def test_world_has_no_tools_and_a_call_is_a_fault() -> None:
    (episode,) = WORLD.generate(prefix="m", count=1, seed=3, taken=frozenset())
    session = WORLD.open(episode)
    assert WORLD.tools == ()
    with pytest.raises(FaultError, match="'rechne'"):
        session.call("rechne", {"a": "1"})
    assert session.native_calls() == ()


def test_foreign_episode_is_refused() -> None:
    (episode,) = WORLD.generate(prefix="m", count=1, seed=3, taken=frozenset())
    with pytest.raises(UsageError, match="'m-0000' belongs to world german_tools"):
        WORLD.open(episode.model_copy(update={"world": "german_tools"}))
    for task in ("", "{}", "[]", '{"answer":7}', '{"answer":"1,234"}'):
        with pytest.raises(UsageError, match="'m-0000': task has no readable answer"):
            WORLD.open(episode.model_copy(update={"task_json": task}))


# --- files


def load(folder: Path, *lines: str | bytes, end: bytes = b"\n"):
    path = folder / "questions.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + end)
    return load_mgsm(path, "mgsm")


def row(question: str = "Wie viele?", **fields: object) -> str:
    return encode({"question": question, **fields}).decode()


def test_rows_become_episodes_of_one_family_in_file_order(tmp_path: Path) -> None:
    episodes = load(
        tmp_path,
        row("Eins?", answer=None, answer_number=1450, equation_solution="x"),
        row("Zwei?", answer="Schritt für Schritt: 7 + 4 = 11. Die Antwort ist 11.", answer_number=11),
        row("Drei?", answer="1.450,5"),
        row("Vier?", answer=18.5),
        row("Fünf?", answer=-3),
        row("Sechs?", answer="7", answer_number=7),
    )
    assert [episode.id for episode in episodes] == [f"mgsm-{index:04d}" for index in range(6)]
    assert {episode.family for episode in episodes} == {"mgsm"}
    answers = [json.loads(episode.task_json)["answer"] for episode in episodes]
    assert answers == ["1.450", "11", "1.450,5", "18,5", "-3", "7"]
    assert all(WORLD.open(episode).verify(WORLD.solve(episode)[0].text).success for episode in episodes)
    assert "Antwort: " in episodes[0].messages[0].content
    assert episodes[4].messages[1].content == "Fünf?"


def test_ids_of_the_file_are_kept(tmp_path: Path) -> None:
    episodes = load(tmp_path, row("Eins?", answer=1, id="a"), row("Zwei?", answer=2))
    assert [episode.id for episode in episodes] == ["mgsm-a", "mgsm-0001"]


def test_equal_rows_have_equal_content_in_any_file(tmp_path: Path) -> None:
    first = load(tmp_path, row("Eins?", answer=1), row("Zwei?", answer=2))
    second = load(tmp_path, row("Zwei?", answer_number=2, id="other"))
    assert first[1].content == second[0].content
    assert first[0].content != first[1].content


def test_missing_line_feed_at_the_end_loses_no_row(tmp_path: Path) -> None:
    rows = (row("Eins?", answer=1), row("Zwei?", answer=2))
    assert load(tmp_path, *rows, end=b"") == load(tmp_path, *rows)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"\xef\xbb\xbf" + row(answer=1).encode(), "byte order mark"),
        (row(answer=1) + "\r", "carriage return"),
        ("", "is blank"),
        ("   ", "is blank"),
        (b'{"question":"\xff","answer":1}', "utf-8"),
        ("{", "Expecting"),
        ("[" * 100_000, "not a JSON object"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        (row(answer=1) + row("Noch eine?", answer=1), "Extra data"),
        ('{"question":"a","question":"b","answer":1}', "key twice"),
        ('{"question":"a","answer":NaN}', "NaN is not JSON"),
        ('{"question":"a","answer_number":-Infinity}', "-Infinity is not JSON"),
        ('{"question":"a","answer":1e999999999999999999999}', "exponent"),
        ('{"question":"a","answer":1e400}', "too long"),
        ('{"question":"a","answer":1e400000000}', "too long"),
        ('{"question":"a","answer":1e-400000000}', "too long"),
        ('{"question":"a","answer":' + "9" * 5000 + "}", "."),
        (row("A\u0308pfel?", answer=1), "normal form C"),
        ('{"question":"\\ud800","answer":1}', "surrogates not allowed"),
        ('{"answer":1}', "`question` is None"),
        (row("  ", answer=1), "`question` is"),
        (row(), "`answer` is None"),
        (row(answer=None), "`answer` is None"),
        (row(answer=True), "`answer` is True"),
        (row(answer=[1]), "`answer` is"),
        (row(answer="1,234"), "ambiguous"),
        (row(answer="elf"), "not a number"),
        (row(answer_number="elf", answer=11), "`answer_number` is 'elf'"),
        (row(answer=12, answer_number=11), "`answer_number` is 11 but `answer` is 12"),
        (row(answer=1, id=5), "`id` is 5"),
        (row(answer=1, id="first"), "'id first' is also in line 1"),
        (row("Eins?", answer=1), "'question Eins.' is also in line 1"),
        (row("Eins?", answer=2), "'question Eins.' is also in line 1"),
    ],
)
def test_flawed_line_is_refused_with_file_and_line(tmp_path: Path, line: str | bytes, found: str) -> None:
    with pytest.raises(UsageError, match=rf"questions\.jsonl, line 2: .*{found}"):
        load(tmp_path, row("Eins?", answer=1, id="first"), line, row("Drei?", answer=3))


def test_byte_order_mark_at_the_start_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 1: starts with a byte order mark"):
        load(tmp_path, b"\xef\xbb\xbf" + row(answer=1).encode())


def test_numbered_line_does_not_take_an_id_that_another_line_states(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 2: 'id 0001' is also in line 1"):
        load(tmp_path, row("Eins?", answer=1, id="0001"), row("Zwei?", answer=2))


def test_blank_line_at_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 2: is blank"):
        load(tmp_path, row(answer=1), end=b"\n\n")


def test_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_mgsm(tmp_path / "nothing.jsonl", "m")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(UsageError, match="has no lines"):
        load_mgsm(tmp_path / "empty.jsonl", "m")
