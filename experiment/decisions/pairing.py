"""Which outcomes belong together: by item id, never by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from experiment.records.verdict import ItemOutcome


def outcomes_by_item(outcomes: Iterable[ItemOutcome], *, where: str) -> dict[str, ItemOutcome]:
    """Return the outcomes by item id.

    Args:
        outcomes: The outcomes of one evaluation, in any order.
        where: Names the evaluation in messages.

    Raises:
        JournalError: An item has two outcomes, or there is none at all.
    """
    by_item: dict[str, ItemOutcome] = {}
    for outcome in outcomes:
        if outcome.item in by_item:
            msg = f"{where}: item '{outcome.item}' has two outcomes"
            raise JournalError(msg)
        by_item[outcome.item] = outcome
    if not by_item:
        msg = f"{where}: there are no outcomes"
        raise JournalError(msg)
    return by_item


def check_same_items(
    expected: Mapping[str, ItemOutcome], found: Mapping[str, ItemOutcome], *, where: str, against: str
) -> None:
    """Return only where both evaluations judged the same items of the same families.

    Raises:
        JournalError: An item is missing, foreign, or of another family; the first such id is named.
    """
    check_item_ids(expected.keys(), found.keys(), where=where, against=against)
    for item in sorted(expected):
        if expected[item].family != found[item].family:
            msg = (
                f"{where}: item '{item}' is of family '{found[item].family}', "
                f"but {against} has it in family '{expected[item].family}'"
            )
            raise JournalError(msg)


def check_item_ids(expected: Iterable[str], found: Iterable[str], *, where: str, against: str) -> None:
    """Return only where both hold the same item ids.

    Raises:
        JournalError: An id is missing or foreign; the first such id is named.
    """
    expected_ids, found_ids = set(expected), set(found)
    for ids, verb in ((expected_ids - found_ids, "is missing"), (found_ids - expected_ids, "is foreign")):
        if ids:
            msg = f"{where}: item '{min(ids)}' {verb} (compared with {against})"
            raise JournalError(msg)
