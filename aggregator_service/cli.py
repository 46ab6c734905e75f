"""The command `hushrec-server`.

Its commands about tasks, members and tokens (`aggregator_service.commands`) work on the database itself, through the
functions that the routes use: they need the data directory (or --database-url), not a token, and may be used while the
server runs, which notices within a second.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import sys
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from aggregator_service.access.operator_tokens import create_admin
from aggregator_service.app import create_app
from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import CommandError, DatabaseUrl, DataDir
from aggregator_service.commands.invitations import invitations
from aggregator_service.commands.members import members
from aggregator_service.commands.rounds import rounds
from aggregator_service.commands.tasks import invite, tasks
from aggregator_service.commands.tokens import tokens
from aggregator_service.compute.open_workers import open_workers
from aggregator_service.compute.process_pool import WorkersUnavailableError
from aggregator_service.http.bounded_protocol import BoundedHttp
from aggregator_service.logs import configure_logging
from aggregator_service.migrations.migrate import migrate
from aggregator_service.problems import Problem
from aggregator_service.round_states import diagram
from aggregator_service.routes.openapi import document_text
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.cleanup import DataDirectoryInUseError, own_data_directory
from aggregator_service.storage.database import Database
from aggregator_service.storage.stores import open_store
from protocols.errors import HushRecError
from protocols.parameter_text.first_fault import first_fault

__all__ = ["app", "main"]

app = typer.Typer(
    help="Run a HushRec aggregator: the server of a federated recommender that learns sums, and nothing else.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
app.add_typer(tasks, name="task")
app.command()(invite)
app.add_typer(invitations, name="invitation")
app.add_typer(rounds, name="round")
app.add_typer(members, name="member")
app.add_typer(tokens, name="token")


class _Server(uvicorn.Server):
    """Told to stop, it answers those who wait for news first: they would hold it up, and be cut off."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every long poll, then the connections."""
        services: Services = self._app.state.services
        services.notifier.close()
        await super().shutdown(sockets)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hushrec-server {metadata.version('hushrec')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run a HushRec aggregator: the server of a federated recommender that learns sums, and nothing else."""
    del version  # read by the callback


@app.command()
def init(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Make the data directory and the database, and print a new operator token, once.

    Example: hushrec-server init --data-dir /var/lib/hushrec
    """
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.database, connections=1)
    try:
        migrate(database)
        with database.write() as session:
            typer.echo(create_admin(session, SystemClock().now()))
    finally:
        database.close()


@app.command()
def serve(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [HUSHREC_HOST; 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one [HUSHREC_PORT; 8000]")] = None,
    executor: Annotated[
        str | None, typer.Option(help="Where sums are made: local, or dask://host:port [HUSHREC_EXECUTOR; local]")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Fold worker processes, if local [HUSHREC_WORKERS; 1]")] = None,
    fold_batch: Annotated[int | None, typer.Option(help="Contributions a fold [HUSHREC_FOLD_BATCH; 32]")] = None,
    body_idle_seconds: Annotated[
        float | None, typer.Option(help="Pause after which a body is given up [HUSHREC_BODY_IDLE_SECONDS; 30]")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="Log lines as text or json [HUSHREC_LOG_FORMAT; text]")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM [HUSHREC_TLS_CERT]")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM [HUSHREC_TLS_KEY]")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="CA that must have signed every client's certificate [HUSHREC_CLIENT_CA]")
    ] = None,
) -> None:
    """Run the aggregator until it is told to stop. The first start prints an operator token, once.

    Example: hushrec-server serve --data-dir /var/lib/hushrec --host 0.0.0.0 --port 8000
    """
    settings = Settings.load(
        data_dir=data_dir,
        database_url=database_url,
        host=host,
        port=port,
        executor=executor,
        workers=workers,
        fold_batch=fold_batch,
        body_idle_seconds=body_idle_seconds,
        log_format=log_format,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
    )
    for path in filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)):
        if not os.access(path, os.R_OK):  # Python's own error names no file
            raise CommandError(f"cannot read {path}")
    configure_logging(settings.log_format, settings.log_level)
    with own_data_directory(settings.data_dir):  # says so in one line when another server runs on it
        service = create_app(settings)
        config = _uvicorn(settings, service)
        try:
            listening = config.bind_socket()
        except SystemExit:  # uvicorn has told what the system said, without the address
            raise CommandError(
                f"cannot listen on {settings.host}:{settings.port}; --host and --port choose another address, "
                f"and port 0 takes a free one"
            ) from None
        _try_storage(settings)
        if settings.operator_token is None:
            _first_token(settings)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it is done: then end in good order
        signal.signal(number, _end)
    gc.collect()
    gc.freeze()  # what is loaded now stays: no collection need look at it again
    _Server(config, service).run(sockets=[listening])


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _uvicorn(settings: Settings, app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        http=BoundedHttp,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # clients train between calls: do not make them connect anew each time
        timeout_graceful_shutdown=5,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.client_ca is None else str(settings.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.client_ca is None else ssl.CERT_REQUIRED,
    )


def _try_storage(settings: Settings) -> None:
    """Bring database and blobs up to date here, where what is wrong with them is told in one line.

    So is what is wrong with the executor: a cluster that cannot be reached, or whose workers are unfit.
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


def _first_token(settings: Settings) -> None:
    database = Database(settings.database, connections=1)
    try:
        with database.write() as session:
            token = create_admin(session, SystemClock().now(), only_first=True)
    finally:
        database.close()
    if token is not None:
        typer.echo(f"operator token (shown once, only its hash is kept): {token}")
        sys.stdout.flush()


@app.command("export-openapi")
def export_openapi(
    output: Annotated[Path | None, typer.Option(help="File to write; standard output when it is not given.")] = None,
) -> None:
    """Write the OpenAPI document of this version.

    Example: hushrec-server export-openapi --output openapi/openapi.json
    """
    text = document_text(create_app(Settings()))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


@app.command("diagram")
def show_diagram() -> None:
    """Print the life of a round as a mermaid diagram, drawn from the transition table.

    Example: hushrec-server diagram
    """
    typer.echo(diagram())


def main() -> None:
    """The console script: faults of the caller are told in one line, without a traceback."""
    try:
        app()
    except Problem as problem:
        _fail(problem.detail)
    except ValidationError as error:
        _fail(first_fault(error))
    except (
        CommandError,
        DataDirectoryInUseError,
        HushRecError,
        BlobsUnavailableError,
        WorkersUnavailableError,
        OSError,
    ) as error:
        _fail(str(error))
    except DBAPIError as error:  # the driver's words may name hosts and users; its type says enough
        _fail(f"the database does not work ({type(error.orig).__name__}): does HUSHREC_DATABASE_URL fit?")


def _fail(text: str) -> None:
    typer.echo(f"hushrec-server: {text}", err=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
