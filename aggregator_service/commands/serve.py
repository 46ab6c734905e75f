"""`hushrec-server init`, `serve` and `export-openapi`: create the database, run the server, describe its API.

A running server reads a renewed certificate from its files: new connections get the new one, without a restart.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer
import uvicorn
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from typer import Option

from aggregator_service.access.principals import create_admin, list_operators
from aggregator_service.app import create_app, open_workers
from aggregator_service.clock import SystemClock
from aggregator_service.commands.options import (
    CommandError,
    DatabaseUrl,
    DataDir,
    TokenFile,
    blob_store,
    command_actor,
    hand_over_first,
    open_database,
)
from aggregator_service.commands.service_manager import ALIVE, READY, STOPPING, notify
from aggregator_service.commands.startup_checks import (
    check_packages,
    check_semaphores,
    check_tls_files,
    doubtful_proxies,
    doubtful_settings,
)
from aggregator_service.logs import configure_logging
from aggregator_service.routes.openapi import document_text
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.data_directory import create_data_directory, make_private, own_data_directory
from aggregator_service.storage.database import database_place

_LOG = logging.getLogger(__name__)
_OTHER_FILES: Final = 512
"""Open files besides connections: database, blobs, uploads, workers."""
_NO_APP: Final = "none"
_LOOK_SECONDS: Final = 0.1
"""Time between two looks at whether the server has started, or stops."""
_LOOKS_A_SECOND: Final = 10
_NOT_USED: Final = "the changed TLS certificate is not used, the old one stays: %s"
_HEAD_BYTES: Final = 16 * 1024
"""Longest request line and headers that arrive in pieces; a request of ours has about 1 KiB."""
_GARBAGE_OBJECTS: Final = 5_000
"""New objects after which reference cycles are looked for."""
_UNREAD_MILLISECONDS: Final = 60_000
"""The system closes a connection whose peer has taken nothing of a response for so long."""


def init(data_dir: DataDir = None, database_url: DatabaseUrl = None, token_file: TokenFile = None) -> None:
    """Create the data directory and the database, and print a new admin token. The token is shown only once.

    If the output is not a terminal, the token is written to a file (mode 0600),
    and the path is printed.

    Example: hushrec-server init --data-dir /var/lib/hushrec
    """
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    create_data_directory(settings.data_dir)
    make_private(settings)
    with open_database(settings.database) as database, database.write() as session:
        others = [view.name for view in list_operators(session, SystemClock().now()).operators]
        made = create_admin(session, command_actor())
        text = "" if made is None else hand_over_first(session, made, settings, token_file)
    typer.echo(text)
    if others:
        typer.echo(
            f"earlier tokens stay valid: {', '.join(others)}; end a lost one with hushrec-server token revoke NAME",
            err=True,
        )


def serve(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    host: Annotated[str | None, Option(help="Address to listen on [HUSHREC_HOST; 127.0.0.1]")] = None,
    port: Annotated[int | None, Option(help="Port to listen on; 0 selects a free port [HUSHREC_PORT; 8000]")] = None,
    public_origins: Annotated[
        str | None,
        Option(help="Addresses that clients use, if not host and port: https://name,... [HUSHREC_PUBLIC_ORIGINS]"),
    ] = None,
    behind_proxy: Annotated[
        bool | None,
        Option("--behind-proxy", help="Clients reach this server only through a reverse proxy [HUSHREC_BEHIND_PROXY]"),
    ] = None,
    executor: Annotated[
        str | None, Option(help="Where sums are computed: local, or dask://host:port [HUSHREC_EXECUTOR; local]")
    ] = None,
    workers: Annotated[int | None, Option(help="Worker processes of the local executor [HUSHREC_WORKERS; 1]")] = None,
    log_format: Annotated[
        str | None, Option(help="Format of log lines: text or json [HUSHREC_LOG_FORMAT; text]")
    ] = None,
    tls_cert: Annotated[Path | None, Option(help="Certificate chain, PEM file [HUSHREC_TLS_CERT]")] = None,
    tls_key: Annotated[Path | None, Option(help="Private key of the certificate, PEM file [HUSHREC_TLS_KEY]")] = None,
    client_ca: Annotated[
        Path | None, Option(help="CA certificates, PEM file: clients must present a certificate [HUSHREC_CLIENT_CA]")
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Run the server until it receives SIGINT or SIGTERM. The first start prints an admin token, once.

    If the output is not a terminal, the token is written to a file (mode 0600),
    and the path is printed.

    Each option can also be set by the environment variable in brackets, which
    is followed by the default. An option overrides its variable.

    Example: hushrec-server serve --data-dir /var/lib/hushrec --host 0.0.0.0 --port 8000
    """
    settings = Settings.load(
        data_dir=data_dir,
        database_url=database_url,
        host=host,
        port=port,
        public_origins=public_origins,
        behind_proxy=behind_proxy,
        executor=executor,
        workers=workers,
        log_format=log_format,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
    )
    check_packages()
    check_semaphores()
    check_tls_files(settings)
    configure_logging(settings.log_format, settings.log_level)
    place = database_place(settings.database)
    _LOG.info("hushrec-server %s, database: %s, blobs: %s", version("hushrec"), place, settings.blob_location)
    for warning in (*doubtful_settings(settings, os.environ), *doubtful_proxies(os.environ)):
        _LOG.warning("%s", warning)
    with own_data_directory(settings):
        make_private(settings)
        _raise_file_limit(settings)
        service = create_app(settings)
        listening = bind(settings)
        _prepare_storage(settings, token_file)
    _run(settings, service, listening)


