"""What the agent's Python can and cannot do to the machine; no server is needed for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from experiment.environments.delta_world import sandbox
from experiment.environments.delta_world.sandbox import Cell, Ran, Sandbox
from experiment.errors import FaultError, UsageError

pytestmark = pytest.mark.skipif(not sandbox.tier(), reason="this machine cannot confine the agent's Python")

SESSION = "00000000-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    box = Sandbox.start(("127.0.0.1", 9), tmp_path_factory.mktemp("box") / "log")
    yield box
    box.stop()


def _run(box: Sandbox, code: str, seconds: float = 60.0, output_bytes: int = 10_000) -> Ran:
    return box.run(Cell(code, SESSION, seconds, output_bytes))


def test_last_expression_is_shown_as_in_a_notebook(box: Sandbox) -> None:
    assert _run(box, "x = 20\nprint('hi')\nx + 1") == Ran("hi\n21\n", has_failed=False)
    assert _run(box, "None").output == ""


def test_error_names_the_line(box: Sandbox) -> None:
    assert _run(box, "x = 1\nraise ValueError('no')") == Ran(
        "line 2: raise ValueError('no')\nValueError: no\n", has_failed=True
    )
    assert "SyntaxError" in _run(box, "def f(:").output


def test_cells_share_nothing(box: Sandbox) -> None:
    _run(box, "import builtins; builtins.leak = 1; leak = 1")
    assert "NameError" in _run(box, "leak").output


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "open('/tmp/left-behind', 'w')",
        "import os; os.listdir('/proc')",
        "import os; os.listdir('/')",
        "import os; os.mkdir('/tmp/left-behind')",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['/bin/sh', '-c', 'id'])",
        "import os; os.execv('/bin/sh', ['sh'])",
        "import socket; socket.create_connection(('127.0.0.1', 22))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.kill(1, 0)",
        "import os; os.setuid(0); os.chroot('/')",
    ],
)
def test_machine_is_out_of_reach(code: str, box: Sandbox) -> None:
    ran = _run(box, code)
    assert ran.has_failed
    assert "Error: [Errno" in ran.output


def test_environment_holds_nothing_of_ours(box: Sandbox) -> None:
    names = set(_run(box, "import os; print(*os.environ)").output.split())
    assert names - {"PWD"} == {"HOME", "LANG", "PYTHONHASHSEED", "SPARK_CONNECT_MODE_ENABLED", "TZ"}


def test_endless_loop_is_ended(box: Sandbox) -> None:
    ran = _run(box, "while True: pass", seconds=1.0)
    assert (ran.has_failed, ran.was_stopped) == (True, "time")


def test_endless_output_is_ended(box: Sandbox) -> None:
    ran = _run(box, "while True: print('x' * 1000)", output_bytes=5000)
    assert (len(ran.output), ran.was_stopped) == (5000, "output")


def test_memory_is_bounded(box: Sandbox) -> None:
    assert "MemoryError" in _run(box, "x = bytearray(3 * 2**30)").output


def test_exit_ends_the_cell_alone(box: Sandbox) -> None:
    for code, has_failed in (("exit(0)", False), ("import os; os._exit(0)", False), ("raise SystemExit(3)", True)):
        assert _run(box, code).has_failed == has_failed
    assert _run(box, "1 + 1").output == "2\n"


def test_no_process_and_no_descriptor_is_left(box: Sandbox) -> None:
    _run(box, "1")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        _run(box, "while True: pass", seconds=0.2)
    assert len(os.listdir("/proc/self/fd")) == before


def test_broken_sandbox_is_a_fault(tmp_path) -> None:
    box = Sandbox.start(("127.0.0.1", 9), tmp_path / "log")
    box._process.kill()
    box._process.wait()
    with pytest.raises(FaultError):
        _run(box, "1")
    box.stop()


def test_machine_that_cannot_confine_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.confine, "can_filter_calls", lambda: False)
    with pytest.raises(UsageError, match="confine"):
        Sandbox.start(("127.0.0.1", 9), tmp_path / "log")


def test_relay_leads_to_its_port_alone(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = sandbox.Relay(tmp_path / "s", server.getsockname())
        with socket.socket(socket.AF_UNIX) as near:
            near.connect(str(relay.path))
            far, _ = server.accept()
            with far:
                near.sendall(b"there")
                assert far.recv(10) == b"there"
                far.sendall(b"back")
                assert near.recv(10) == b"back"
        relay.close()
