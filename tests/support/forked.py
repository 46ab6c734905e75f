"""Processes that `tests.support.fork_host` forks, with the interface of `subprocess.Popen`, and their fold workers.

A fold worker that is spawned, as outside the tests, takes half a second of processor time for its imports. All servers
of a test process share one `multiprocessing.forkserver`, so a worker is no child of its server. With SPAWNS_WORKERS in
its environment, a server spawns its workers.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module, reload
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any, Literal, get_args

from aggregator_service.compute import workers

LIMIT = 1 << 17
"""Bytes of a request to the host at most: arguments and environment."""
Kind = Literal["server", "dask", "device"]
_ROOT = Path(__file__).parents[2]
_IMPORTED_FROM = os.environ.get("PYTHONPATH")
"""What a fork has imported is from here: a process that needs another path starts a new interpreter."""
_SPAWNS_WORKERS = "HUSHREC_TEST_SPAWNS_WORKERS"
_WORKERS_IMPORT = ("aggregator_service.compute.jobs", "protocols.sums.ckks.mechanism", "protocols.sums.registry")
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
            socket.send_fds(self.connection(), [request], [output, there.fileno()])
        return here

    def connection(self) -> socket.socket:
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


def host_descriptor(kind: Kind) -> int:
    """The descriptor of the socket that takes requests for forks, which processes inherit that may ask for some."""
    descriptor = _HOSTS[kind].connection().fileno()
    os.set_inheritable(descriptor, True)
    return descriptor


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
        late = subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):  # another thread waits for the end
            raise late
        try:
            if self.returncode is None:
                self._status.settimeout(timeout)
                self.returncode = int(self._received())
                self._status.close()
            return self.returncode
        except (BlockingIOError, TimeoutError):
            raise late from None
        finally:
            self._lock.release()

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


def start_worker_host() -> None:
    """Start the process that forks the workers of all servers that this process will fork."""
    forkserver.set_forkserver_preload([__name__, *_WORKERS_IMPORT])
    forkserver.ensure_running()


def fork_workers() -> None:
    """Let this process, a server, take its workers from there, unless its environment says otherwise."""
    if _SPAWNS_WORKERS in os.environ:
        return
    pool: Any = workers
    pool.START_METHOD, pool.prepare_worker = "forkserver", partial(_prepare_worker, dict(os.environ))
    running: Any = forkserver._forkserver  # type: ignore[attr-defined]
    running.ensure_running = lambda: None  # it is no child of this process, which therefore cannot wait for it


def _prepare_worker(environment: dict[str, str]) -> None:
    """Prepare a worker, with the environment of its server."""
    set_environment(environment)
    workers.prepare_worker()


def set_environment(environment: dict[str, str]) -> None:
    """Replace the variables of this process."""
    os.environ.clear()
    os.environ.update(environment)
    reload(import_module("aggregator_service.crash_points"))  # the one module that reads a variable at its import
