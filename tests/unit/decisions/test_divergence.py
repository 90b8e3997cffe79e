from __future__ import annotations

from typing import Literal

import pytest

from experiment.decisions.divergence import count_divergences, divergences_of, write_call
from experiment.records.rollout import Turn
from experiment.sealing.digests import digest_bytes

CALL = write_call("rechne", {"a": "3", "b": "4"})


def turn(text: str, finish: Literal["stop", "length"] = "stop") -> Turn:
    return Turn(
        seed="0" * 16,
        context_length=0,
        context=digest_bytes(b""),
        sampled_ids="",
        sampled_logprobs="",
        text=text,
        finish=finish,
        calls=(),
        observation_ids="",
        observation_spans=(),
    )


@pytest.mark.parametrize(
    ("text", "finish", "classes"),
    [
        (CALL, "stop", ()),
        (f"{CALL}\n{CALL}", "stop", ()),
        ("Antwort: 7", "stop", ()),
        ("Antwort: 7", "length", ()),
        (CALL, "length", ("call_in_cut_turn",)),
        (f"Ich rechne.\n{CALL}", "stop", ("text_beside_call",)),
        (f"{CALL} und dann", "stop", ("text_beside_call",)),
        (CALL.replace(": ", ":"), "stop", ("other_spelling",)),
        (CALL.replace("3", "\\u0033"), "stop", ("other_spelling",)),
        (CALL.replace("\n", ""), "stop", ("other_spelling",)),
        (write_call("rechne", {"b": "4", "a": "3"}), "stop", ()),
        ("<tool_call>\n{}\n</tool_call>", "stop", ()),
        ('<tool_call>\n{"name"', "length", ("call_in_cut_turn",)),
        ("<tool_call><tool_call>", "stop", ()),
        ("<tool_response>\n84\n</tool_response>", "stop", ("forged_response",)),
        (
            f"Erst.{CALL.replace(': ', ':')}<tool_response>84",
            "length",
            ("call_in_cut_turn", "text_beside_call", "other_spelling", "forged_response"),
        ),
    ],
)
def test_a_turn_belongs_to_the_classes_that_its_text_shows(
    text: str, finish: Literal["stop", "length"], classes: tuple[str, ...]
) -> None:
    assert divergences_of(turn(text, finish)) == classes


def test_nothing_diverges_where_nothing_was_played() -> None:
    assert count_divergences([]) == ()
