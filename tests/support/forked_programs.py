"""Programs that code under test or a shell starts, forked from a process that has imported what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from client_sdk.lab import local_server
from tests.support.forked import ForkedProcess, can_fork, host_descriptor


class _ForkedPopen(ForkedProcess):
    """Stands for `subprocess.Popen` with the command `python -m MODULE ARGUMENTS`; both outputs go to one place."""

    def __init__(
        self, command: Sequence[str], *, stdout: Any = None, env: Mapping[str, str] | None = None, **_: Any
    ) -> None:
        self._printed = TemporaryFile() if stdout == subprocess.PIPE else None  # noqa: SIM115 - for `communicate`
        module = command[2]
        with open(1, "wb", closefd=False) as inherited:
            output = self._printed or stdout or inherited
            kind = "device" if module.startswith("examples.") else "server"
            super().__init__(kind, module, command[3:], os.environ if env is None else env, output)

    def communicate(self) -> tuple[str, str]:
        """Wait for the end and return what was printed."""
        assert self._printed is not None, "the output goes elsewhere"
        with self._printed:
            self.wait()
            self._printed.seek(0)
            return self._printed.read().decode(), ""


def fork_programs(patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let these modules, and the one that starts the servers of demos, fork the programs that they start."""
    if can_fork(os.environ):
        for module in (local_server, *modules):
            patch.setattr(module, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": _ForkedPopen}))


def forked_commands(folder: Path, path: str) -> dict[str, str]:
    """Variables of a shell in which `hushrec` and `hushrec-server` are forks; it is to be started with close_fds=False.

    folder: a new one for the two programs. path: where the others are.
    """
    if not can_fork(os.environ):
        return {"PATH": path}
    folder.mkdir()
    program = Path(__file__).with_name("forked_command.py").read_text(encoding="utf-8")
    for name in ("hushrec", "hushrec-server"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{program}", encoding="utf-8")
        (folder / name).chmod(0o700)
    hosts = {f"FORKS_{kind}": str(host_descriptor(kind)) for kind in ("device", "server")}
    return {"PATH": f"{folder}{os.pathsep}{path}", **hosts}
