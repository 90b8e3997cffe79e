"""Evidence files: canonical JSON lines, written whole and durably before anything refers to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiment.records.base import Record
from experiment.records.rollout import Rollout
from experiment.records.verdict import ItemOutcome
from experiment.sealing.canonical import encode_record
from experiment.sealing.digests import digest_bytes
from experiment.sealing.files import write_atomic


def write_evidence(path: Path, records: Iterable[Record]) -> str:
    """Write one record per line and return the BLAKE3 of the lines.

    A step that is done again must come out the same. Where it does not, the first file stays and the new lines go
    beside it, with `.differs` after the name.

    Raises:
        StorageError: The file system refused the write.
    """
    data = b"".join(encode_record(record) + b"\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_other = path.exists() and path.read_bytes() != data
    write_atomic(path.with_name(f"{path.name}.differs") if is_other else path, data)
    return digest_bytes(data)


def item_outcomes(rollouts: Sequence[Rollout]) -> tuple[ItemOutcome, ...]:
    """What the statistics see of judged rollouts; rollouts without a verdict are left out, never counted as failed."""
    return tuple(
        ItemOutcome(
            item=each.episode,
            family=each.family,
            success=each.score.success,
            tool_errors=each.tool_errors,
            invalid_calls=each.invalid_calls,
            malformed=each.score.malformed_answer,
            capped=each.end == "length",
            tokens_generated=each.tokens_generated,
            tokens_retained=each.tokens_retained,
        )
        for each in rollouts
        if each.score is not None
    )
