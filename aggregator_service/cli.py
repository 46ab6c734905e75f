"""The command `hushrec-server`.

The commands for tasks, invitations, rounds, members and tokens work on the database directly, with the same functions
as the routes. They need the data directory (or --database-url) but no token, and can be used while the server runs: the
server notices their changes within a second.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Annotated

import typer
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from aggregator_service.commands.common import CommandError
from aggregator_service.commands.documents import export_openapi, show_diagram
from aggregator_service.commands.invitations import invitations
from aggregator_service.commands.members import members
from aggregator_service.commands.rounds import rounds
from aggregator_service.commands.serve import init, serve
from aggregator_service.commands.tasks import invite, tasks
from aggregator_service.commands.tokens import tokens
from aggregator_service.compute.process_pool import WorkersUnavailableError
from aggregator_service.problems import Problem
from aggregator_service.storage.blobs import BlobsUnavailableError
from aggregator_service.storage.cleanup import DataDirectoryInUseError
from aggregator_service.storage.private import UMASK
from protocols.errors import HushRecError
from protocols.parameter_text.first_fault import first_fault

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False, rich_markup_mode=None)
app.command()(init)
app.command()(serve)
app.add_typer(tasks, name="task")
app.command()(invite)
app.add_typer(invitations, name="invitation")
app.add_typer(rounds, name="round")
app.add_typer(members, name="member")
app.add_typer(tokens, name="token")
app.command("export-openapi")(export_openapi)
app.command("diagram")(show_diagram)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hushrec-server {metadata.version('hushrec')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run and manage a HushRec aggregator: the server of a federated recommender, which learns only sums.

    Example: hushrec-server init --data-dir DIR; hushrec-server serve --data-dir DIR
    """
    del version  # used by its callback


def main() -> None:
    """Run the command. Print errors that the caller can correct in one line, without a traceback; exit status 1."""
    os.umask(UMASK)
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
    except DBAPIError as error:  # the driver's message may contain host and user names: print only its type
        _fail(f"database error ({type(error.orig).__name__}): check HUSHREC_DATABASE_URL and that the database runs")


def _fail(text: str) -> None:
    typer.echo(f"hushrec-server: {text}", err=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
