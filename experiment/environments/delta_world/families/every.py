"""Every kind of task, by family."""

from __future__ import annotations

from experiment.environments.delta_world.families import clustering, merge, repair, restore, schema
from experiment.environments.delta_world.kind import Kind

FAMILIES: dict[str, tuple[Kind, ...]] = {
    module.FAMILY: module.KINDS for module in (restore, merge, schema, clustering, repair)
}

KINDS: dict[str, Kind] = {kind.name: kind for kinds in FAMILIES.values() for kind in kinds}
