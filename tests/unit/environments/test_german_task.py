"""Table, calculator and verifier of the German world."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiment.environments.german_tools.task import (
    Executed,
    Judgement,
    Reply,
    Task,
    execute,
    judge,
    parse_answer,
    parse_task,
    solve,
)

DIRECT = Task((("Käse", "17"), ("Äpfel", "15")), ("Äpfel",), None, None, "15")
ONE_STEP = Task((("Käse", "17"), ("Äpfel", "15")), ("Äpfel",), "mal", "7", "105")
TWO_STEP = Task((("Käse", "7"), ("Salz", "7"), ("Äpfel", "15")), ("Äpfel", "Käse"), "plus", None, "22")
TASKS = (DIRECT, ONE_STEP, TWO_STEP)


def look_up(task: Task, key: str) -> Executed:
    return execute(task, "nachschlagen", {"schluessel": key})


def compute(task: Task, operation: str, a: str, b: str) -> Executed:
    return execute(task, "rechne", {"operation": operation, "a": a, "b": b})


def calculator_says(operation: str, a: str, b: str) -> Reply:
    return compute(DIRECT, operation, a, b).reply


# --- tools


def test_lookup_returns_the_value_in_german_form() -> None:
    assert look_up(replace(DIRECT, table=(("Äpfel", "1,5"),)), "Äpfel").reply == Reply("1,5", is_error=False)


@pytest.mark.parametrize("key", ["Birnen", "äpfel", " Äpfel", "A\u0308pfel", "", "Ä" * 100_000])
def test_unknown_key_is_an_error_text_of_bounded_size(key: str) -> None:
    assert look_up(DIRECT, key).reply == Reply("Fehler: Schlüssel unbekannt", is_error=True)


@pytest.mark.parametrize(
    ("operation", "a", "b", "text"),
    [
        ("plus", "15", "7", "22"),
        ("minus", "7", "15", "-8"),
        ("mal", "1,5", "0,4", "0,6"),
        ("mal", "15.000", "7.000", "105.000.000"),
        ("geteilt", "15", "2", "7,5"),
        ("geteilt", "9", "8", "1,1250"),
        ("plus", "0,1", "0,2", "0,3"),
        ("plus", "1.234", "0", "1.234"),
        ("plus", "\u22123", "3,0", "0"),
        ("minus", "1\u202f234,5", "0", "1.234,5"),
    ],
)
def test_calculator_is_exact_and_writes_the_canonical_form(operation: str, a: str, b: str, text: str) -> None:
    assert calculator_says(operation, a, b) == Reply(text, is_error=False)


@pytest.mark.parametrize(
    ("operation", "a", "b", "text"),
    [
        ("hoch", "9", "9", "Fehler: Operation unbekannt"),
        ("9**9**9", "1", "1", "Fehler: Operation unbekannt"),
        ("", "1", "1", "Fehler: Operation unbekannt"),
        ("Plus", "1", "1", "Fehler: Operation unbekannt"),
        ("plus", "1,234", "1", "Fehler: a ist mehrdeutig"),
        ("plus", "1", "12.03.2026", "Fehler: b ist keine Zahl"),
        ("plus", "1.5", "1", "Fehler: a ist keine Zahl"),
        ("plus", "9**9**9", "1", "Fehler: a ist keine Zahl"),
        ("plus", "(((9**64)**64)**64)**64", "1", "Fehler: a ist keine Zahl"),
        ("plus", "NaN", "1", "Fehler: a ist keine Zahl"),
        ("plus", "(" * 2000 + "1" + ")" * 2000, "1", "Fehler: a ist zu lang"),
        ("plus", "1", "1" * 1_000_000, "Fehler: b ist zu lang"),
        ("mal", "999.999.999", "999.999.999", "Fehler: Ergebnis zu lang"),
        ("mal", "0,0001", "0,0001", "Fehler: Ergebnis zu lang"),
        ("geteilt", "1", "0", "Fehler: Division durch null"),
        ("geteilt", "0", "0,0", "Fehler: Division durch null"),
        ("geteilt", "1", "3", "Fehler: Ergebnis nicht exakt"),
    ],
)
def test_calculator_answers_hostile_input_with_a_typed_error(operation: str, a: str, b: str, text: str) -> None:
    assert calculator_says(operation, a, b) == Reply(text, is_error=True)


# --- verifier


@pytest.mark.parametrize("task", TASKS)
def test_required_calls_and_exact_answer_succeed(task: Task) -> None:
    verdict = judge(task, solve(task), f"Antwort: {task.answer}")
    assert verdict == Judgement(success=True, format=1.0, malformed_answer=False)


@pytest.mark.parametrize("task", TASKS)
def test_guess_without_tools_is_worth_nothing(task: Task) -> None:
    assert judge(task, (), f"Antwort: {task.answer}") == Judgement(success=False, format=0.0, malformed_answer=False)


@pytest.mark.parametrize("task", TASKS)
def test_missing_repeated_or_foreign_call_never_succeeds(task: Task) -> None:
    calls = solve(task)
    foreign = (look_up(task, "Käse"), look_up(task, "unbekannt"), compute(task, "plus", "1", "1"))
    logs = [calls[:i] + calls[i + 1 :] for i in range(len(calls))]
    logs += [(*calls[:i], call, *calls[i:]) for i in range(len(calls) + 1) for call in (*calls, *foreign)]
    for log in logs:
        verdict = judge(task, log, f"Antwort: {task.answer}")
        assert not verdict.success
        assert verdict.format < 1.0


def test_calls_in_another_order_never_succeed() -> None:
    first, second, calculation = solve(TWO_STEP)
    orders = [(second, first, calculation), (calculation, first, second), (first, calculation, second)]
    assert not any(judge(TWO_STEP, order, "Antwort: 22").success for order in orders)


def test_operands_keep_the_order_of_the_prompt_even_where_the_result_is_equal() -> None:
    swapped = (look_up(ONE_STEP, "Äpfel"), compute(ONE_STEP, "mal", "7", "15"))
    assert not judge(ONE_STEP, swapped, "Antwort: 105").success


def test_another_key_with_the_same_value_is_the_wrong_lookup() -> None:
    log = (look_up(TWO_STEP, "Äpfel"), look_up(TWO_STEP, "Salz"), compute(TWO_STEP, "plus", "15", "7"))
    assert not judge(TWO_STEP, log, "Antwort: 22").success


def test_another_operation_with_the_same_result_is_the_wrong_calculation() -> None:
    task = Task((("Öl", "2"),), ("Öl",), "plus", "2", "4")
    assert not judge(task, (look_up(task, "Öl"), compute(task, "mal", "2", "2")), "Antwort: 4").success


def test_arguments_are_compared_by_value() -> None:
    log = (look_up(ONE_STEP, "Äpfel"), compute(ONE_STEP, "mal", "15,0", "7"))
    assert judge(ONE_STEP, log, "Antwort: 105,00").success


def test_call_answered_with_an_error_is_not_a_required_call() -> None:
    failed = tuple(replace(call, reply=Reply(call.reply.text, is_error=True)) for call in solve(DIRECT))
    assert judge(DIRECT, failed, "Antwort: 15") == Judgement(success=False, format=0.0, malformed_answer=False)


@pytest.mark.parametrize("text", ["Antwort: 16", "Antwort: 150", "Antwort: -15", "Antwort: 1,5"])
def test_wrong_number_is_well_formed_and_fails(text: str) -> None:
    verdict = judge(DIRECT, solve(DIRECT), text)
    assert verdict == Judgement(success=False, format=0.75, malformed_answer=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "15",
        "Antwort:15",
        "Antwort:  15",
        "antwort: 15",
        "Antwort: 15.",
        "Antwort: 15 ",
        "Antwort: 15\n",
        " Antwort: 15",
        "Die Antwort: 15",
        "Antwort: 15\nAntwort: 15",
        "Antwort: 1,234",
        "Antwort: fünfzehn",
        "Answer: 15",
        "<tool_call>",
    ],
)
def test_anything_but_the_frozen_form_is_a_malformed_answer(text: str) -> None:
    verdict = judge(DIRECT, solve(DIRECT), text)
    assert verdict == Judgement(success=False, format=0.5, malformed_answer=True)
    assert parse_answer(text) is None


def test_answer_of_three_decimals_has_an_unambiguous_accepted_form() -> None:
    task = Task((("Öl", "9"),), ("Öl",), "geteilt", "8", "1,1250")
    assert judge(task, solve(task), "Antwort: 1,1250").success
    assert judge(task, solve(task), "Antwort: 1,125").malformed_answer


def test_format_grows_with_each_milestone() -> None:
    first, second, calculation = solve(TWO_STEP)
    stages: list[tuple[tuple[Executed, ...], str]] = [
        ((), ""),
        ((first,), ""),
        ((first,), "Antwort: 15"),
        ((first, second), "Antwort: 15"),
        ((first, second, second, calculation), "Antwort: 15"),
        ((first, second, second, calculation), "Antwort: 22"),
        ((first, second, calculation), "Antwort: 22"),
    ]
    scores = [judge(TWO_STEP, log, text).format for log, text in stages]
    assert scores == [step / 6 for step in range(7)]


BOUNDED = """
import resource, sys
from experiment.decisions.tool_calls import parse_turn
from experiment.environments.german_tools.environment import GermanTools
world = GermanTools()
(episode, *_) = world.generate(prefix="x", count=1, seed=1, taken=frozenset())
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
megabyte = "1+" * (1 << 19)
brackets = "(" * 2000 + "1" + ")" * 2000
expressions = ["9**9**9", "(((9**64)**64)**64)**64", "10**5000", "1/0", "0.1+0.2", brackets, megabyte]
for text in expressions:
    for place in ("a", "b", "operation"):
        arguments = {"a": "1", "b": "1", "operation": "plus"} | {place: text}
        result = world.open(episode).call("rechne", arguments)
        assert result.is_error, text[:40]
        print(result.text)
