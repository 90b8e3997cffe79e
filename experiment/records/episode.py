"""Episodes as they are frozen in the plan."""

from __future__ import annotations

from typing import Literal

from experiment.records.base import Count, Digest, Record


class Message(Record):
    """One chat message of a prompt."""

    role: Literal["system", "user"]
    content: str


class Episode(Record):
    """A task instance: everything that the world needs to play and judge it."""

    schema_version: Literal[1] = 1
    id: str
    world: str
    family: str
    seed: Count
    messages: tuple[Message, ...]
    task_json: str
    """The world's own description of the task and its answer, canonical JSON."""
    content: Digest
    """Digest of world, family, messages and task: equal content is the same task under any id."""


class ToolSpec(Record):
    """One tool as the policy sees it: name, description and parameters (JSON Schema, string values only)."""

    name: str
    description: str
    parameters: tuple[tuple[str, str], ...]
    """(parameter name, description); every parameter is a required string."""
