"""What tasks are about: tiers, domains with their names, and rows drawn from a named stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import TypeVar

from experiment.environments.delta_world.tables import Column, Row
from experiment.sealing.seeds import derive_seed

T = TypeVar("T")

_FIRST_DAY = date(2024, 1, 1)


@dataclass(frozen=True, slots=True)
class Domain:
    """A line of business: what its tables and columns are called, and what they hold."""

    tables: tuple[str, ...]
    key: str
    party: str
    amount: str
    group: str
    day: str
    parties: tuple[str, ...]
    groups: tuple[str, ...]
    new_names: tuple[str, ...]
    """Names that a column may get; no column has one of them."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A level of difficulty; no schema or table name is in two tiers."""

    name: str
    schemas: tuple[str, ...]
    domains: tuple[Domain, ...]
    """One per variant."""
    rows: tuple[int, int]
    """Fewest and most rows of a main table."""
    upkeep: int
    """Ordinary commits that lengthen every main table's history."""
    distractors: int
    """Tables that no task mentions, at most."""
    suffixes: tuple[str, ...]
    """What is appended to the main table's name for a distractor."""


@dataclass(slots=True)
class Draw:
    """A stream of choices that depends on its name alone."""

    name: str
    count: int = 0

    def number(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        self.count += 1
        return low + derive_seed(0, self.name, self.count) % (high - low + 1)

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.number(0, len(options) - 1)]

    def sample(self, options: Sequence[T], count: int) -> tuple[T, ...]:
        """Return `count` different options, in their order."""
        left = list(range(len(options)))
        chosen = [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]
        return tuple(options[place] for place in sorted(chosen))


@dataclass(slots=True)
class Scene:
    """One variant of one tier, as a kind of task sees it."""

    tier: Tier
    domain: Domain
    draw: Draw

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of a main table."""
        domain = self.domain
        return (
            Column(domain.key, "integer"),
            Column(domain.party, "string"),
            Column(domain.amount, "decimal(10,2)"),
            Column(domain.group, "string"),
            Column(domain.day, "date"),
        )

    def count(self) -> int:
        """Return a number of rows for a main table."""
        return self.draw.number(*self.tier.rows)

    def make_rows(self, count: int, first: int) -> list[Row]:
        """Return rows with the keys from `first` on; every group and party occurs where there are enough rows."""
        return [self._row(first + offset, offset) for offset in range(count)]

    def _row(self, key: int, offset: int) -> Row:
        draw, domain = self.draw, self.domain
        return (
            key,
            domain.parties[(offset + draw.number(0, 1)) % len(domain.parties)],
            Decimal(draw.number(500, 90000)) / 100,
            domain.groups[offset % len(domain.groups)] if offset < len(domain.groups) else draw.pick(domain.groups),
            _FIRST_DAY + timedelta(days=draw.number(0, 150)),
        )


_PEOPLE = ("Acme", "Birch Ltd", "Corvo", "Delphi Foods", "Ember Works", "Fjord AS", "Gale Partners", "Harbor Inn")
_FAR_PEOPLE = ("Iris Clinic", "Juniper House", "Kestrel Air", "Lumen Labs", "Mosaic Tiles", "Nimbus Net", "Opal Arts")

STANDARD = Tier(
    name="standard",
    schemas=("ops", "sales", "finance", "billing", "core", "crm", "retail", "support", "supply", "reporting"),
    domains=(
        Domain(
            tables=("invoices", "open_invoices", "customer_invoices", "monthly_invoices"),
            key="id", party="customer", amount="amount", group="region", day="issued_on",
            parties=_PEOPLE, groups=("north", "south", "east", "west"),
            new_names=("client", "net_amount", "area", "billed_on", "account"),
        ),
        Domain(
            tables=("orders", "web_orders", "order_lines", "partner_orders"),
            key="order_id", party="buyer", amount="total", group="channel", day="ordered_on",
            parties=_PEOPLE, groups=("web", "phone", "shop"),
            new_names=("purchaser", "order_value", "sales_channel", "placed_on", "gross"),
        ),
        Domain(
            tables=("shipments", "parcels", "outbound_shipments", "returns"),
            key="shipment_id", party="receiver", amount="weight", group="depot", day="shipped_on",
            parties=_PEOPLE, groups=("berlin", "lyon", "porto", "turin"),
            new_names=("recipient", "weight_kg", "warehouse", "sent_on", "origin"),
        ),
        Domain(
            tables=("payments", "card_payments", "bank_payments", "refunds"),
            key="payment_id", party="payer", amount="paid", group="method", day="paid_on",
            parties=_PEOPLE, groups=("card", "cash", "transfer"),
            new_names=("debtor", "sum_paid", "payment_method", "booked_on", "means"),
        ),
    ),
    rows=(18, 40),
    upkeep=0,
    distractors=1,
    suffixes=("archive", "old", "copy", "test"),
)  # fmt: skip

HARD = Tier(
    name="hard",
    schemas=("gold_risk", "lake_eu", "field_data", "grid", "ledger_v2", "claims_hub", "mart_north", "raw_zone"),
    domains=(
        Domain(
            tables=("policy_claims", "motor_claims", "home_claims", "claim_payouts"),
            key="claim_no", party="insured", amount="payout", group="branch", day="filed_on",
            parties=_FAR_PEOPLE, groups=("motor", "home", "travel", "health", "cargo"),
            new_names=("policy_holder", "settled_amount", "line_of_business", "reported_on", "holder"),
        ),
        Domain(
            tables=("meter_readings", "gas_readings", "water_readings", "heat_readings"),
            key="reading_no", party="household", amount="usage", group="district", day="read_on",
            parties=_FAR_PEOPLE, groups=("harbour", "hill", "market", "mill", "old_town", "station"),
            new_names=("consumer", "usage_kwh", "quarter", "measured_on", "meter_owner"),
        ),
        Domain(
            tables=("subscription_events", "plan_changes", "seat_usage", "trial_events"),
            key="event_no", party="tenant", amount="charge", group="plan", day="effective_on",
            parties=_FAR_PEOPLE, groups=("free", "team", "scale", "enterprise", "partner"),
            new_names=("workspace_owner", "charge_eur", "tariff", "valid_from", "organisation"),
        ),
    ),
    rows=(70, 120),
    upkeep=6,
    distractors=3,
    suffixes=("backup_2023", "snapshot", "staging_old", "v1", "quarantine", "dev"),
)  # fmt: skip

TIERS = (STANDARD, HARD)
