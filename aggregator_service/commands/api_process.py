"""Run the application in uvicorn: as the only API process, or as one of several below a supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Sequence
from functools import partial
from multiprocessing import connection, parent_process, reduction
from types import FrameType
from typing import Any, Final, NoReturn

import uvicorn
from fastapi import FastAPI

from aggregator_service.app import create_app
from aggregator_service.logs import configure_logging
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.local_channel import ApiProcess, LocalChannel

__all__ = ["InheritedDescriptor", "run_server", "serve_process", "server_config"]

_LOG = logging.getLogger(__name__)
_NO_APP: Final = "none"
_LOOK_SECONDS: Final = 0.1
"""Time between two looks at whether the server has started, or stops."""
_HEAD_BYTES: Final = 16 * 1024
"""Longest request line and headers that arrive in pieces; a request of ours has about 1 KiB."""


def server_config(settings: Settings, app: FastAPI | None) -> uvicorn.Config:
    """Return uvicorn's configuration. app: None for one that only binds the socket."""
    return uvicorn.Config(
        app or _NO_APP,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        # h11 ignores trailers, answers a pipeline one request at a time, and never takes a body for a request
        http="h11",
        h11_max_incomplete_event_size=_HEAD_BYTES,
        limit_concurrency=settings.max_connections + 1 if settings.max_connections else None,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # clients train between requests: keep their connections open meanwhile
        timeout_graceful_shutdown=5,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.client_ca is None else str(settings.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.client_ca is None else ssl.CERT_REQUIRED,
    )


def run_server(settings: Settings, app: FastAPI, listening: Sequence[socket.socket]) -> None:
    """Serve on bound sockets until SIGINT or SIGTERM; the process then ends with status 0."""
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again after its shutdown: exit with status 0
        signal.signal(number, _exit)
    server = uvicorn.Server(server_config(settings, app))
    app.state.beside_server = partial(_accompany, server, listening[0].getsockname())
    server.run(sockets=list(listening))


async def _accompany(server: uvicorn.Server, address: tuple[str, int], services: Services) -> None:
    """Log the address once requests are answered. When the server stops, answer all long polls: it waits for them."""
    while not server.started:
        await asyncio.sleep(_LOOK_SECONDS)
    host, port = address[:2]
    name = f"[{host}]" if ":" in host else host
    _LOG.info("running on %s://%s:%d", "https" if server.config.is_ssl else "http", name, port)
    while not server.should_exit:
        await asyncio.sleep(_LOOK_SECONDS)
    services.notifier.close()


class InheritedDescriptor:
    """A file descriptor as an argument of a new process, in which it stays open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._descriptor)

    def __setstate__(self, copied: Any) -> None:
        self._descriptor = copied.detach()


def serve_process(
    settings: Settings,
    number: int,
    listening: Sequence[socket.socket],
    channel: socket.socket,
    lock: InheritedDescriptor,  # noqa: ARG001 - this process keeps it open
) -> None:
    """Run API process `number` of several: the target of a new process.

    listening: the socket that all processes accept connections from, and that of this one's own port, if it has one.
    channel: to the supervisor. lock: of the data directory. The process ends when the supervisor does, however that
    ends.
    """
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the supervisor sends SIGTERM
    signal.signal(signal.SIGTERM, _exit)
    configure_logging(settings.log_format, settings.log_level)
    threading.Thread(target=_end_with_supervisor, name="supervisor", daemon=True).start()
    own = settings.for_process(number)
    run_server(own, create_app(own, process=ApiProcess(number, LocalChannel(channel))), listening)


def _end_with_supervisor() -> None:
    """End this process when the supervisor was killed: it would go on without a lock of the data directory."""
    supervisor = parent_process()
    if supervisor is not None:
        connection.wait([supervisor.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
