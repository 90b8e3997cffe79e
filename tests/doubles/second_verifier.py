"""A second verifier of journals, written from `docs/journal-format.md` alone; imports nothing of the package."""

from __future__ import annotations

import json
import pathlib
import sys

from blake3 import blake3


def derived(context: str, data: bytes) -> str:
    return blake3(data, derive_key_context=f"experiment 2026-11-29 journal {context} v1").hexdigest()


def opened(line: bytes, context: str) -> tuple[str, dict]:
    stored, raw = line[6:70].decode(), line[76:-2]
    assert line == b'{"h":"' + stored.encode() + b'","r":' + raw + b"}\n", "J2"
    assert derived(context, raw) == stored, "J3"
    return stored, json.loads(raw)


def verify(run_dir: pathlib.Path) -> tuple[int, str]:
    """Return (records, hash of the last one) of a journal in which rules J1 to J3, J6, J7 and J11 to J13 hold."""
    count, prev, kind, unclosed = 0, "", "", []
    marked, head = opened((run_dir / "head.json").read_bytes(), "head")[1], None
    for number, path in enumerate(sorted((run_dir / "journal").iterdir())):
        assert path.name == f"{number:06d}.jsonl", "J1"
        data, good = path.read_bytes(), 0
        for index, line in enumerate(data.splitlines(keepends=True)):
            if not line.endswith(b"\n"):
                break
            stored, record = opened(line, "record")
            if count == 0:
                prev = derived("genesis", (record["body"]["plan"] + record["run"]).encode())
            assert (record["seq"], record["prev"], record["seg"]) == (count, prev, number), "J6"
            assert ((record["type"] in {"genesis", "resume"}) == (index == 0)) and kind != "close", "J7, J13"
            if record["type"] == "resume":
                assert record["body"]["closes"] == unclosed, "J11"
                unclosed = []
            count, prev, kind, good = count + 1, stored, record["type"], good + len(line)
            if count == marked["size"]:
                head = {"bytes": good, "h": stored, "run": record["run"], "seg": number, "size": count, "v": 1}
        torn = data[good:]
        unclosed.append({"b3": blake3(torn).hexdigest(), "good": good, "seg": number, "torn": len(torn)})
    assert head == marked, "J12"
    return count, prev


if __name__ == "__main__":
    print(*verify(pathlib.Path(sys.argv[1])))
