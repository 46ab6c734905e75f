"""Processes that `tests.support.fork_host` forks, with the interface of `subprocess.Popen`."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, get_args

from tests.support.fork_host import LIMIT, Kind

__all__ = ["ForkedProcess", "can_fork"]

_ROOT = Path(__file__).parents[2]
_IMPORTED_FROM = os.environ.get("PYTHONPATH")
"""What a fork has imported is from here: a process that needs another path starts a new interpreter."""
_DASK_LOGS = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "info"}
"""Dask sets up its logs when it is imported."""


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a process with these variables may be a fork. HUSHREC_TEST_FRESH_SERVERS forbids all forks."""
    is_asked_to_start = "HUSHREC_TEST_FRESH_SERVERS" in os.environ
    return sys.platform == "linux" and not is_asked_to_start and environment.get("PYTHONPATH") == _IMPORTED_FROM


class _Host:
    """The process that forks one kind; it starts with the first fork and ends with the tests."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: bytes, output: int) -> socket.socket:
        """Ask for a fork; return the socket on which the host reports."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            socket.send_fds(self._connection(), [request], [output, there.fileno()])
        return here

    def _connection(self) -> socket.socket:
        with self._lock:
            if self._control is None or self._process is None or self._process.poll() is not None:
                self._close()
                self._control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with there:
                    command = [sys.executable, "-m", "tests.support.fork_host", str(there.fileno()), self._kind]
                    environment = {**os.environ, **(_DASK_LOGS if self._kind == "dask" else {})}
                    self._process = subprocess.Popen(
                        command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, cwd=_ROOT, env=environment
                    )
                atexit.register(self._close)
            return self._control

    def _close(self) -> None:
        if self._control is not None and self._process is not None:
            atexit.unregister(self._close)
            self._control.close()
            self._process.wait()
            self._control = self._process = None


_HOSTS: dict[Kind, _Host] = {kind: _Host(kind) for kind in get_args(Kind)}


class ForkedProcess:
    """A process that runs a module: its own process in all but the import of modules."""

    def __init__(
        self, kind: Kind, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> None:
        start = {"arguments": list(arguments), "environment": dict(environment), "folder": str(Path.cwd())}
        start["module"] = module
        request = json.dumps(start)
        assert len(request) < LIMIT, "the environment is too large"
        self._arguments, self._lock = list(arguments), threading.Lock()
        self._status = _HOSTS[kind].fork(request.encode(), output.fileno())
        self.returncode: int | None = None
        self.pid = int(self._received())

    def _received(self) -> bytes:
        text = self._status.recv(64)
        if not text:
            self._status.close()
            raise RuntimeError("the process that forks the tests' processes has ended")
        return text

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; raises `subprocess.TimeoutExpired`."""
        while True:
            with self._lock:
                if self.returncode is not None:
                    return self.returncode
                if _readable(self._status, 0.0):
                    self.returncode = int(self._received())
                    self._status.close()
                    return self.returncode
                watched = os.dup(self._status.fileno())  # another thread may collect the status and close the socket
            try:
                if not _readable(watched, timeout):
                    raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
            finally:
                os.close(watched)

    def send_signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _readable(source: socket.socket | int, timeout: float | None) -> bool:
    """Wait until there is something to read, at most `timeout` seconds."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0, int(timeout * 1000))))
