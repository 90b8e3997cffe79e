"""The scripted policy."""

from __future__ import annotations

import pytest

from experiment.errors import UsageError
from experiment.policies.base import Policy, SampledTurn, TurnRequest
from experiment.policies.scripted import ScriptedPolicy

END = 2
PROMPT, OTHER = (10, 11), (10, 12)
FIRST, SECOND = (20, 21, END), (22, END)
FRAMING = (30, END, 31)


def ask(context: tuple[int, ...], max_tokens: int = 100) -> TurnRequest:
    return TurnRequest(context_ids=context, seed=1, max_tokens=max_tokens)


def test_turns_follow_the_prompt_and_the_turns_in_the_context() -> None:
    policy: Policy = ScriptedPolicy({PROMPT: [FIRST, SECOND], OTHER: [SECOND]})
    contexts = [PROMPT, OTHER, PROMPT + FIRST + FRAMING]
    assert [each.ids for each in policy.sample([ask(context) for context in contexts])] == [FIRST, SECOND, SECOND]


def test_end_tokens_of_the_framing_are_not_counted_as_turns() -> None:
    policy = ScriptedPolicy({PROMPT: [FIRST, SECOND, FIRST]})
    (third,) = policy.sample([ask(PROMPT + FIRST + FRAMING + SECOND + FRAMING)])
    assert third == SampledTurn(ids=FIRST, logprobs=(0.0, 0.0, 0.0), finish="stop")


def test_equal_turns_are_played_as_often_as_they_are_given() -> None:
    policy = ScriptedPolicy({PROMPT: [SECOND, SECOND, FIRST]})
    assert policy.sample([ask(PROMPT + SECOND + FRAMING)])[0].ids == SECOND
    assert policy.sample([ask(PROMPT + SECOND + FRAMING + SECOND)])[0].ids == FIRST


@pytest.mark.parametrize(("limit", "finish"), [(1, "length"), (2, "length"), (3, "stop")])
def test_turn_longer_than_asked_for_is_cut_with_finish_length(limit: int, finish: str) -> None:
    (turn,) = ScriptedPolicy({PROMPT: [FIRST]}).sample([ask(PROMPT, limit)])
    assert (turn.ids, turn.finish, len(turn.logprobs)) == (FIRST[:limit], finish, limit)


def test_longest_prompt_that_begins_the_context_decides() -> None:
    policy = ScriptedPolicy({PROMPT: [FIRST], (*PROMPT, 13): [SECOND]})
    assert policy.sample([ask((*PROMPT, 13))])[0].ids == SECOND


def test_unknown_prompt_and_ended_script_are_refused() -> None:
    policy = ScriptedPolicy({PROMPT: [FIRST]})
    with pytest.raises(UsageError, match="no prompt that has a script"):
        policy.sample([ask((99, 11))])
    with pytest.raises(UsageError, match="ended after 1 turns"):
        policy.sample([ask(PROMPT + FIRST)])
