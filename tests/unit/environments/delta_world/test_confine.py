"""Rights that were given up stay given up, for root too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiment.environments.delta_world import confine
from experiment.sealing.canonical import encode

needs_landlock = pytest.mark.skipif(confine.landlock_version() == 0, reason="this kernel has no Landlock")
needs_filter = pytest.mark.skipif(not confine.can_filter_calls(), reason="system calls are known for x86-64 only")

SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.prefix, sys.base_prefix)


def _confined(policy: dict[str, object], code: str) -> subprocess.CompletedProcess[str]:
    interpreter = str(Path(sys.executable).resolve())
    policy = {"read": [*SYSTEM, str(Path(interpreter).parent.parent)], "write": ["/dev/null"], **policy}
    command = [
        sys.executable,
        "-I",
        "-S",
        confine.__file__,
        encode(policy).decode(),
        interpreter,
        "-I",
        "-S",
        "-c",
        code,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def _filtered(code: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(confine.__file__).parent)
    prefix = f"import sys; sys.path.insert(0, {folder!r}); import confine; confine.refuse_calls()\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", prefix + code], capture_output=True, text=True, check=False, timeout=60
    )


@needs_landlock
def test_only_named_files_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "a").write_text("a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "secret").write_text("s")
    policy = {"read": [*SYSTEM, str(Path(sys.executable).resolve().parent.parent), str(tmp_path / "seen")]}
    policy["write"] = ["/dev/null", str(tmp_path / "mine")]
    code = f"""
import os
os.chdir({str(tmp_path)!r})
print(open('seen/a').read())
open('mine/b', 'w').write('b')
for attempt in (lambda: open('secret'), lambda: open('seen/a', 'w'), lambda: open('c', 'w'), lambda: os.listdir('/'),
                lambda: os.rename('mine/b', 'seen/b'), lambda: os.unlink('seen/a'), lambda: os.mkdir('d')):
    try:
        attempt()
        print('let through')
    except OSError as error:
        print(error.errno)
"""
    done = _confined(policy, code)
    assert done.stdout.split() == ["a", *(["13"] * 4), *(["18"] if "18" in done.stdout else ["13"]), "13", "13"], done
    assert (tmp_path / "mine" / "b").read_text() == "b"


@needs_landlock
@pytest.mark.skipif(confine.landlock_version() < 4, reason="this kernel confines no ports")
def test_ports_are_chosen_by_the_kernel_and_nothing_is_connected_to() -> None:
    code = """
import socket
server = socket.create_server(('127.0.0.1', 0))
print('bound')
address = server.getsockname()
for attempt in (lambda: socket.create_connection(address), lambda: socket.create_server(('127.0.0.1', 9999))):
    try:
        attempt()
        print('let through')
    except OSError as error:
        print(error.errno)
"""
    assert _confined({"bind": [0]}, code).stdout.split() == ["bound", "13", "13"]


@needs_landlock
def test_program_that_is_started_is_confined_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    done = _confined(
        {}, f"import subprocess; print(subprocess.run(['/usr/bin/cat', {str(tmp_path / 'secret')!r}]).returncode)"
    )
    assert done.stdout == "1\n", done


@needs_filter
@pytest.mark.parametrize(
    "code",
    [
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getpid(), 0)",
        "import socket; socket.socket(socket.AF_INET)",
        "import socket; socket.socket(socket.AF_INET6)",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import os; os.chroot('/')",
        "import os; os.unshare(0) if hasattr(os, 'unshare') else os.chroot('/')",
    ],
)
def test_refused_call_raises(code: str) -> None:
    done = _filtered(f"try:\n    {code}\nexcept OSError as error:\n    print(error.errno)")
    assert done.stdout.strip() in {"1", "13"}, done


@needs_filter
def test_what_computes_still_works() -> None:
    code = (
        "import socket, threading\n"
        "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'\n"
        "socket.socket(socket.AF_UNIX)\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()"
    )
    assert _filtered(code).stdout == "thread\n"


@needs_filter
def test_filter_cannot_be_taken_off() -> None:
    code = "import ctypes\nprint(ctypes.CDLL(None).prctl(22, 0, 0, 0, 0))\nimport os\nos.fork()"
    done = _filtered(code)
    assert done.stdout == "-1\n"
    assert "PermissionError" in done.stderr
