"""The command `hushrec-server`.

The commands for tasks, invitations, rounds, members and tokens work on the database directly, with the same functions
as the routes. They need the data directory (or --database-url) but no token, and can be used while the server runs: the
server notices their changes within a second.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

_BLOBS: Final = "check HUSHREC_BLOBS; for S3 also AWS_ENDPOINT_URL, AWS_REGION, the credentials and the bucket"
_UMASK: Final = 0o077
"""What a command creates is for the user that runs it."""


class _Commands(TyperGroup):
    """The root group. Says what is wrong with an option in our words."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from protocols.parameter_text import cause_text

            error.message = cause_text(error) or error.message
            raise


@dataclass
class _Flags:
    """Options before the name of a command."""

    debug: bool = False


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hushrec-server {metadata.version('hushrec')}")
        raise typer.Exit


def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Also print the traceback of an error.")] = False,
) -> None:
    """Run and manage a HushRec aggregator: the server of a federated recommender, which learns only sums.

    Example: hushrec-server init --data-dir DIR; hushrec-server serve --data-dir DIR
    """
    del version  # used by its callback
    context.ensure_object(_Flags).debug = debug


def command_line() -> typer.Typer:
    """Return the command with its subcommands. Raises `ModuleNotFoundError` if a package of the server is missing."""
    from aggregator_service.commands import people, serve, storage, tasks

    made = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    made.callback()(_options)
    made.command("init")(serve.init)
    made.command("serve")(serve.serve)
    made.add_typer(tasks.tasks, name="task")
    made.command("invite")(tasks.invite)
    made.add_typer(people.invitations, name="invitation")
    made.add_typer(tasks.rounds, name="round")
    made.add_typer(people.members, name="member")
    made.add_typer(people.tokens, name="token")
    made.command("backup")(storage.backup)
    made.command("migrate-storage")(storage.migrate_storage)
    made.command("export-openapi")(serve.export_openapi)
    made.command("diagram")(tasks.show_diagram)
    return made


def main() -> None:
    """Run the command. Print errors that the caller can correct in one line, without a traceback; exit status 1."""
    os.umask(_UMASK)
    # Pydantic would look for plugins in the metadata of all installed packages, and show them every message.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    flags = _Flags()
    try:
        command_line()(obj=flags)
    except Exception as error:
        text = _correctable(error)
        if text is None:
            raise
        if flags.debug:
            traceback.print_exc()
        _fail(text)


def _correctable(error: Exception) -> str | None:
    """Return what the caller can correct, None for an error that is ours."""
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith(("aggregator_service", "protocols")):
        return f"the server needs {error.name}, which is not installed: pip install 'hushrec[server]'"

    from pydantic import ValidationError
    from sqlalchemy.exc import DBAPIError, TimeoutError

    from aggregator_service.commands.common import CommandError
    from aggregator_service.compute.workers import WorkersUnavailableError
    from aggregator_service.migrations.migrate import NewerDatabaseError
    from aggregator_service.problems import Problem
    from aggregator_service.settings import Settings, setting_fault
    from aggregator_service.storage.blobs import BlobsUnavailableError
    from aggregator_service.storage.data_directory import DataDirectoryInUseError
    from aggregator_service.storage.dialects import database_cause
    from aggregator_service.storage.stores import MovedDatabaseError
    from protocols.errors import HushRecError
    from protocols.parameter_text import first_fault

    if isinstance(error, Problem):
        return error.detail
    if isinstance(error, ValidationError):
        return (setting_fault if error.title == Settings.__name__ else first_fault)(error)
    if isinstance(error, BlobsUnavailableError):
        return str(error) if "HUSHREC_BLOBS" in str(error) else f"{error}: {_BLOBS}"
    if isinstance(error, DBAPIError | TimeoutError):
        return database_cause(error)
    known = (
        CommandError,
        DataDirectoryInUseError,
        HushRecError,
        MovedDatabaseError,
        NewerDatabaseError,
        WorkersUnavailableError,
    )
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return str(error) if isinstance(error, known) else None


def _fail(text: str) -> NoReturn:
    typer.echo(f"hushrec-server: {text}", err=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
