"""A policy that plays given turns, for exercising worlds, rollouts and training without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiment.errors import UsageError
from experiment.policies.base import SampledTurn, TurnRequest

Ids = tuple[int, ...]


class ScriptedPolicy:
    """Plays one script per prompt; the next turn is the first that the context does not hold yet.

    Args:
        scripts: For the ids of each prompt its turns, each with its end-of-turn token.
    """

    def __init__(self, scripts: Mapping[Ids, Sequence[Ids]]) -> None:
        self._scripts = dict(scripts)

    def sample(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        """Play the next turn of every request, cut where it is longer than asked for; seeds have no influence.

        Raises:
            UsageError: A context begins with no known prompt, or its script has ended.
        """
        return [self._play(request) for request in requests]

    def _play(self, request: TurnRequest) -> SampledTurn:
        prompt = self._find_prompt(request.context_ids)
        script = self._scripts[prompt]
        number = _count_played(request.context_ids[len(prompt) :], script)
        if number == len(script):
            message = f"the script of a prompt of {len(prompt)} tokens has ended after {number} turns"
            raise UsageError(message)
        ids = script[number][: request.max_tokens]
        is_whole = len(ids) == len(script[number])
        # A script is certain of itself: every token has probability 1.
        return SampledTurn(ids=ids, logprobs=(0.0,) * len(ids), finish="stop" if is_whole else "length")

    def _find_prompt(self, context: Ids) -> Ids:
        known = [prompt for prompt in self._scripts if context[: len(prompt)] == prompt]
        if not known:
            message = f"a context of {len(context)} tokens begins with no prompt that has a script"
            raise UsageError(message)
        return max(known, key=len)


def _count_played(ids: Ids, script: Sequence[Ids]) -> int:
    """How many turns of the script occur in `ids`, in order, from the first on."""
    start = 0
    for number, turn in enumerate(script):
        places = range(start, len(ids) - len(turn) + 1)
        found = next((place for place in places if ids[place : place + len(turn)] == turn), None)
        if found is None:
            return number
        start = found + len(turn)
    return len(script)
