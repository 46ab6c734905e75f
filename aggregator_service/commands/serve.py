"""`hushrec-server init` and `serve`: create the database, run the server."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Final

import typer

from aggregator_service.access.operator_tokens import create_admin
from aggregator_service.app import create_app
from aggregator_service.clock import SystemClock
from aggregator_service.commands.api_process import InheritedDescriptor, run_server, serve_process
from aggregator_service.commands.command_options import command_options
from aggregator_service.commands.common import DatabaseUrl, DataDir
from aggregator_service.commands.listening import bind_process_ports, bind_service
from aggregator_service.commands.startup_checks import (
    check_packages,
    check_semaphores,
    check_tls_files,
    doubtful_settings,
)
from aggregator_service.commands.supervisor import Supervisor
from aggregator_service.commands.token_output import TokenFile, hand_over
from aggregator_service.compute.open_workers import open_workers
from aggregator_service.logs import configure_logging
from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Settings
from aggregator_service.storage.cleanup import collect_bodies, collect_orphans, own_data_directory
from aggregator_service.storage.database import Database
from aggregator_service.storage.private import make_private
from aggregator_service.storage.stores import open_store

__all__ = ["ServeOptions", "init", "serve"]

_LOG = logging.getLogger(__name__)
_OTHER_FILES: Final = 512
"""Open files besides connections: database, blobs, uploads, workers."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of `hushrec-server serve`; None: the environment variable in brackets, or the default behind it."""

    data_dir: DataDir = None
    database_url: DatabaseUrl = None
    host: Annotated[str | None, typer.Option(help="Address to listen on [HUSHREC_HOST; 127.0.0.1]")] = None
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 selects a free port [HUSHREC_PORT; 8000]")] = (
        None
    )
    public_origins: Annotated[
        str | None,
        typer.Option(
            help="Addresses that clients use, if not host and port: https://name,... [HUSHREC_PUBLIC_ORIGINS]"
        ),
    ] = None
    behind_proxy: Annotated[
        bool | None,
        typer.Option(
            "--behind-proxy", help="Clients reach this server only through a reverse proxy [HUSHREC_BEHIND_PROXY]"
        ),
    ] = None
    processes: Annotated[int | None, typer.Option(help="API processes that share the port [HUSHREC_PROCESSES; 1]")] = (
        None
    )
    process_port: Annotated[
        int | None,
        typer.Option(help="Process i of several also listens on this port + i, locally [HUSHREC_PROCESS_PORT]"),
    ] = None
    executor: Annotated[
        str | None, typer.Option(help="Where sums are computed: local, or dask://host:port [HUSHREC_EXECUTOR; local]")
    ] = None
    workers: Annotated[int | None, typer.Option(help="Worker processes of the local executor [HUSHREC_WORKERS; 1]")] = (
        None
    )
    fold_batch: Annotated[
        int | None, typer.Option(help="Contributions in one fold [HUSHREC_FOLD_BATCH; 32, up to 512 short ones]")
    ] = None
    body_idle_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds without data after which an upload fails with 408 [HUSHREC_BODY_IDLE_SECONDS; 30]"),
    ] = None
    log_format: Annotated[
        str | None, typer.Option(help="Format of log lines: text or json [HUSHREC_LOG_FORMAT; text]")
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM file [HUSHREC_TLS_CERT]")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM file [HUSHREC_TLS_KEY]")] = (
        None
    )
    client_ca: Annotated[
        Path | None,
        typer.Option(help="CA certificates, PEM file: clients must present a certificate [HUSHREC_CLIENT_CA]"),
    ] = None
    token_file: TokenFile = None


def init(data_dir: DataDir = None, database_url: DatabaseUrl = None, token_file: TokenFile = None) -> None:
    """Create the data directory and the database, and print a new admin token. The token is shown only once.

    If the output is not a terminal, the token is written to a file (mode 0600),
    and the path is printed.

    Example: hushrec-server init --data-dir /var/lib/hushrec
    """
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_private(settings)
    database = Database(settings.database, connections=1)
    try:
        migrate(database)
        with database.write() as session:
            made = create_admin(session, SystemClock().now())
            text = "" if made is None else hand_over(made, settings, token_file)
        typer.echo(text)
    finally:
        database.close()


@command_options(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Run the server until it receives SIGINT or SIGTERM. The first start prints an admin token, once.

    If the output is not a terminal, the token is written to a file (mode 0600),
    and the path is printed.

    Each option can also be set by the environment variable in brackets, which
    is followed by the default. An option overrides its variable.

    Example: hushrec-server serve --data-dir /var/lib/hushrec --host 0.0.0.0 --port 8000
    """
    settings = Settings.load(**{name: value for name, value in asdict(options).items() if name != "token_file"})
    check_packages()
    check_semaphores()
    check_tls_files(settings)
    configure_logging(settings.log_format, settings.log_level)
    for warning in doubtful_settings(settings, os.environ):
        _LOG.warning("%s", warning)
    with own_data_directory(settings) as lock:
        make_private(settings)
        _raise_file_limit(settings)
        service = create_app(settings)
        listening = bind_service(settings)
        own_ports = bind_process_ports(settings)
        _prepare_storage(settings)
        if settings.operator_token is None:
            _print_first_token(settings, options.token_file)
        if settings.processes > 1:
            sys.exit(_serve_in_processes(settings, listening, own_ports, lock))
    run_server(settings, service, [listening])


def _serve_in_processes(
    settings: Settings, listening: socket.socket, own_ports: Sequence[socket.socket], lock: int
) -> int:
    """Run the API processes until a signal; return the exit status. lock: descriptor of the data directory's lock.

    own_ports: of each process, or empty. Each process inherits the lock. If this process is killed, no other server
    starts before all of them have ended.
    """
    collect_bodies(settings.upload_dir)
    if settings.owns_storage:
        database = Database(settings.database, connections=1)
        try:
            collect_orphans(database, open_store(settings.blob_location, settings.scratch_dir))
        finally:
            database.close()
    context = get_context("spawn")  # a fork would share open connections

    def start(number: int, channel: socket.socket) -> BaseProcess:
        sockets = [listening, *own_ports[number - 1 : number]]
        process = context.Process(
            target=serve_process,
            args=(settings, number, sockets, channel, InheritedDescriptor(lock)),
            name=f"API process {number}",
        )
        process.start()
        return process

    return Supervisor(settings.processes, start).run()


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


def _prepare_storage(settings: Settings) -> None:
    """Migrate the database, prepare the blob store and check the workers.

    The application does the same when it starts. Doing it here first lets `main` print a failure in one line.

    Raises: `DBAPIError`, `BlobsUnavailableError` or `WorkersUnavailableError`.
    """
    database = Database(settings.database, connections=1)
    try:
        migrate(database)
    finally:
        database.close()
    blobs = open_store(settings.blob_location, settings.scratch_dir)
    blobs.prepare()
    workers = open_workers(settings.executor, settings.workers, blobs)
    try:
        workers.check()
    finally:
        workers.close()


def _print_first_token(settings: Settings, token_file: Path | None) -> None:
    """Create and print an admin token if the database has no operator yet."""
    database = Database(settings.database, connections=1)
    try:
        with database.write() as session:
            made = create_admin(session, SystemClock().now(), only_first=True)
            text = "" if made is None else hand_over(made, settings, token_file)
    finally:
        database.close()
    if made is not None:
        typer.echo(f"operator token (given once, only its hash is kept): {text}")
        sys.stdout.flush()
