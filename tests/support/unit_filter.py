"""Runs a command under the system call filters of a systemd unit, where no systemd runs.

python -m tests.support.unit_filter UNIT COMMAND ARGUMENT...

Systemd's own command expands the sets of `SystemCallFilter=`, and libseccomp loads the filters, as systemd does. A call
that the unit does not allow ends the process with SIGSYS; a socket of another family than `RestrictAddressFamilies=`
fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_KILL_PROCESS: Final = 0x80000000
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_EQUAL: Final = 4
_FAMILIES: Final = 46
"""Address families of Linux have smaller numbers."""
_NOBODY: Final = 65534


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
    )


def settings_of(unit: Path, name: str) -> list[str]:
    """Return the values of every line `name=value` of the unit, in order."""
    return re.findall(rf"^{re.escape(name)}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def allowed_calls(lines: Sequence[str]) -> set[str]:
    """Return the system calls that these values of `SystemCallFilter=` allow; the first must name what is allowed."""
    sets = _sets()

    def expanded(names: Sequence[str]) -> set[str]:
        return {call for name in names for call in (expanded(sets[name]) if name.startswith("@") else {name})}

    allowed = expanded(["@default"])
    for line in lines:
        if line.startswith("~"):
            allowed -= expanded(line.removeprefix("~").split())
        else:
            allowed |= expanded(line.split())
    return allowed


def _sets() -> dict[str, list[str]]:
    command = ["systemd-analyze", "syscall-filter", "--no-pager"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if line.startswith("@"):
            members = found.setdefault(line.strip(), [])
        elif line.startswith(" ") and not line.strip().startswith("#"):
            members.append(line.strip())
    return found


def command_under(unit: Path, command: Sequence[str | Path], data_dir: Path) -> list[str]:
    """Return a command line that runs `command` under the unit's filters, by a user without rights who owns `data_dir`.

    An ordinary user runs it as such. For root it is a user who may read all files, as the tests may be in root's home.
    access(2), with which Alembic looks for its scripts, heeds no such right, so that user gets a copy of the server.
    """
    filtered = [sys.executable, "-m", __name__, str(unit), *map(str, command)]
    if os.geteuid():
        return filtered
    code = data_dir.parent / "code"
    for package in ("aggregator_service", "protocols"):
        if not (code / package).exists():
            shutil.copytree(Path(__file__).parents[2] / package, code / package)
    for path in (data_dir, code, *code.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY)
    filtered[4:4] = ["env", f"PYTHONPATH={code}"]
    user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    return ["setpriv", *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *filtered]


class _Filter:
    """A filter of libseccomp for this process and those that it starts. default: what happens to other calls."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._filter = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, call: str, first_argument: int | None = None) -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return  # a call of other processors, or newer than the library
        compared = (_Comparison * 1)(_Comparison(0, _EQUAL, first_argument or 0, 0))
        count = 0 if first_argument is None else 1
        self._check(
            self._library.seccomp_rule_add_array(self._filter, ctypes.c_uint32(action), number, count, compared)
        )

    def load(self) -> None:
        """Apply it; the process can gain no privileges afterwards."""
        self._check(self._library.seccomp_load(self._filter))

    @staticmethod
    def _check(result: int) -> None:
        if result:
            raise OSError(-result, f"libseccomp: {os.strerror(-result)}")


def _load_filters(unit: Path) -> None:
    permitted = [
        getattr(socket, name) for line in settings_of(unit, "RestrictAddressFamilies") for name in line.split()
    ]
    families = _Filter(_ALLOW)
    for family in range(_FAMILIES):
        if permitted and family not in permitted:
            families.add(_ERRNO | errno.EAFNOSUPPORT, "socket", family)
    calls = _Filter(_KILL_PROCESS)
    for call in sorted(allowed_calls(settings_of(unit, "SystemCallFilter"))):
        calls.add(_ALLOW, call)
    families.load()
    calls.load()  # last: it may forbid to load another one


if __name__ == "__main__":
    for umask in settings_of(Path(sys.argv[1]), "UMask"):
        os.umask(int(umask, 8))
    _load_filters(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command of the test
