"""Any NeMo Gym resources server as a world: prompts, tools and all else come from its JSONL rows.

- A row is an episode; the whole row seeds the server's session and goes to its verifier. All rows declare the same
  tools, since a world has one set of them.
- Our tool calls carry strings. Where a tool's schema allows no string, the text is read as JSON (`3`, `[1, 2]`,
  `true`); text that is no JSON is sent as it is, and the server refuses it in its own words. A parameter that is not
  required is left out where its text is empty.
- Success is a reward of at least 1. The reward, cut to [0, 1], stands for form. A rollout without a last message has
  a malformed answer.
- Nothing here can solve a row, so there is no scripted solver, and a service's self-test expects a verdict, not which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.environments.base import STANDARD, NativeCall, Script, ScriptedTurn
from experiment.environments.generation import Draft, Space, generate_distinct, require_tier
from experiment.environments.nemo_gym.tasks import WORLD, Probe, read_reward
from experiment.errors import UsageError
from experiment.records.episode import Episode, Message, ToolSpec
from experiment.records.rollout import Score
from experiment.sealing.canonical import encode

FAMILY = "rows"
_REQUEST = "responses_create_params"
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROUTES = frozenset({"seed_session", "verify", "aggregate_metrics", "close_session", "reverify_mode", "mcp", "docs"})
"""What a server answers beside its tools."""
_ROLES = {"system": "system", "developer": "system", "user": "user"}


class RowTasks:
    """The rows of one file.

    Args:
        path: A JSONL file as NeMo Gym's data sets are.

    Raises:
        UsageError: A row cannot be played here, or the rows declare different tools.
    """

    def __init__(self, path: Path) -> None:
        self._rows = _read_rows(path)
        declared = [_declared_tools(row) for row in self._rows]
        for number, tools in enumerate(declared):
            if tools != declared[0]:
                msg = f"{path}, line {number + 1}: declares other tools than line 1"
                raise UsageError(msg, remedy="Keep rows with different tools in different files and recipes.")
        try:
            self._schemas = {str(tool["name"]): _read_schema(tool) for tool in declared[0]}
            self._tools = tuple(_read_tool(tool, self._schemas[str(tool["name"])]) for tool in declared[0])
            self._messages = [_read_messages(row) for row in self._rows]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"{path}: a row cannot be played here: {error}"
            raise UsageError(msg) from error

    @property
    def families(self) -> tuple[str, ...]:
        """One family, since a row does not say what it is like."""
        return (FAMILY,)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that every row declares."""
        return self._tools

    @property
    def can_close(self) -> bool:
        """False: a session that is not judged stays with the server until that ends."""
        return False

    @property
    def habits(self) -> Mapping[str, Script]:
        """None: nobody knows what is bad."""
        return {}

    def generate(
        self, *, prefix: str, count: int, seed: int, taken: frozenset[str], tier: str = STANDARD
    ) -> tuple[Episode, ...]:
        """Choose `count` rows by the seed, none of them twice.

        Raises:
            UsageError: There are fewer rows than asked for, or a tier is.
        """
        require_tier(WORLD, (STANDARD,), tier)
        space = Space(family=FAMILY, size=len(self._rows), draft=self._draft)
        return generate_distinct(WORLD, (space,), prefix=prefix, count=count, seed=seed, taken=taken)

    def solve(self, episode: Episode) -> tuple[ScriptedTurn, ...]:
        """Raise: nobody knows the answer.

        Raises:
            UsageError: Always.
        """
        msg = f"episode '{episode.id}': rows of a NeMo Gym server have no scripted solver"
        raise UsageError(msg, remedy="Name a finished baseline in the recipe instead of a `[starter]`.")

    def row(self, episode: Episode) -> dict[str, object]:
        """Return the episode's row.

        Raises:
            UsageError: The episode belongs to another world.
        """
        if episode.world != WORLD:
            msg = f"episode '{episode.id}' belongs to world {episode.world}, not to {WORLD}"
            raise UsageError(msg)
        row: dict[str, object] = json.loads(episode.task_json)
        return row

    def arguments(self, name: str, arguments: Mapping[str, str]) -> dict[str, object]:
        """Return the values that the tool's schema asks for."""
        schema = self._schemas[name]
        required = schema.get("required", ())
        return {
            each: _read_value(schema["properties"][each], text)
            for each, text in arguments.items()
            if text or each in required
        }

    def read_score(self, verdict: Mapping[str, object], final_text: str) -> Score:
        """Return the score that a reward stands for.

        Raises:
            ServiceError: The verdict has no finite reward.
        """
        reward = read_reward(verdict)
        return Score(success=reward >= 1.0, format=min(max(reward, 0.0), 1.0), malformed_answer=not final_text.strip())

    def read_log(self, verdict: Mapping[str, object]) -> tuple[NativeCall, ...] | None:  # noqa: ARG002 - it has none
        """Return None: a verdict says nothing about calls."""
        return None

    def probes(self) -> tuple[Probe, ...]:
        """Return a rollout of the first row that does nothing."""
        (episode,) = self.generate(prefix="probe", count=1, seed=0, taken=frozenset())
        return (Probe(episode, (), success=None),)

    def _draft(self, number: int, _seed: int) -> Draft:
        row = self._rows[number]
        return Draft(family=FAMILY, messages=self._messages[number], task=row, essence=row)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        for row in rows:
            encode(row)
    except (OSError, ValueError) as error:
        msg = f"{path}: is no JSONL file that can be frozen ({error})"
        raise UsageError(msg) from error
    if not rows or not all(isinstance(row, dict) and isinstance(row.get(_REQUEST), dict) for row in rows):
        msg = f"{path}: every line has to be an object with `{_REQUEST}`, and there is none or another"
        raise UsageError(msg)
    return rows


