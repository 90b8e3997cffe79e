"""German lookup and calculator tasks served by NeMo Gym's own server class; tasks, tools and verdicts are the world's.

A row carries the episode in `verifier_metadata`. A tool answers 200 with the result or 400 with the world's error
text, both plain; a call that is not declared so never reaches the world and is answered 422.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import ConfigDict, PrivateAttr

from experiment.environments.german_tools.environment import TOOLS, GermanSession, GermanTools
from experiment.errors import UsageError
from experiment.records.episode import Episode, ToolSpec
from experiment.sealing.canonical import decode_record, encode

_WRONG_ARGUMENTS = "Fehler: Die Argumente passen nicht zum Werkzeug."


class SeedRequest(BaseSeedSessionRequest):
    """A row; only the episode is read."""

    verifier_metadata: dict[str, Any]


class VerifyRequest(BaseVerifyRequest):
    """A row and the response to it."""

    model_config = ConfigDict(extra="allow")


class VerifyResponse(BaseVerifyResponse):
    """The row, the response and the whole verdict."""

    model_config = ConfigDict(extra="allow")


class GermanToolsServer(SimpleResourcesServer):
    """One private session of the world per Gym session, from its seed to its verdict."""

    _world: GermanTools = PrivateAttr(default_factory=GermanTools)
    _sessions: dict[str, GermanSession] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        """Return Gym's own application with one route per tool."""
        app: FastAPI = super().setup_webserver()
        for tool in TOOLS:
            app.post(f"/{tool.name}")(self._tool_route(tool))
        app.post("/close_session")(self.close_session)
        return app

    async def seed_session(self, request: Request, body: SeedRequest) -> BaseSeedSessionResponse:
        """Open the session of an episode; a session is seeded once."""
        key = request.session[SESSION_ID_KEY]
        if key in self._sessions:
            raise HTTPException(409, "this session has been seeded")
        try:
            episode = decode_record(Episode, encode(body.verifier_metadata.get("episode")))
            self._sessions[key] = self._world.open(episode)
        except (ValueError, UsageError) as error:
            raise HTTPException(422, f"the row holds no playable episode: {error}") from error
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: VerifyRequest) -> VerifyResponse:
        """Judge the session from its own log and the last message, and forget it."""
        session = self._sessions.pop(request.session[SESSION_ID_KEY], None)
        if session is None:
            raise HTTPException(409, "this session has not been seeded, or has been judged")
        score = session.verify(_final_text(body))
        calls = [
            {
                "name": call.name,
                "arguments": dict(call.arguments),
                "text": call.result.text,
                "is_error": call.result.is_error,
            }
            for call in session.native_calls()
        ]
        verdict = {"reward": float(score.success), **score.model_dump(), "executed": calls}
        return VerifyResponse(**body.model_dump(), **verdict)

    async def close_session(self, request: Request) -> dict[str, bool]:
        """Forget a session that will not be judged; says whether there was one."""
        return {"closed": self._sessions.pop(request.session[SESSION_ID_KEY], None) is not None}

    def _tool_route(self, tool: ToolSpec) -> Callable[[Request], Awaitable[Response]]:
        parameters = sorted(name for name, _ in tool.parameters)

        async def call_tool(request: Request) -> Response:
            session = self._sessions.get(request.session[SESSION_ID_KEY])
            if session is None:
                raise HTTPException(409, "this session has not been seeded, or has been judged")
            arguments = _read_arguments(await request.body(), parameters)
            if arguments is None:
                return Response(_WRONG_ARGUMENTS, status_code=422, media_type="text/plain")
            result = session.call(tool.name, arguments)
            return Response(result.text, status_code=400 if result.is_error else 200, media_type="text/plain")

        return call_tool


def _read_arguments(body: bytes, parameters: list[str]) -> dict[str, str] | None:
    """Return the arguments where they are exactly the declared strings."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or sorted(fields) != parameters:
        return None
    return fields if all(isinstance(value, str) for value in fields.values()) else None


def _final_text(body: VerifyRequest) -> str:
    """Return the text of the message that ended the rollout; empty where something else did."""
    last = body.response.output[-1] if body.response.output else None
    if last is None or last.type != "message" or last.role != "assistant":
        return ""
    return "".join(part.text for part in last.content if part.type == "output_text")


if __name__ == "__main__":
    GermanToolsServer.run_webserver()
