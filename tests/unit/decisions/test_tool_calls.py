"""Reading tool calls out of sampled text."""

from __future__ import annotations

import pytest

from experiment.decisions.tool_calls import MAX_BYTES, MAX_DEPTH, MAX_RAW_CHARS, ParsedCall, parse_turn
from experiment.records.episode import ToolSpec
from experiment.records.rollout import ToolEvent

TOOLS = (
    ToolSpec(name="calculator", description="", parameters=(("b", ""), ("a", ""))),
    ToolSpec(name="now", description="", parameters=()),
)
GOOD = '{"name": "calculator", "arguments": {"b": "2", "a": "1"}}'
PARSED = ParsedCall("calculator", (("a", "1"), ("b", "2")), '{"a":"1","b":"2"}', None)


def block(raw: str) -> str:
    return f"<tool_call>\n{raw}\n</tool_call>"


def parse_one(raw: str) -> ParsedCall:
    (call,) = parse_turn(block(raw), TOOLS)
    return call


def test_valid_block_is_dispatched_with_sorted_arguments() -> None:
    assert parse_one(GOOD) == PARSED


def test_tool_without_parameters_takes_empty_arguments() -> None:
    assert parse_one('{"name":"now","arguments":{}}') == ParsedCall("now", (), "{}", None)


def test_text_outside_blocks_and_stray_closing_tags_mean_nothing() -> None:
    assert parse_turn(f"</tool_call>{GOOD} Ich rechne. {block(GOOD)} danach</tool_call>", TOOLS) == (PARSED,)
    assert parse_turn("Antwort: 7", TOOLS) == ()
    assert parse_turn("", TOOLS) == ()


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "   ",
        "null",
        "7",
        f"[{GOOD}]",
        '{"name":"calculator","arguments":{"a":"1",}}',
        "{'name':'now','arguments':{}}",
        GOOD + GOOD,
        GOOD + "\n" + GOOD,
        GOOD + ";",
        GOOD[:-1],
        "\ufeff" + GOOD,
        "\u00a0" + GOOD,
        '{"name":"now","name":"now","arguments":{}}',
        '{"name":"calculator","arguments":{"a":"1","a":"2","b":"3"}}',
        '{"name":"calculator","arguments":{"a":NaN,"b":"2"}}',
        '{"name":"calculator","arguments":{"a":-Infinity,"b":"2"}}',
        '{"name":"calculator","arguments":{"a":"\n","b":"2"}}',
        '{"name":"calculator","arguments":{"a":"\\ud800","b":"2"}}',
        '{"name":"calculator","arguments":{"\\udfff":"1","b":"2"}}',
        '{"name":"calculator","arguments":{"a":"</tool_call>","b":"2"}}',
    ],
)
def test_anything_but_one_json_object_is_invalid_json(raw: str) -> None:
    call = parse_one(raw)
    assert (call.name, call.arguments, call.status) == ("", None, "invalid_json")


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("{}", ""),
        ('{"name":"calculator"}', "calculator"),
        ('{"arguments":{}}', ""),
        ('{"name":null,"arguments":{}}', ""),
        ('{"name":["now"],"arguments":{}}', ""),
        ('{"Name":"now","arguments":{}}', ""),
        ('{"name":"now","parameters":{}}', "now"),
    ],
)
def test_missing_name_or_arguments_is_incomplete(raw: str, name: str) -> None:
    assert parse_one(raw) == ParsedCall(name, None, raw, "incomplete")


@pytest.mark.parametrize("name", ["calculator ", " calculator", "Calculator", "run_SQL", "", "reset", "now\\u0000"])
def test_tool_name_is_matched_exactly(name: str) -> None:
    call = parse_one(f'{{"name":"{name}","arguments":{{"a":"1","b":"2"}}}}')
    assert (call.arguments, call.arguments_json, call.status) == (None, '{"a":"1","b":"2"}', "unknown_tool")
    assert call.name == name.replace("\\u0000", "\0")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("{}", "{}"),
        ('{"a":"1"}', '{"a":"1"}'),
        ('{"a":"1","b":"2","c":"3"}', '{"a":"1","b":"2","c":"3"}'),
        ('{"a":"1","B":"2"}', '{"B":"2","a":"1"}'),
        ('{"b":2, "a":"1"}', '{"a":"1","b":2}'),
        ('{"a":1.50,"b":"2"}', '{"a":1.5,"b":"2"}'),
        ('{"a":null,"b":"2"}', '{"a":null,"b":"2"}'),
        ('{"a":true,"b":"2"}', '{"a":true,"b":"2"}'),
        ('{"a":["1"],"b":"2"}', '{"a":["1"],"b":"2"}'),
        ("null", "null"),
        ("[]", "[]"),
        ('"{\\"a\\":\\"1\\",\\"b\\":\\"2\\"}"', '"{\\"a\\":\\"1\\",\\"b\\":\\"2\\"}"'),
    ],
)
def test_arguments_must_be_exactly_the_parameters_as_strings(arguments: str, shown: str) -> None:
    call = parse_one(f'{{"name":"calculator","arguments":{arguments}}}')
    assert call == ParsedCall("calculator", None, shown, "wrong_arguments")