def _raise_file_limit(settings: Settings) -> None:
    """Allow as many open files as the connections need; warn if the system permits fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.max_connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        _LOG.warning("%d open files are permitted, and max_connections needs %d: raise ulimit -n", allowed, needed)


def _prepare_storage(settings: Settings, token_file: Path | None) -> None:
    """Migrate the database, prepare the blob store, check the workers, and print the first operator's token.

    The application prepares and checks the same when it starts. Doing it here first lets `main` print a failure in one
    line. No token is made if the settings have one, or the database has an operator.

    Raises `DBAPIError`, `MovedDatabaseError`, `BlobsUnavailableError` or `WorkersUnavailableError`.
    """
    with open_database(settings.database) as database:
        blobs = blob_store(settings, database)
        with closing(open_workers(settings.executor, settings.workers, blobs)) as workers:
            workers.check()
        if settings.operator_token is not None:
            return
        with database.write() as session:
            made = create_admin(session, command_actor(), only_first=True)
            text = "" if made is None else hand_over_first(session, made, settings, token_file)
    if made is not None:
        typer.echo(f"operator token (given once, only its hash is kept): {text}")
        sys.stdout.flush()


def bind(settings: Settings) -> socket.socket:
    """Return the bound socket of the service; `CommandError` if the address is in use or not available."""
    log = logging.getLogger("uvicorn.error")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it would log that it runs, before it does, or an error without the address
    try:
        bound = _config(settings, None).bind_socket()
    except SystemExit as ended:
        reason = getattr(ended.__context__, "strerror", None) or "the address cannot be used"
        raise CommandError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another address with --host and "
            f"--port (port 0 selects a free port)"
        ) from None
    finally:
        log.setLevel(level)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
    return bound


def _config(settings: Settings, app: FastAPI | None) -> uvicorn.Config:
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


def _run(settings: Settings, app: FastAPI, listening: socket.socket) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM; the process then ends with status 0."""
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again after its shutdown: exit with status 0
        signal.signal(number, _exit)
    certificate, key = settings.tls_cert, settings.tls_key
    files = None if certificate is None or key is None else _CertificateFiles(settings, certificate, key)
    server = uvicorn.Server(_config(settings, app))
    app.state.beside_server = partial(_accompany, server, files, listening.getsockname())
    # Requests leave next to no reference cycles. Looking for some after every 700 new objects, and now and then through
    # the 200,000 of modules and application, took 6 % of a contribution's time, and .1 s at once.
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS)
    server.run(sockets=[listening])


async def _accompany(
    server: uvicorn.Server, files: _CertificateFiles | None, address: tuple[str, int], services: Services
) -> None:
    """Log the address and tell systemd once requests are answered; meanwhile read a renewed certificate.

    Systemd is told each second that the event loop runs. When the server stops, all long polls are answered: it waits
    for them.
    """
    while not server.started:
        await asyncio.sleep(_LOOK_SECONDS)
    host, port = address[:2]
    name = f"[{host}]" if ":" in host else host
    context = server.config.ssl
    _LOG.info("running on %s://%s:%d", "http" if context is None else "https", name, port)
    notify(READY)
    looks = 0
    while not server.should_exit:
        await asyncio.sleep(_LOOK_SECONDS)
        looks += 1
        if looks % _LOOKS_A_SECOND:
            continue
        notify(ALIVE)
        if files is not None and context is not None and await run_in_threadpool(files.are_new):
            files.load(context)
    notify(STOPPING)
    services.notifier.close()


class _CertificateFiles:
    """The certificate chain and key of a server's TLS context. Make it before the context reads the files."""

    def __init__(self, settings: Settings, certificate: Path, key: Path) -> None:
        self._settings, self._paths = settings, (certificate, key)
        self._seen = self._stamps()

    def are_new(self) -> bool:
        """Return whether the files have changed and can be used. If they cannot, it is logged and they are left alone.

        A certificate and its key are two files: while only one of them is new they do not fit, and the next call finds
        the other.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        try:
            check_tls_files(self._settings)
        except (CommandError, OSError) as error:
            _LOG.warning(_NOT_USED, error)
            self._seen = stamps
            return False
        return True

    def load(self, context: ssl.SSLContext) -> None:
        """Load new files into the context of a running server.

        Call it where handshakes are made, not in another thread: between certificate and key they would fail.
        """
        stamps = self._stamps()
        try:
            context.load_cert_chain(*self._paths)
        except OSError as error:  # changed once more since they were checked: the next call of `are_new` looks again
            _LOG.warning(_NOT_USED, error)
            self._seen = ()
        else:
            _LOG.info("the TLS certificate %s was read again", self._paths[0])
            self._seen = stamps

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with the content of a file; None for a file that is not there."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino, state.st_size


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def export_openapi(
    output: Annotated[Path | None, Option(help="File to write; default: standard output.")] = None,
) -> None:
    """Write the OpenAPI document of this version as JSON.

    Example: hushrec-server export-openapi --output openapi/openapi.json
    """
    text = document_text(create_app(Settings()))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
