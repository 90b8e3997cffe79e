"""Gives up rights for good: files, network, system calls. Standard library only, and runnable as a program.

    python -I confine.py '{"read": [...], "write": [...], "bind": [0]}' program argument …

The kernel enforces it on the process and on all that come from it, for root too. Landlock bounds files, TCP ports and
signals; seccomp refuses system calls.

Source: Linux, Documentation/userspace-api/landlock.rst and seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import stat
import struct
import sys
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH, _RULE_PORT = 1, 2
_VERSION_FLAG = 1
_ABI_REFER, _ABI_TRUNCATE, _ABI_NET, _ABI_IOCTL, _ABI_SCOPE = 2, 3, 4, 5, 6
_READ = 1 << 0 | 1 << 2 | 1 << 3
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_BIND, _CONNECT = 1, 2
_SCOPES = 3

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_CLONE_THREAD = 0x10000
_UNIX = 1
_SOCKET, _SOCKETPAIR, _CLONE, _CLONE3 = 41, 53, 56, 435

_REFUSED = (
    *(57, 58, 59, 322),  # fork, vfork, execve, execveat
    *(62, 129, 200, 424, 434, 438),  # kill, rt_sigqueueinfo, tkill, pidfd_send_signal, pidfd_open, pidfd_getfd
    *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
    *(
        155,
        161,
        165,
        166,
        167,
        168,
        169,
        272,
        308,
    ),  # pivot_root chroot mount umount2 swapon swapoff reboot unshare setns
    *(428, 429, 430, 431, 432, 433, 442),  # open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
    *(175, 176, 246, 313, 320),  # init_module delete_module kexec_load finit_module kexec_file_load
    *(248, 249, 250, 298, 303, 304, 321, 323, 425),  # keys, perf, handles, bpf, userfaultfd, io_uring_setup
)
"""System calls of x86-64 that a program which only computes does not make."""


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers; 0 is none."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))


def can_filter_calls() -> bool:
    """Say whether `refuse_calls` knows this processor's system calls."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def restrict(
    read: Sequence[str] = (), write: Sequence[str] = (), bind: Sequence[int] = (), *, files: bool = True
) -> None:
    """Afterwards this process reads and runs only what is below `read`, changes only what is below `write`.

    Where the kernel can, it binds only TCP ports in `bind` (0: one that the kernel chooses), connects to none, and
    signals nobody outside.

    Args:
        read: Paths that may be read and executed; those that do not exist are left out.
        write: Paths below which everything is allowed.
        bind: TCP ports.
        files: False leaves files as they are, for a program that confines those itself.

    Raises:
        OSError: The kernel refused.
    """
    version = landlock_version()
    all_files = _file_rights(version) if files else 0
    handled = struct.pack(
        "=QQQ",
        all_files,
        _BIND | _CONNECT if version >= _ABI_NET else 0,
        _SCOPES if version >= _ABI_SCOPE and files else 0,
    )
    size = 24 if version >= _ABI_SCOPE else 16 if version >= _ABI_NET else 8
    ruleset = _call(_CREATE_RULESET, ctypes.create_string_buffer(handled, 24), size, 0)
    if files:
        for paths, rights in ((read, _READ & all_files), (write, all_files)):
            for path in paths:
                _allow_path(ruleset, path, rights)
    for port in bind if version >= _ABI_NET else ():
        _call(_ADD_RULE, ruleset, _RULE_PORT, ctypes.create_string_buffer(struct.pack("=QQ", _BIND, port)), 0)
    _give_up_privileges()
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def refuse_calls() -> None:
    """Afterwards this process starts no process, opens no socket but local ones, signals and traces nobody.

    Raises:
        OSError: The kernel refused.
    """
    # Each instruction: code, jump where true, jump where false, operand.
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    for number in _REFUSED:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | errno.EPERM)]
    # The C library tries `clone`, whose flags can be read here, after this answer.
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    for number in (_SOCKET, _SOCKETPAIR):
        program += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, _UNIX)]
        program += [(_RETURN, 0, 0, _REFUSE | errno.EACCES), (_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 4, _CLONE), (_LOAD, 0, 0, 16), (_AND, 0, 0, _CLONE_THREAD)]
    program += [(_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _REFUSE | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    _give_up_privileges()
    if _libc().prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp refused the filter")


def _file_rights(version: int) -> int:
    rights = (1 << 13) - 1
    for minimum, bit in ((_ABI_REFER, 13), (_ABI_TRUNCATE, 14), (_ABI_IOCTL, 15)):
        if version >= minimum:
            rights |= 1 << bit
    return rights


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd))
        _call(_ADD_RULE, ruleset, _RULE_PATH, rule, 0)
    finally:
        os.close(fd)


def _give_up_privileges() -> None:
    if _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel keeps privileges")


def _call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str]) -> None:
    """Give up what the first argument says, then become the program that the others name."""
    restrict(**json.loads(arguments[0]))
    os.execv(arguments[1], list(arguments[1:]))  # noqa: S606 - this program's purpose


if __name__ == "__main__":
    main(sys.argv[1:])
