"""The names of worlds: each is built, and one that needs a service is not opened without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.environments.catalogue import (
    NoServices,
    build_retention,
    build_world,
    connect_world,
    describe_world,
    open_worlds,
    start_services,
)
from experiment.environments.delta_world.service import DeltaServers
from experiment.errors import UsageError
from experiment.records.world import DeltaTablesWorld, GermanToolsWorld, NemoGymWorld, World

WORLDS: tuple[World, ...] = (GermanToolsWorld(), DeltaTablesWorld(), NemoGymWorld())


@pytest.mark.parametrize("settings", WORLDS, ids=lambda each: each.name)
def test_every_world_generates_and_solves_without_its_service(settings: World) -> None:
    world = build_world(settings)
    assert world.name == settings.name
    episodes = world.generate(prefix="e", count=4, seed=3, taken=frozenset())
    assert len(episodes) == 4
    assert all(world.solve(each) for each in episodes)


def test_world_of_the_retention_suite_is_another() -> None:
    assert build_retention().name not in {each.name for each in WORLDS}


@pytest.mark.parametrize("settings", WORLDS, ids=lambda each: each.name)
def test_families_of_the_recipe_are_those_of_the_world(settings: World) -> None:
    first, second, *_ = build_world(settings).families
    chosen = settings.model_copy(update={"families": (second, first)})
    assert build_world(chosen).families in {(first, second), (second, first)}


@pytest.mark.parametrize("settings", WORLDS[1:], ids=lambda each: each.name)
def test_world_is_not_opened_without_its_service(settings: World) -> None:
    world = build_world(settings)
    with pytest.raises(UsageError, match="without"):
        world.open(world.generate(prefix="e", count=1, seed=3, taken=frozenset())[0])


def test_world_without_a_service_is_opened_at_once_and_asks_nobody(tmp_path: Path) -> None:
    with connect_world(GermanToolsWorld(), lambda _renew: pytest.fail("nobody is asked")) as world:
        assert world.name == "german_tools"
    with open_worlds(GermanToolsWorld(), tmp_path) as (world,):
        episode = world.generate(prefix="e", count=1, seed=3, taken=frozenset())[0]
        session, turns = world.open(episode), world.solve(episode)
        for turn in turns:
            for name, arguments in turn.calls:
                session.call(name, dict(arguments))
        assert session.verify(turns[-1].text).success
    assert list(tmp_path.iterdir()) == []


def test_services_are_those_of_the_world_and_start_nothing_before_they_are_asked(tmp_path: Path) -> None:
    nothing = start_services(GermanToolsWorld(), tmp_path)
    assert isinstance(nothing, NoServices)
    assert nothing.address(0, renew=True) == ""
    servers = start_services(DeltaTablesWorld(), tmp_path)
    assert isinstance(servers, DeltaServers)
    for each in (nothing, servers):
        each.stop()
        each.stop()
    assert list(tmp_path.iterdir()) == []


def test_gym_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="Gym"):
        start_services(NemoGymWorld(), tmp_path)


def test_world_in_the_worker_depends_on_nothing_else() -> None:
    assert describe_world(GermanToolsWorld()) == ()
