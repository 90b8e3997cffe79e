"""Whether the weights that are evaluated are the baseline's with the sealed adapter on them, and differ from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.sealing.canonical import encode
from experiment.sealing.digests import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment.records.verdict import MergeFacts


REFERENCE = "reference/weights"
"""Name of the base weights' digest in a trainer's state."""


def reference_part(reference: str) -> tuple[str, str]:
    """Return the part of a checkpoint's state that says which weights lay below the adapter when it was sealed."""
    part, _, _ = REFERENCE.partition("/")
    return part, digest_bytes(encode([[REFERENCE, reference]]))


def merge_problems(facts: MergeFacts, *, reference: str, state: Mapping[str, str]) -> tuple[str, ...]:
    """Return why a policy must not be evaluated; empty where it may.

    Args:
        facts: What the worker found when it put the adapter on the baseline.
        reference: Digest of the reference policy, as qualification recorded it.
        state: Digests of the checkpoint's parts, as its record says.
    """
    checks = (
        (facts.base == reference, "the weights below the adapter are not the baseline's (or were merged already)"),
        (facts.adapter == state.get("adapter"), "the adapter is not the one that was sealed"),
        (facts.strays == 0, f"{facts.strays} elements are not base plus adapter"),
        (facts.form == "merged" or facts.weights == facts.base, "the adapter was to stay apart, and weights changed"),
    )
    return tuple(problem for holds, problem in checks if not holds)


def has_no_effect(facts: MergeFacts) -> bool:
    """Whether the policy is the baseline in other words: an adapter that changes no element of any weight."""
    return facts.changed == 0
