"""Names of worlds and what they stand for; the one place that knows every world.

A world has two sides. `build_world` makes the one that generates and solves episodes; it needs nothing but Python. To
be played, a world may need a service, which `start_services` runs beside the driver and `connect_world` reaches from a
worker.
"""

# A world's service is loaded where it is used, because its libraries may not be installed.
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from experiment.environments.base import Environment, Services
from experiment.environments.delta_world.environment import DeltaWorld
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.math_qa.environment import MathQA
from experiment.environments.nemo_gym.client import GymAddress, GymClient
from experiment.environments.nemo_gym.environment import GymWorld
from experiment.environments.nemo_gym.gym_python import find_gym_python
from experiment.environments.nemo_gym.services import GymServices, make_servers, make_tasks
from experiment.records.world import DeltaTablesWorld, GermanToolsWorld, NemoGymWorld, World
from experiment.sealing.canonical import decode_record


def build_world(settings: World) -> Environment:
    """The world that a recipe's `[world]` names; where it needs a service, it cannot be opened."""
    if isinstance(settings, GermanToolsWorld):
        return GermanTools(settings.families, settings.number_formats)
    if isinstance(settings, NemoGymWorld):
        return GymWorld(make_tasks(settings))
    return DeltaWorld(settings.families)


def build_retention() -> MathQA:
    """The world of the retention suite."""
    return MathQA()


def describe_world(settings: World, gym_python: Path | None = None) -> tuple[tuple[str, str], ...]:
    """(name, value) of what the world's answers depend on besides the package and its distributions, sorted.

    Args:
        settings: The recipe's world.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.

    Raises:
        UsageError: Something is missing on this machine.
        PlanError: Something that is installed is not what it was when it was installed.
    """
    if isinstance(settings, GermanToolsWorld):
        return ()
    if isinstance(settings, NemoGymWorld):
        from experiment.environments.nemo_gym import frozen

        python = gym_python or find_gym_python(Path.cwd())
        return frozen.describe(python, make_servers(settings), Path(settings.lock))
    from experiment.environments.delta_world.facts import describe

    return describe(settings)


class NoServices:
    """What runs beside workers whose world is in their own process: nothing."""

    def address(self, slot: int, *, renew: bool) -> str:  # noqa: ARG002 - see `base.Services`
        """Return an empty address."""
        return ""

    def stop(self) -> None:
        """Do nothing."""


def start_services(settings: World, folder: Path, gym_python: Path | None = None) -> Services:
    """What the world needs beside the workers; it starts when the first worker asks for it.

    Args:
        settings: The recipe's world.
        folder: Where the services have their files and logs.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.

    Raises:
        UsageError: Gym's environment is missing.
    """
    if isinstance(settings, GermanToolsWorld):
        return NoServices()
    if isinstance(settings, NemoGymWorld):
        return GymServices(settings, gym_python or find_gym_python(Path.cwd()), folder)
    from experiment.environments.delta_world.service import DeltaServers

    return DeltaServers(settings, folder)


@contextmanager
def running_services(settings: World, folder: Path, gym_python: Path | None = None) -> Iterator[Services]:
    """What the world needs beside the workers, stopped with the block; see `start_services`."""
    services = start_services(settings, folder, gym_python)
    try:
        yield services
    finally:
        services.stop()


@contextmanager
def connect_world(settings: World, ask: Callable[[bool], str]) -> Iterator[Environment]:
    """The world, ready to be opened.

    Args:
        settings: The recipe's world.
        ask: Asks for the address of the service, in a new one where the argument is True.
    """
    if isinstance(settings, GermanToolsWorld):
        yield build_world(settings)
        return
    if isinstance(settings, NemoGymWorld):
        client = GymClient(decode_record(GymAddress, ask(False).encode()))
        try:
            yield GymWorld(make_tasks(settings), client)
        finally:
            client.close()
        return
    with _connect_delta(settings, ask) as world:
        yield world


@contextmanager
def open_worlds(
    settings: World, folder: Path, count: int = 1, gym_python: Path | None = None
) -> Iterator[list[Environment]]:
    """The world, `count` times, each ready to be opened, on services of this process that end with the block.

    Args:
        settings: The recipe's world.
        folder: Where the services have their files and logs.
        count: How many services are used side by side, where each world has its own.
        gym_python: Interpreter of NeMo Gym's environment; None takes the one that `make gym-env` makes.
    """
    with running_services(settings, folder, gym_python) as services, ExitStack() as stack:
        yield [
            stack.enter_context(
                connect_world(settings, lambda renew, slot=slot: services.address(slot, renew=renew))  # type: ignore[misc]
            )
            for slot in range(count)
        ]


@contextmanager
def _connect_delta(settings: DeltaTablesWorld, ask: Callable[[bool], str]) -> Iterator[Environment]:
    from experiment.environments.delta_world.fixtures import Fixtures
    from experiment.environments.delta_world.formatting import Limits
    from experiment.environments.delta_world.service import RenewedWorkspaces

    workspaces = RenewedWorkspaces(ask, Limits(statement_seconds=settings.statement_seconds))
    try:
        fixtures = Fixtures(Path(settings.cache_dir) / "fixtures", workspaces)
        yield DeltaWorld(settings.families, workspaces=workspaces, fixtures=fixtures)
    finally:
        workspaces.close()
