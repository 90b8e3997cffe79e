"""Deadlines for every request to a Spark Connect server: one that hangs is a broken service, not a wait without end."""

# gRPC is untyped.
# ruff: noqa: ANN401

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc


class _Details(NamedTuple):
    """What gRPC asks of the details of a call."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class Deadlines(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Gives every call a deadline; what is late fails with `DEADLINE_EXCEEDED`.

    Args:
        question_seconds: For a question that the server answers at once.
        statement_seconds: For a statement, from its start to its last row.
    """

    def __init__(self, question_seconds: float, statement_seconds: float) -> None:
        self._question_seconds = question_seconds
        self._statement_seconds = statement_seconds

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Ask within the time of a question."""
        return continuation(_within(details, self._question_seconds), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Ask within the time of a statement."""
        return continuation(_within(details, self._statement_seconds), request)


def _within(details: Any, seconds: float) -> _Details:
    return _Details(
        method=details.method,
        timeout=seconds,
        metadata=details.metadata,
        credentials=details.credentials,
        wait_for_ready=getattr(details, "wait_for_ready", None),
        compression=getattr(details, "compression", None),
    )
