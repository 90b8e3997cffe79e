"""HTTP to a NeMo Gym service of ours: connections that are kept, deadlines, and no reply of another's server.

A request is sent once. Whatever then goes wrong is an error: a tool that may have run is never called again.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from experiment.errors import ServiceError
from experiment.records.base import Count, Record

IDENTITY_HEADER = "x-service-identity"
MAX_REPLY_BYTES = 4 << 20
"""Of a longer reply the start is kept; what a tool prints may have any length."""

_CONNECT_PATIENCE_S = 5.0
_ALIVE_PATIENCE_S = 10.0
_CHUNK = 1 << 16


class GymAddress(Record):
    """Where a running service is and how it is told from any other."""

    server_url: str
    """Base of the resources server."""
    agent_url: str | None
    """Base of Gym's own agent, where it is hosted."""
    identity: str
    """What every reply of the service carries."""
    pid: Count
    """The service's process, which leads a session of the same number."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service answered."""

    status: int
    body: bytes
    """At most `MAX_REPLY_BYTES`."""
    is_whole: bool
    """False where the reply was longer."""
    cookies: tuple[tuple[str, str], ...]
    """(name, value) of the cookies that it set."""

    def read_object(self) -> dict[str, object] | None:
        """Return the JSON object that the reply is; None where it is another thing, or cut."""
        try:
            value = json.loads(self.body) if self.is_whole else None
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class GymClient:
    """One service's resources server (or agent) for many threads at a time.

    Args:
        address: The service.
        patience_s: How long a reply may take from the request to its last byte.
        base: Base of the server to talk to; the resources server's where it is None.
    """

    def __init__(self, address: GymAddress, *, patience_s: float = 60.0, base: str | None = None) -> None:
        self._identity = address.identity
        self._patience_s = patience_s
        place = urlsplit(base or address.server_url)
        self._host, self._port = place.hostname or "", place.port or 0
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._broken = ""
        """Why nothing more is asked of the service: whoever waits for one that hangs waits once."""

    def post(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Reply:
        """Send JSON and return the reply, whatever its status.

        Raises:
            ServiceError: No whole reply came in time, or another server gave it; now, or to an earlier request.
        """
        jar = "; ".join(f"{name}={value}" for name, value in cookies.items())
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return self._exchange("POST", path, head + (f"Cookie: {jar}\r\n" if jar else ""), body, self._patience_s)

    def require_alive(self) -> None:
        """Return only if the service answers and is the one that was started.

        Raises:
            ServiceError: It does not answer, or another server does.
        """
        reply = self._exchange("GET", "/", "", b"", min(self._patience_s, _ALIVE_PATIENCE_S))
        if reply.status != http.client.OK:
            msg = f"the NeMo Gym service at port {self._port} says {reply.status} when asked whether it lives"
            raise ServiceError(msg)

    def close(self) -> None:
        """Close the connections that are kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(self, method: str, path: str, head: str, body: bytes, patience_s: float) -> Reply:
        if self._broken:
            raise ServiceError(self._broken)
        try:
            return self._ask(method, path, head, body, patience_s)
        except ServiceError as error:
            self._broken = str(error)
            raise

    def _ask(self, method: str, path: str, head: str, body: bytes, patience_s: float) -> Reply:
        deadline = time.monotonic() + patience_s
        request = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{head}\r\n".encode("latin-1") + body
        connection: socket.socket | None = None
        try:
            connection = self._take()
            connection.settimeout(patience_s)
            # In one piece, which the library's own client does not do: the service is woken once.
            connection.sendall(request)
            with http.client.HTTPResponse(connection, method=method) as response:
                response.begin()
                reply = self._read(response, connection, deadline)
                is_kept = reply.is_whole and not response.will_close
        except (OSError, http.client.HTTPException) as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            msg = f"the NeMo Gym service at port {self._port} broke at {method} {path}: {what}"
            raise ServiceError(msg) from error
        else:
            if is_kept:
                with self._lock:
                    self._idle.append(connection)
                connection = None
            return reply
        finally:
            if connection is not None:
                connection.close()

    def _take(self) -> socket.socket:
        """Return a kept connection that the other side has not closed, else a fresh one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = socket.create_connection((self._host, self._port), timeout=_CONNECT_PATIENCE_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            if not _is_readable(connection):
                return connection
            connection.close()

    def _read(self, response: http.client.HTTPResponse, sock: socket.socket, deadline: float) -> Reply:
        if response.headers.get(IDENTITY_HEADER) != self._identity:
            msg = f"port {self._port} is answered by a server that is not ours"
            raise ServiceError(msg)
        if response.length is None and not response.chunked:
            msg = "a reply without a length"
            raise http.client.HTTPException(msg)
        body = bytearray()
        while len(body) <= MAX_REPLY_BYTES:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = response.read1(_CHUNK)
            if not chunk:
                break
            body += chunk
        if not response.chunked and response.length and len(body) <= MAX_REPLY_BYTES:
            raise http.client.IncompleteRead(b"", response.length)
        pairs = [each.partition(";")[0].partition("=") for each in response.headers.get_all("set-cookie", [])]
        return Reply(
            status=response.status,
            body=bytes(body[:MAX_REPLY_BYTES]),
            is_whole=len(body) <= MAX_REPLY_BYTES,
            cookies=tuple((name.strip(), value.strip()) for name, _, value in pairs),
        )


def _is_readable(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read: its end, or bytes that nobody asked for."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
