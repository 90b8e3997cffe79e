"""Where a starting policy came from, kept in its folder."""

from __future__ import annotations

from experiment.records.base import Digest, Record
from experiment.records.job import FamilyScore
from experiment.records.recipe import Compute, Starter
from experiment.records.world import World


class Provenance(Record):
    """How `baseline` made a policy and what it measured; equal inputs give an equal policy and record."""

    starter: Starter
    world: World
    compute: Compute
    sources: Digest
    families: tuple[FamilyScore, ...]
    """pass@1 on episodes outside all other sets."""
    retention: FamilyScore
