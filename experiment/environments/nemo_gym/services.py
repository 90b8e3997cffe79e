"""The NeMo Gym service of a driver and how its workers find it: one for all of them, started when first asked for."""

from __future__ import annotations

import os
from pathlib import Path

from experiment.environments.base import is_whole
from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.gym_python import GymServers
from experiment.environments.nemo_gym.rows import RowTasks
from experiment.environments.nemo_gym.service import GymService
from experiment.environments.nemo_gym.tasks import GermanTasks, GymTasks
from experiment.records.world import NemoGymWorld
from experiment.sealing.canonical import encode_record


def make_tasks(settings: NemoGymWorld) -> GymTasks:
    """What the world knows without its service.

    Raises:
        UsageError: The rows cannot be read or played here.
    """
    if settings.rows:
        return RowTasks(Path(settings.rows))
    return GermanTasks(GermanTools(settings.families, settings.number_formats))


def make_servers(settings: NemoGymWorld) -> GymServers:
    """Which resources server is served: the recipe's, or ours."""
    if settings.configs:
        return GymServers(settings.configs, settings.server or None)
    return GymServers()


class GymServices:
    """The one service of a driver.

    Args:
        settings: The recipe's world.
        python: Gym's interpreter.
        folder: Where the service has its files and log.
    """

    def __init__(self, settings: NemoGymWorld, python: Path, folder: Path) -> None:
        self._settings = settings
        self._python = python
        self._folder = folder
        self._service: GymService | None = None
        self._started = 0

    def address(self, slot: int, *, renew: bool) -> str:  # noqa: ARG002 - all workers share it
        """Return the address of the service, which has passed its self-test; see `base.Services`."""
        if self._service is not None and (renew or not is_whole(self._service)):
            self.stop()
        if self._service is None:
            self._started += 1
            folder = self._folder / f"{os.getpid()}-gym-{self._started:03d}"
            servers = make_servers(self._settings)
            self._service = GymService.start(self._python, servers, folder, tasks=make_tasks(self._settings))
        return encode_record(self._service.address()).decode()

    def stop(self) -> None:
        """Stop the service; its log stays."""
        if self._service is not None:
            self._service.stop()
        self._service = None
