"""Forks processes for the tests, servers, devices or those of Dask, from one process that has imported what they need.

A start of Python that imports the server takes over a second of processor time, and the suite starts hundreds of
servers. Each fork runs `python -m MODULE` as a start of its own would: the environment, the working directory, the
output and the arguments are its caller's, the module runs as `__main__`, and the interpreter exits as usual.
`tests.support.forked` asks for the forks; for what code under test or a shell starts, `tests.support.forked_programs`.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from tests.support.forked import LIMIT, Kind, fork_workers, set_environment, start_worker_host

_IMPORTED: dict[Kind, tuple[str, ...]] = {  # all but the module that is run: the command, and what it imports late
    "server": (
        "aggregator_service.commands.serve",
        "aggregator_service.migrations.migrate",
        "anyio._backends._asyncio",
        "cryptography.x509",
        "encodings.idna",
        "fastapi.telemetry._runtime",
        "multiprocessing.synchronize",
        "psycopg",
        "sqlalchemy.dialects.postgresql.psycopg",
        "uvicorn.lifespan.on",
        "uvicorn.loops.auto",
        "uvicorn.loops.uvloop",
        "uvicorn.protocols.http.h11_impl",
    ),
    "dask": ("distributed.scheduler", "distributed.worker", "aggregator_service.compute.jobs"),
    "device": (
        "client_sdk.cli.take_part",
        "client_sdk.cli.serving",
        "client_sdk.client",
        "client_sdk.rounds.loop",
    ),
}


@dataclass(frozen=True)
class _Start:
    """What the forked process has to run."""

    kind: Kind
    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    output: int
    """A file descriptor."""

    def run(self) -> None:
        """Become that process; the caller must then let the interpreter exit."""
        os.chdir(self.folder)
        os.dup2(self.output, 1)
        os.dup2(self.output, 2)
        os.close(self.output)
        set_environment(self.environment)
        if self.kind == "dask":
            import_module("dask.config").refresh()
        else:
            fork_workers()
        sys.argv = [self.module, *self.arguments]
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def serve_forks(control: socket.socket, kind: Kind) -> _Start | None:
    """Fork for each request until the caller's end of `control` is closed.

    A request has two file descriptors: the output, and a socket that gets the process id and, at the end, the exit
    status: from a second fork, the parent of the process. Returns None in this process and, in each process that is
    asked for, what it has to run.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system takes care of ended parents
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, LIMIT, 2)
        if not message:
            return None
        output, status = descriptors
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            number = os.fork()
            if number == 0:
                os.close(status)
                return _Start(**json.loads(message), kind=kind, output=output)
            _report(number, socket.socket(fileno=status))
        os.close(output)
        os.close(status)


def _report(number: int, told: socket.socket) -> NoReturn:
    """Tell the process id, wait for the end of the process, tell its exit status, and exit."""
    with suppress(OSError):  # the caller is gone
        told.sendall(str(number).encode())
        told.sendall(str(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])).encode())
    os._exit(0)


def main() -> None:
    """Serve the socket whose file descriptor is the first argument; the second is the kind of process."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close the socket
    control = socket.socket(fileno=int(sys.argv[1]))
    kind = next(one for one in _IMPORTED if one == sys.argv[2])
    for name in _IMPORTED[kind]:
        import_module(name)
    if kind == "server":
        from sqlalchemy.orm import configure_mappers  # which the other kinds do not need

        configure_mappers()  # each server would do it at its first statement
        start_worker_host()
    gc.collect()
    gc.freeze()  # the forks share the memory of what was imported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of numpy's library, which handles forks itself
        start = serve_forks(control, kind)
    if start is not None:
        signal.signal(signal.SIGINT, interrupt)
        start.run()


if __name__ == "__main__":
    main()
