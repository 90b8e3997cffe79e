"""What an audit says: findings with stable identifiers, facts in a fixed order, one verdict, one exit code."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

Severity = Literal["corrupt", "rollback", "differs", "mismatch", "unverifiable", "open"]
Level = Literal["bytes", "protocol", "recompute"]

# Worst first; the number is the exit code.
_EXIT: dict[Severity, int] = {
    "corrupt": 4,
    "rollback": 6,
    "differs": 5,
    "mismatch": 8,
    "unverifiable": 7,
    "open": 3,
}
_VERDICTS: dict[int, str] = {
    0: "closed and verified",
    3: "consistent, but not finished",
    4: "damaged or changed after it was written",
    5: "plan or input is not what was frozen",
    6: "not the history that an earlier head vouches for",
    7: "not fully verifiable: something is missing or of an unknown kind",
    8: "the protocol was not followed, or a number does not follow from the evidence",
}
_SEVERITIES: dict[str, Severity] = {
    "J-OPEN": "open",
    "J-TORN": "open",
    "T-LEFTOVER": "open",
    "J-RECORD": "unverifiable",
    "J-MISSING": "unverifiable",
    "A-MISSING": "unverifiable",
    "T-MISSING": "unverifiable",
    "I-SCHEMA": "unverifiable",
}
_FAMILIES: dict[str, Severity] = {
    "J": "corrupt",
    "A": "corrupt",
    "T": "corrupt",
    "I": "differs",
    "K": "rollback",
    "P": "mismatch",
    "R": "mismatch",
}
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """Return `text` on one line with every control, format and private character escaped.

    Text of a run may come from a model; printed as it is, it could move the cursor or hide a finding.
    """
    return "".join(f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in _HIDDEN else char for char in text)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it has to be."""

    id: str
    """Stable identifier, for example `J-CHAIN`."""
    place: str
    """File, record or step."""
    message: str

    @property
    def severity(self) -> Severity:
        """How bad findings of this identifier are."""
        return _SEVERITIES.get(self.id) or _FAMILIES[self.id[0]]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The outcome of an audit."""

    facts: tuple[tuple[str, str], ...]
    """(key, value) in a fixed order."""
    findings: tuple[Finding, ...]
    """In the order of the checks."""

    @property
    def exit_code(self) -> int:
        """0 for a closed and verified run, else the exit code of the worst finding."""
        present = {finding.severity for finding in self.findings}
        return next((code for severity, code in _EXIT.items() if severity in present), 0)

    @property
    def verdict(self) -> str:
        """The last line that is printed."""
        return f"VERDICT: {_VERDICTS[self.exit_code]}"

    def lines(self) -> tuple[str, ...]:
        """Everything as safe text, one `key: value` per line."""
        facts = [f"{key}: {printable(value)}" for key, value in self.facts]
        found = [
            f"finding: {printable(each.id)} [{each.severity}] {printable(each.place)}: {printable(each.message)}"
            for each in self.findings
        ]
        return (*facts, *found, self.verdict)

    def document(self) -> dict[str, object]:
        """Everything as plain values, for `--json`."""
        return {
            "facts": [[key, printable(value)] for key, value in self.facts],
            "findings": [
                {
                    "id": each.id,
                    "severity": each.severity,
                    "place": printable(each.place),
                    "message": printable(each.message),
                }
                for each in self.findings
            ],
            "exit_code": self.exit_code,
            "verdict": self.verdict,
        }


class Notes:
    """Collects findings and facts while an audit goes on."""

    def __init__(self) -> None:
        self._facts: list[tuple[str, str]] = []
        self._findings: list[Finding] = []

    def fact(self, key: str, value: object) -> None:
        """Add a line to the facts."""
        self._facts.append((key, str(value)))

    def find(self, id_: str, place: str, message: str) -> None:
        """Add a finding."""
        self._findings.append(Finding(id_, place, message))

    def require(self, holds: bool, id_: str, place: str, message: str) -> bool:  # noqa: FBT001
        """Add a finding unless `holds`, which is returned."""
        if not holds:
            self.find(id_, place, message)
        return holds

    def bad_places(self) -> set[str]:
        """The places of all findings so far."""
        return {each.place for each in self._findings}

    def count(self, prefix: str) -> int:
        """How many findings have an identifier that starts so."""
        return sum(each.id.startswith(prefix) for each in self._findings)

    def report(self) -> AuditReport:
        """Freeze what was collected."""
        return AuditReport(facts=tuple(self._facts), findings=tuple(self._findings))
