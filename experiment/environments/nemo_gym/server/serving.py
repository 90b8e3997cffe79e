"""Hosts the servers of a NeMo Gym configuration in this one process: Gym's classes, one port each, no Ray.

Every port is chosen by the kernel on the loopback interface, and every reply carries the identity that the owner gave,
so that another server on a port of ours is never taken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

import nemo_gym
import uvicorn
import uvloop
from nemo_gym import global_config
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient, SimpleServer
from omegaconf import DictConfig, OmegaConf, open_dict

from experiment.environments.nemo_gym.client import IDENTITY_HEADER
from experiment.environments.nemo_gym.server.configuration import (
    AGENTS,
    Section,
    code_folder,
    configuration_digest,
    is_hosted,
    load_module,
    read_configuration,
    sections,
    served_section,
)
from experiment.sealing.canonical import encode

_HOST = "127.0.0.1"
_KEEP_ALIVE_S = 3600
"""Owners keep connections; a server that closed them when idle would look broken."""
_LAST_WORDS_S = 5.0
_POLL_S = 0.005

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


class _QuietServer(uvicorn.Server):
    """A server of several in one process: signals are the process's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Identified:
    """An application whose every reply says whose it is."""

    def __init__(self, app: Any, identity: str) -> None:  # noqa: ANN401 - an ASGI application
        self._app = app
        self._header = (IDENTITY_HEADER.encode("ascii"), identity.encode("ascii"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_identified(message: Scope) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        await self._app(scope, receive, send_identified if scope["type"] == "http" else send)


def serve(settings: dict[str, Any]) -> int:
    """Host until stdin ends or a signal says so; returns the exit code."""
    policy = tuple(settings["policy"]) if settings["policy"] else None
    configuration = read_configuration(settings["configs"], policy)
    served = served_section(configuration, settings["server"])
    hosted = [each for each in sections(configuration) if is_hosted(each, served, with_agent=policy is not None)]
    sockets = {each.name: _bind(each) for each in hosted}
    # What Gym's own classes look up; it sets this from the command line, which there is none of.
    global_config._GLOBAL_CONFIG_DICT = configuration  # noqa: SLF001
    modules = {each.name: load_module(each, code_folder(each, settings["configs"])) for each in hosted}
    servers = {each.name: _build(each, modules[each.name], configuration, settings["identity"]) for each in hosted}
    facts = {
        "identity": settings["identity"],
        "pid": os.getpid(),
        "session": os.getsid(0),
        "servers": {each.name: f"http://{_HOST}:{sockets[each.name].getsockname()[1]}" for each in hosted},
        "server": served.name,
        "agent": next((each.name for each in hosted if each.kind == AGENTS), None),
        "nemo_gym": nemo_gym.__version__,
        "config": configuration_digest(configuration, served),
    }
    uvloop.run(_run(servers, sockets, Path(settings["result"]), facts))
    return 0


def _bind(section: Section) -> socket.socket:
    """Bind a port that the kernel chooses and write it into the configuration, which the other servers read."""
    # The event loop switches Nagle's algorithm off only where the protocol is named.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind((_HOST, 0))
    with open_dict(section.settings):
        section.settings["host"] = _HOST
        section.settings["port"] = bound.getsockname()[1]
    return bound


def _build(section: Section, module: ModuleType, configuration: DictConfig, identity: str) -> _QuietServer:
    cls = _server_class(module)
    config_cls: Any = cls.model_fields["config"].annotation
    plain: Any = OmegaConf.to_container(section.settings, resolve=True)
    head = BaseServerConfig(host=_HOST, port=9)
    server: Any = cls(
        config=config_cls.model_validate({**plain, "name": section.name}),
        server_client=ServerClient(head_server_config=head, global_config_dict=configuration),
    )
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    return _QuietServer(
        uvicorn.Config(
            _Identified(app, identity),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
    )


def _server_class(module: ModuleType) -> type[Any]:
    """Return the server that a module defines: the most derived one where it defines several."""
    defined = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, SimpleServer) and each.__module__ == module.__name__
    ]
    leaves = [each for each in defined if not any(other is not each and issubclass(other, each) for other in defined)]
    if len(leaves) != 1:
        msg = f"{module.__file__}: defines the servers {[each.__name__ for each in leaves]}, and not exactly one"
        raise ValueError(msg)
    return leaves[0]


async def _run(
    servers: dict[str, _QuietServer], sockets: dict[str, socket.socket], result: Path, facts: dict[str, Any]
) -> None:
    """Serve all until one of them ends, the owner's end of stdin closes, or a signal comes."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    threading.Thread(target=_await_owner, args=(loop, stop), daemon=True).start()
    tasks = [asyncio.create_task(server.serve(sockets=[sockets[name]])) for name, server in servers.items()]
    while not all(server.started for server in servers.values()):
        if stop.is_set() or any(task.done() for task in tasks):
            break
        await asyncio.sleep(_POLL_S)
    else:
        _write(result, facts)
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
    threading.Timer(_LAST_WORDS_S, os._exit, args=(1,)).start()
    for server in servers.values():
        server.should_exit = True
    await asyncio.gather(*tasks)
    sys.stdout.flush()
    sys.stderr.flush()
    # What a server's own threads still do is of no interest to anyone.
    os._exit(0)


def _await_owner(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)


def _write(path: Path, facts: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_bytes(encode(facts))
    draft.rename(path)