(call,) = parse_turn('<tool_call>{"name":"rechne","arguments":{"a":"%s"}}</tool_call>' % megabyte, world.tools)
print(call.status, len(call.arguments_json))
"""


def test_expressions_are_refused_in_bounded_time_and_memory(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said = ["keine Zahl"] * 5 + ["zu lang"] * 2
    answers = [f"Fehler: {name} ist {flaw}" for flaw in said for name in ("a", "b")]
    lines = done.stdout.splitlines()
    assert [line for line in lines[:21] if " ist " in line] == answers
    assert lines[2:21:3] == ["Fehler: Operation unbekannt"] * 7
    assert lines[21:] == ["too_large 500"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,5", "1,5"),
        ("1.234", "1.234"),
        ("1.234,50", "1.234,5"),
        ("1\u202f234,5", "1.234,5"),
        ("\u22123", "-3"),
        ("12.03.2026", None),
        ("3,0", "3"),
        ("1,234", None),
    ],
)
def test_argument_and_answer_are_read_by_one_grammar(text: str, value: str | None) -> None:
    reply = calculator_says("plus", text, "0")
    flaw = "mehrdeutig" if text == "1,234" else "keine Zahl"
    assert reply == (Reply(f"Fehler: a ist {flaw}", is_error=True) if value is None else Reply(value, is_error=False))
    # 1,234 is neither read as 1234 nor as 1,2340.
    for gold in ("1,5", "1.234", "1.234,5", "-3", "3", "1,2340", "12.032.026"):
        task = Task((("Öl", gold),), ("Öl",), None, None, gold)
        verdict = judge(task, solve(task), f"Antwort: {text}")
        assert verdict.success == (gold == value)
        assert verdict.malformed_answer == (value is None)


# --- reading


def test_task_is_read_from_its_json() -> None:
    text = '{"answer":"105","given":"7","lookups":["Äpfel"],"operation":"mal","table":{"Äpfel":"15","Käse":"17"}}'
    assert parse_task(text) == ONE_STEP


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"answer":"15","given":null,"lookups":["Öl"],"operation":null}',
        '{"answer":"15","given":null,"lookups":["Öl"],"operation":null,"table":{"Öl":"15"},"x":1}',
        '{"answer":"15","given":null,"lookups":["Öl"],"operation":null,"table":[]}',
        '{"answer":"15","given":null,"lookups":"Öl","operation":null,"table":{"Öl":"15"}}',
        '{"answer":"15","given":null,"lookups":["Öl"],"operation":null,"table":{"Öl":15}}',
        '{"answer":15,"given":null,"lookups":["Öl"],"operation":null,"table":{"Öl":"15"}}',
        '{"answer":"22","given":7,"lookups":["Öl"],"operation":"plus","table":{"Öl":"15"}}',
        '{"answer":"15","given":null,"lookups":[],"operation":null,"table":{"Öl":"15"}}',
        '{"answer":"15","given":"15","lookups":[],"operation":null,"table":{"Öl":"15"}}',
        '{"answer":"15","given":null,"lookups":["Öl"],"operation":"plus","table":{"Öl":"15"}}',
        '{"answer":"22","given":"7","lookups":["Öl"],"operation":null,"table":{"Öl":"22"}}',
        '{"answer":"15","given":null,"lookups":["Salz"],"operation":null,"table":{"Öl":"15"}}',
        '{"answer":"Fehler: Schlüssel unbekannt","given":null,"lookups":["Salz"],"operation":null,"table":{"Öl":"1"}}',
        '{"answer":"16","given":null,"lookups":["Öl"],"operation":null,"table":{"Öl":"15"}}',
        '{"answer":"15,0","given":null,"lookups":["Öl"],"operation":null,"table":{"Öl":"15,0"}}',
        '{"answer":"15","given":"7","lookups":["Öl"],"operation":"hoch","table":{"Öl":"15"}}',
    ],
)
def test_task_that_contradicts_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_task(text)


def test_task_module_needs_the_standard_library_only(repository: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import experiment.environments.german_tools.task;"
        "names = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(names - sys.stdlib_module_names - {'experiment', '__main__'}))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(repository)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
