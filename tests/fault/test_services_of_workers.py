"""Workers ask the driver for their world's service; where there is none, they end and the driver says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.errors import ServiceError
from experiment.pipeline.workers import Chain, WorkerPool
from experiment.records.base import Record
from experiment.records.job import Progressed, StarterJob
from experiment.records.recipe import Compute
from tests.doubles.small_plan import small_recipe

WORKER = "tests.doubles.asking_worker"
PATIENCE = "the server does not start"


class Told:
    """Services that answer with what they were asked, until they break."""

    def __init__(self, breaks_at: int = 99) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.breaks_at = breaks_at

    def address(self, slot: int, *, renew: bool) -> str:
        """Answer, or break."""
        self.asked.append((slot, renew))
        if len(self.asked) >= self.breaks_at:
            raise ServiceError(PATIENCE)
        return f"slot {slot}, renewed {renew}"

    def stop(self) -> None:
        """Do nothing."""


def run(tmp_path: Path, services: Told, names: tuple[str, ...], workers: int) -> list[tuple[str, str]]:
    """Let a worker ask for each name; returns what they were told."""
    heard: list[tuple[str, str]] = []

    def on_event(key: str, event: Record) -> None:
        if isinstance(event, Progressed):
            heard.append((key, event.label))

    pool = WorkerPool(Compute(workers=workers), tmp_path / "logs", module=WORKER, services=services)
    job = StarterJob(recipe=small_recipe(), output_dir=str(tmp_path / "out"))
    pool.run([Chain((name,), [lambda: [job]]) for name in names], on_event, lambda: None)
    return heard


def test_a_worker_is_told_where_the_service_of_its_slot_is(tmp_path: Path) -> None:
    services = Told()
    heard = run(tmp_path, services, ("one",), 1)
    assert heard == [("one", "slot 0, renewed False"), ("one", "slot 0, renewed True")]
    assert services.asked == [(0, False), (0, True)]


def test_workers_that_run_at_a_time_have_different_slots(tmp_path: Path) -> None:
    services = Told()
    run(tmp_path, services, ("one", "two", "three"), 2)
    assert {slot for slot, _ in services.asked} == {0, 1}
    assert len(services.asked) == 6


@pytest.mark.parametrize("breaks_at", [1, 2])
def test_a_service_that_cannot_be_had_ends_all_work_with_its_reason(tmp_path: Path, breaks_at: int) -> None:
    with pytest.raises(ServiceError, match=PATIENCE):
        run(tmp_path, Told(breaks_at), ("one", "two"), 1)


def test_a_world_without_services_is_told_nothing(tmp_path: Path) -> None:
    heard: list[str] = []
    pool = WorkerPool(Compute(), tmp_path / "logs", module=WORKER)
    job = StarterJob(recipe=small_recipe(), output_dir=str(tmp_path / "out"))
    pool.run([Chain(("one",), [lambda: [job]])], lambda _, event: heard.append(event.label), lambda: None)  # type: ignore[attr-defined]
    assert heard == ["", ""]
