"""The tool-call parser on arbitrary and on nearly valid text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from experiment.decisions.tool_calls import parse_turn
from experiment.environments.german_tools.environment import GermanTools
from experiment.records.rollout import INVALID_STATUSES, ToolEvent
from experiment.sealing.canonical import decode, encode

TOOLS = GermanTools().tools
PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "nachschlagen", "arguments": {"schluessel": "Äpfel"}}',
        '{"name":"rechne","arguments":{"a":"1","b":"2","operation":"plus"}}',
        '{"name":',
        '"nachschlagen"',
        ',"arguments":',
        "{}",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        "NaN",
        "1e999",
        "\\ud800",
        "\ud800",
        "\n",
    ]
)
TURNS = st.lists(st.one_of(PIECES, st.text(st.characters(), max_size=8)), max_size=30).map("".join)


@given(st.one_of(st.text(st.characters(exclude_categories=())), TURNS))
@example("<tool_call>" * 1000)
@example("<tool_call>" + '\\"' * 30_000)
def test_any_text_gives_one_storable_call_per_opening_tag(text: str) -> None:
    calls = parse_turn(text, TOOLS)
    assert len(calls) == text.count("<tool_call>")
    for call in calls:
        assert (call.arguments is None) == (call.status is not None)
        assert call.status is None or call.status in INVALID_STATUSES
        ToolEvent(name=call.name, arguments_json=call.arguments_json, status=call.status or "delivered", observation="")
        encode([call.name, call.arguments_json])


@given(TURNS)
def test_dispatchable_call_names_a_tool_with_exactly_its_parameters(text: str) -> None:
    declared = {tool.name: sorted(name for name, _ in tool.parameters) for tool in TOOLS}
    for call in parse_turn(text, TOOLS):
        if call.arguments is not None:
            assert [name for name, _ in call.arguments] == declared[call.name]
            assert decode(call.arguments_json.encode()) == dict(call.arguments)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "operation"]), st.text(max_size=20)), max_size=5))
def test_canonical_rendering_reads_back(rows: list[dict[str, str]]) -> None:
    text = ""
    for row in rows:
        raw = encode({"name": "rechne", "arguments": row}).decode().replace("<", "\\u003c")
        text += f"<tool_call>\n{raw}\n</tool_call>\n"
    calls = parse_turn(text, TOOLS)
    assert [decode(call.arguments_json.encode()) for call in calls] == rows
    assert [call.status is None for call in calls] == [len(row) == 3 for row in rows]