def _declared_tools(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [tool for tool in row[_REQUEST].get("tools") or [] if isinstance(tool, dict)]


def _read_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's schema with `properties`.

    Raises:
        ValueError: The tool cannot be called as a route, or its parameters are not an object's.
    """
    name = tool["name"]
    if tool.get("type") != "function" or not _TOOL_NAME.fullmatch(name) or name in _ROUTES:
        msg = f"tool '{name}' is no function that a route of the server can stand for"
        raise ValueError(msg)
    schema = tool.get("parameters") or {}
    if schema.get("type", "object") != "object":
        msg = f"tool '{name}' takes no object"
        raise ValueError(msg)
    return {**schema, "properties": schema.get("properties") or {}}


def _read_tool(tool: dict[str, Any], schema: dict[str, Any]) -> ToolSpec:
    required = schema.get("required", ())
    return ToolSpec(
        name=tool["name"],
        description=tool.get("description") or tool["name"],
        parameters=tuple(
            (name, _describe(name, value, is_required=name in required))
            for name, value in sorted(schema["properties"].items())
        ),
    )


def _describe(name: str, schema: dict[str, Any], *, is_required: bool) -> str:
    notes = [] if _allows_text(schema) else [f"{schema.get('type', 'value')} as JSON text"]
    notes += [] if is_required else ["may be empty"]
    text = schema.get("description") or name
    return f"{text} ({', '.join(notes)})" if notes else str(text)


def _allows_text(schema: dict[str, Any]) -> bool:
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if branches:
        return any(_allows_text(branch) for branch in branches)
    kind = schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def _read_value(schema: dict[str, Any], text: str) -> object:
    if _allows_text(schema):
        return text
    try:
        value = json.loads(text)
        # Depth, NaN and numbers that JSON does not carry exactly.
        encode([[value]])
    except (ValueError, RecursionError):
        return text
    return value


def _read_messages(row: dict[str, Any]) -> tuple[Message, ...]:
    """Return the prompt.

    Raises:
        ValueError: It is not made of system, developer and user messages with plain text.
    """
    given = row[_REQUEST]["input"]
    entries = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = []
    for entry in entries:
        role, content = entry.get("role"), entry.get("content")
        if role not in _ROLES or not isinstance(content, str):
            msg = f"a prompt has a message of role {role!r} or without plain text"
            raise ValueError(msg)
        messages.append(Message(role=_ROLES[role], content=content))  # type: ignore[arg-type]
    return tuple(messages)
