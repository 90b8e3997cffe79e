"""What a client makes of every way in which a service can answer, or not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from experiment.environments.nemo_gym import client as client_module
from experiment.environments.nemo_gym.client import GymAddress, GymClient
from experiment.errors import ServiceError

OURS = b"x-service-identity: ours\r\n"
Script = list[bytes | None]


def reply(body: bytes, *headers: bytes, identity: bytes = OURS, status: bytes = b"200 OK") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return (
        b"HTTP/1.1 "
        + status
        + b"\r\n"
        + identity
        + b"".join(each + b"\r\n" for each in headers)
        + length
        + b"\r\n"
        + body
    )


@pytest.fixture
def serve() -> Iterator[Callable[[list[Script]], tuple[GymClient, list[bytes]]]]:
    """A server whose n-th connection answers its requests with the n-th script; None keeps silent, the end closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    silence, threads = threading.Event(), []

    def run(scripts: list[Script], seen: list[bytes]) -> None:
        for script in scripts:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                for answer in script:
                    seen.append(connection.recv(1 << 20))
                    if answer is None:
                        silence.wait(30)
                    else:
                        connection.sendall(answer)
                connection.close()

    def start(scripts: list[Script], patience_s: float = 10.0) -> tuple[GymClient, list[bytes]]:
        seen: list[bytes] = []
        threads.append(threading.Thread(target=run, args=(scripts, seen), daemon=True))
        threads[-1].start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        address = GymAddress(server_url=url, agent_url=None, identity="ours", pid=1)
        return GymClient(address, patience_s=patience_s), seen

    yield start
    silence.set()
    listener.close()


def test_connection_is_kept_and_cookies_are_those_of_the_caller(serve: Callable[..., tuple]) -> None:
    first = reply(b"{}", b"Set-Cookie: a=1.x-_=; path=/; httponly", b"set-cookie: b=2")
    client, seen = serve([[first, reply(b"two")]])
    one = client.post("/seed_session", b"{}", {})
    two = client.post("/tool", b"{}", dict(one.cookies))
    assert one.cookies == (("a", "1.x-_="), ("b", "2"))
    assert (two.status, two.body, two.is_whole) == (200, b"two", True)
    assert b"Cookie" not in seen[0]
    assert b"Cookie: a=1.x-_=; b=2\r\n" in seen[1]
    client.close()


def test_connection_that_the_service_closed_meanwhile_is_opened_anew(serve: Callable[..., tuple]) -> None:
    client, seen = serve([[reply(b"one")], [reply(b"two")]])
    client.post("/a", b"{}", {})
    (kept,) = client._idle
    assert kept.recv(1, socket.MSG_PEEK) == b""
    assert client.post("/b", b"{}", {}).body == b"two"
    assert len(seen) == 2
    client.close()


def test_chunked_reply_is_read(serve: Callable[..., tuple]) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + OURS + b"Transfer-Encoding: chunked\r\n\r\n"
    client, _ = serve([[head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", reply(b"next")]])
    assert client.post("/a", b"{}", {}).body == b"abcde"
    assert client.post("/b", b"{}", {}).body == b"next"
    client.close()


def test_longer_reply_is_cut_and_its_connection_given_up(
    serve: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_REPLY_BYTES", 10)
    client, _ = serve([[reply(b"x" * 10), reply(b"y" * 11)], [reply(b"z")]])
    assert client.post("/a", b"{}", {}).is_whole
    cut = client.post("/b", b"{}", {})
    assert (cut.body, cut.is_whole) == (b"y" * 10, False)
    assert client.post("/c", b"{}", {}).body == b"z"
    client.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply(b"{}", identity=b""), "not ours"),
        (reply(b"{}", identity=b"x-service-identity: theirs\r\n"), "not ours"),
        (reply(b"whole body")[:-3], "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n" + OURS + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n" + OURS + b"\r\nendless", "without a length"),
        (b"HTTP/1.1 200 OK\r\nx-serv", "not ours"),
        (b"SSH-2.0-Open\r\n", "BadStatusLine"),
        (b"", "RemoteDisconnected"),
    ],
)
def test_broken_reply_is_a_fault_and_the_request_is_sent_once(
    serve: Callable[..., tuple], answer: bytes, message: str
) -> None:
    client, seen = serve([[answer], [reply(b"never")]])
    with pytest.raises(ServiceError, match=message):
        client.post("/rechne", b"{}", {})
    assert len(seen) == 1
    assert client._idle == []


def test_silence_is_a_fault_when_patience_ends(serve: Callable[..., tuple]) -> None:
    client, _ = serve([[None]], patience_s=0.1)
    with pytest.raises(ServiceError, match="TimeoutError"):
        client.post("/rechne", b"{}", {})


def test_silence_in_the_middle_of_a_body_is_a_fault(serve: Callable[..., tuple]) -> None:
    client, _ = serve([[reply(b"whole body")[:-3], None]], patience_s=0.1)
    with pytest.raises(ServiceError, match="TimeoutError|IncompleteRead"):
        client.post("/rechne", b"{}", {})


def test_port_without_a_server_is_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = GymAddress(server_url=f"http://127.0.0.1:{port}", agent_url=None, identity="ours", pid=1)
    with pytest.raises(ServiceError, match="ConnectionRefusedError"):
        GymClient(address).require_alive()


def test_liveness_is_a_status_of_200(serve: Callable[..., tuple]) -> None:
    client, _ = serve([[reply(b"{}"), reply(b"", status=b"503 Service Unavailable")]])
    client.require_alive()
    with pytest.raises(ServiceError, match="503"):
        client.require_alive()
    client.close()