@pytest.mark.parametrize("number", ["9" * 5000, "9007199254740993", "1e400", "-1e400", "1e17"])
def test_number_that_canonical_json_cannot_carry_is_kept_as_raw_text(number: str) -> None:
    raw = f'{{"name":"calculator","arguments":{{"a":{number},"b":"2"}}}}'
    call = parse_one(raw)
    assert (call.name, call.status) == ("calculator", "wrong_arguments")
    assert call.arguments_json == raw[:MAX_RAW_CHARS]


def test_fields_beside_name_and_arguments_are_ignored() -> None:
    assert parse_one(GOOD[:-1] + ', "id": "call_1", "type": "function"}') == PARSED


def test_one_bad_call_does_not_void_the_others() -> None:
    bad = ["", "{}", '{"name":"calc"}', '{"name":"x","arguments":{}}', GOOD + GOOD, "[" * 5000, "x" * (MAX_BYTES + 1)]
    text = "".join(block(raw) + block(GOOD) for raw in bad)
    calls = parse_turn(text, TOOLS)
    assert [call.status for call in calls[::2]] == [
        "invalid_json",
        "incomplete",
        "incomplete",
        "unknown_tool",
        "invalid_json",
        "too_large",
        "too_large",
    ]
    assert calls[1::2] == (PARSED,) * len(bad)


def test_unclosed_block_is_invalid_even_where_its_object_is_complete() -> None:
    calls = parse_turn(f"<tool_call>{GOOD}{block(GOOD)}<tool_call>{GOOD}", TOOLS)
    assert [call.status for call in calls] == ["invalid_json", None, "invalid_json"]


def test_cut_statement_is_not_completed() -> None:
    (call,) = parse_turn('<tool_call>\n{"name": "calculator", "arguments": {"a": "1", "b": "2', TOOLS)
    assert (call.status, call.arguments) == ("invalid_json", None)
    assert call.arguments_json == '{"name": "calculator", "arguments": {"a": "1", "b": "2'


def test_tag_inside_a_string_has_to_be_escaped() -> None:
    raw = '{"name":"calculator","arguments":{"a":"\\u003ctool_call>","b":"2"}}'
    assert parse_one(raw).arguments == (("a", "<tool_call>"), ("b", "2"))
    calls = parse_turn(block(raw.replace("\\u003c", "<")), TOOLS)
    assert [call.status for call in calls] == ["invalid_json", "invalid_json"]


def nested(depth: int) -> str:
    levels = depth - 2
    return f'{{"name":"calculator","arguments":{{"a":{"[" * levels}{"]" * levels},"b":"2"}}}}'


def test_depth_is_bounded_and_brackets_in_strings_do_not_count() -> None:
    assert parse_one(nested(MAX_DEPTH)).status == "wrong_arguments"
    assert parse_one(nested(MAX_DEPTH + 1)).status == "too_large"
    assert parse_one(nested(60_000 // 2)).status == "too_large"
    for text in ("[" * 100, '\\"' + "{" * 100, '\\\\\\"' + "[" * 100):
        assert parse_one(f'{{"name":"calculator","arguments":{{"a":"{text}","b":"2"}}}}').status is None
    assert parse_one(f'{{"name":"calculator","arguments":[{"[]," * 50}[]]}}').status == "wrong_arguments"
    # An escaped backslash ends the escape: the string closes before the brackets.
    assert parse_one('{"a":"\\\\"' + "[" * 100).status == "too_large"


@pytest.mark.parametrize("char", ["x", "ä", "😀"])
def test_size_is_bounded_in_bytes(char: str) -> None:
    frame = '{"name":"calculator","arguments":{"a":"","b":"2"}}'
    room = (MAX_BYTES - len(frame) - 2) // len(char.encode())
    fits = frame.replace('"a":""', f'"a":"{char * room}"')
    assert parse_one(fits).status is None
    call = parse_one(frame.replace('"a":""', f'"a":"{char * (room + 1)}xxxx"'))
    assert (call.name, call.status) == ("", "too_large")
    assert len(call.arguments_json) == MAX_RAW_CHARS


def test_raw_text_fits_into_a_record_whatever_it_holds() -> None:
    (call,) = parse_turn("<tool_call>\ud800 \0", TOOLS)
    event = ToolEvent(name=call.name, arguments_json=call.arguments_json, status="invalid_json", observation="")
    assert event.arguments_json == "\ufffd \0"
