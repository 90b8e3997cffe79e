"""A service with the manners of NeMo Gym's, without NeMo Gym: its owner and its clients can be tried alone.

It serves the German world. A file `mode` in its working folder makes it misbehave.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

_write = json.JSONEncoder().encode


def main() -> None:
    """Host as `server/host.py` does, or in the way that the mode says."""
    settings = json.loads(sys.stdin.buffer.readline())
    mode = Path("mode").read_text(encoding="utf-8") if Path("mode").exists() else ""
    print(f"stand-in: {mode or 'honest'}", flush=True)
    if mode == "dies":
        raise SystemExit(3)
    if mode == "slow":
        time.sleep(600)
    if mode == "parent":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
    sys.path.insert(0, str(Path(settings["package"]).parent))
    from experiment.environments.german_tools.environment import GermanTools  # noqa: PLC0415
    from experiment.records.episode import Episode  # noqa: PLC0415

    Handler.mode, Handler.identity = mode, settings["identity"]
    Handler.open = lambda _, episode: GermanTools().open(Episode.model_validate_json(_write(episode)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    facts = {
        "identity": settings["identity"],
        "pid": 1 if mode == "impostor" else os.getpid(),
        "session": os.getsid(0),
        "servers": {"german_tools": f"http://127.0.0.1:{server.server_address[1]}"},
        "server": "german_tools",
        "agent": None,
    }
    Path("draft").write_text(_write(facts), encoding="utf-8")
    Path("draft").rename(settings["result"])
    while os.read(0, 4096):
        pass
    if mode == "stubborn":
        threading.Event().wait()


class Handler(BaseHTTPRequestHandler):
    """One request of the German world."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    mode: str
    identity: str
    open: Callable[[dict[str, Any]], Any]
    sessions: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        self._send(200, b'{"status":"ok"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Cookie", "")
        if self.path == "/seed_session":
            key = f"session={len(self.sessions)}"
            self.sessions[key] = self.open(body["verifier_metadata"]["episode"])
            self._send(200, b"{}", {"Set-Cookie": f"{key}; path=/; httponly"})
        elif self.path == "/verify":
            self._send(200, _write(self._judge(self.sessions[key], body)).encode())
        else:
            result = self.sessions[key].call(self.path[1:], body)
            self._send(400 if result.is_error else 200, result.text.encode())

    def _judge(self, session: Any, body: dict[str, Any]) -> dict[str, Any]:
        score = session.verify(body["response"]["output"][-1]["content"][0]["text"])
        executed = [
            {"name": c.name, "arguments": dict(c.arguments), "text": c.result.text, "is_error": c.result.is_error}
            for c in session.native_calls()
        ]
        success = True if self.mode == "lenient" else score.success
        return {**score.model_dump(), "success": success, "reward": float(success), "executed": executed}

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"x-service-identity": self.identity, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    main()
