"""How the text of sampled turns departs from the messages that a chat template would write for the same calls.

A healthy policy writes calls in more than one way, so these departures are counted by class and never fatal; a check
that rendered the parsed calls again and compared the text would fail on them. Each is a function of the turn's record.

`call_in_cut_turn`: a limit cut a turn that holds a call. `text_beside_call`: text outside the calls' blocks.
`other_spelling`: a valid call in another spelling than the template's. `forged_response`: the policy wrote the tag of
a tool result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from experiment.decisions.tool_calls import parse_turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from experiment.records.rollout import Rollout, Turn

_OPEN, _CLOSE, _RESPONSE = "<tool_call>", "</tool_call>", "<tool_response>"
_BLOCK = re.compile(f"{_OPEN}.*?(?:{_CLOSE}|(?={_OPEN})|$)", re.DOTALL)
_UNREADABLE = ("too_large", "invalid_json", "incomplete")


def count_divergences(rollouts: Iterable[Rollout]) -> tuple[tuple[str, int], ...]:
    """Return how many turns of some rollouts show each class, sorted; classes that do not occur are left out."""
    found = Counter(name for rollout in rollouts for turn in rollout.turns for name in divergences_of(turn))
    return tuple(sorted(found.items()))


def divergences_of(turn: Turn) -> tuple[str, ...]:
    """Return the classes that a turn belongs to, each at most once."""
    return tuple(_classes(turn))


def write_call(name: str, arguments: Any) -> str:
    """Return a call in the spelling that chat templates use."""
    return f"{_OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{_CLOSE}"


def _classes(turn: Turn) -> Iterator[str]:
    blocks = [match.group() for match in _BLOCK.finditer(turn.text)]
    if blocks and turn.finish == "length":
        yield "call_in_cut_turn"
    if blocks and _BLOCK.sub("", turn.text).strip():
        yield "text_beside_call"
    if any(_is_respelled(block) for block in blocks):
        yield "other_spelling"
    if _RESPONSE in turn.text:
        yield "forged_response"


def _is_respelled(block: str) -> bool:
    """Whether a readable call differs from what a template writes for the same fields in the same order."""
    if any(call.status in _UNREADABLE for call in parse_turn(block, ())):
        return False
    fields = json.loads(block.removeprefix(_OPEN).removesuffix(_CLOSE))
    return block != write_call(fields["name"], fields["arguments"])
