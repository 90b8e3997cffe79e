"""NeMo Gym's environment, where it has been made, and one service of the German world for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.environments.german_tools.environment import GermanTools
from experiment.environments.nemo_gym.client import GymClient
from experiment.environments.nemo_gym.environment import GymWorld
from experiment.environments.nemo_gym.gym_python import GymServers, find_gym_python
from experiment.environments.nemo_gym.replay_policy import ReplayPolicy
from experiment.environments.nemo_gym.service import GymService
from experiment.environments.nemo_gym.tasks import GermanTasks
from experiment.errors import UsageError

TASKS = GermanTasks(GermanTools())
SHIPPED = "resources_servers/example_session_state_mgmt"
COUNTER = GymServers(configs=(f"{SHIPPED}/configs/example_session_state_mgmt.yaml",))


@pytest.fixture(scope="session")
def gym_python(pytestconfig: pytest.Config) -> Path:
    """Gym's interpreter: that of the environment variable `GYM_PYTHON`, else that of `.venv-gym`."""
    if given := os.environ.get("GYM_PYTHON"):
        return Path(given)
    try:
        return find_gym_python(pytestconfig.rootpath)
    except UsageError as error:
        pytest.skip(f"{error} ({error.remedy})")


@pytest.fixture(scope="session")
def policy() -> Iterator[ReplayPolicy]:
    policy = ReplayPolicy.start()
    yield policy
    policy.stop()


@pytest.fixture(scope="session")
def service(gym_python: Path, policy: ReplayPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GymService]:
    folder = tmp_path_factory.mktemp("gym")
    service = GymService.start(gym_python, GymServers(), folder, tasks=TASKS, policy=policy.place)
    yield service
    service.stop()


@pytest.fixture(scope="session")
def world(service: GymService) -> Iterator[GymWorld]:
    client = GymClient(service.address())
    yield GymWorld(TASKS, client)
    client.close()
