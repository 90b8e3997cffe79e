"""Whether a starting policy leaves reinforcement learning something to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from experiment.records.job import FamilyScore

NO_SIGNAL_BELOW: Final = 0.02
"""Below this pass@1 nearly every group fails as a whole and carries no gradient."""

NO_ROOM_FROM: Final = 0.75
"""From this pass@1 on, an improvement could hardly be told from noise."""

Room = Literal["no signal", "no room", "usable"]


def judge_room(families: Sequence[FamilyScore]) -> Room:
    """The verdict on a policy's pass@1 over all families together."""
    episodes = sum(each.episodes for each in families)
    rate = sum(each.successes for each in families) / episodes if episodes else 0.0
    if rate < NO_SIGNAL_BELOW:
        return "no signal"
    return "no room" if rate >= NO_ROOM_FROM else "usable"
