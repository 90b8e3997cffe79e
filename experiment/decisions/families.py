"""What each family's rollouts did in one training step; the worker reports it and the audit counts again."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.records.entry import FamilyRates


def family_rates(results: Sequence[tuple[str, bool]], group: int) -> tuple[FamilyRates, ...]:
    """Successes and uniform groups of each family, sorted by its name.

    Args:
        results: (family, strict success) of each rollout, groups one after the other; a rollout without a verdict
            counts as not successful.
        group: Rollouts of one episode.
    """
    families: dict[str, list[list[bool]]] = {}
    for start in range(0, len(results), group):
        members = results[start : start + group]
        families.setdefault(members[0][0], []).append([success for _, success in members])
    return tuple(
        FamilyRates(
            family=family,
            rollouts=sum(map(len, groups)),
            successes=sum(map(sum, groups)),
            groups=len(groups),
            all_fail=sum(not any(each) for each in groups),
            all_pass=sum(all(each) for each in groups),
        )
        for family, groups in sorted(families.items())
    )
