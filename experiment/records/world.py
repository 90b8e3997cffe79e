"""The `[world]` section of a recipe: which world is played, and what its generator may produce."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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
    """A Java runtime or home for our own servers; empty takes the first suitable one."""
    cache_dir: str = ".cache/delta"
    """Where jars and tables that were laid out once are kept."""
    statement_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 60.0
    """A statement that runs longer is stopped."""


World = Annotated[GermanToolsWorld | DeltaTablesWorld, Field(discriminator="name")]
