"""Several scripts for one prompt, so that the rollouts of a group differ without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiment.policies.base import SampledTurn, TurnRequest
from experiment.policies.scripted import ScriptedPolicy

Ids = tuple[int, ...]


class DrawnScripts:
    """The first turn's seed draws a script; later turns follow the script whose first turn the context holds.

    Args:
        scripts: For the ids of each prompt its scripts, which differ in their first turn.
    """

    def __init__(self, scripts: Mapping[Ids, Sequence[Sequence[Ids]]]) -> None:
        self._scripts = dict(scripts)

    def sample(self, requests: Sequence[TurnRequest]) -> list[SampledTurn]:
        """Play the next turn of every request."""
        return [self._play(request) for request in requests]

    def _play(self, request: TurnRequest) -> SampledTurn:
        prompt = next(each for each in self._scripts if request.context_ids[: len(each)] == each)
        rest, scripts = request.context_ids[len(prompt) :], self._scripts[prompt]
        script = scripts[request.seed % len(scripts)]
        if rest:
            script = next(each for each in scripts if rest[: len(each[0])] == each[0])
        return ScriptedPolicy({prompt: script}).sample([request])[0]
