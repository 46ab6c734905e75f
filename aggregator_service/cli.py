"""The command `hushrec-server`.

The commands for tasks, invitations, rounds, members and tokens work on the database directly, with the same functions
as the routes. They need the data directory (or --database-url) but no token, and can be used while the server runs: the
server notices their changes within a second.
"""

from __future__ import annotations

import os
import traceback
from importlib import import_module, metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

_BLOBS: Final = "check HUSHREC_BLOBS; for S3 also AWS_ENDPOINT_URL, AWS_REGION, the credentials and the bucket"
_UMASK: Final = 0o077
"""What a command creates is for the user that runs it."""


_COMMANDS: Final = {
    "init": ("serve:init", "Create the data directory and the database, and print a new admin token."),
    "serve": ("serve:serve", "Run the server until it receives SIGINT or SIGTERM."),
    "task": ("task_control:tasks", "Create, list, show, close, resume and delete tasks."),
    "invite": ("task_control:invite", "Create an invitation and print it once."),
    "invitation": ("people:invitations", "List and revoke the invitations of a task."),
    "round": ("task_control:rounds", "Show a round, extend or abort an active one."),
    "member": ("people:members", "List, revoke, export and erase the members of a task."),
    "token": ("people:tokens", "Create, list, rotate and revoke operator tokens."),
    "audit": ("audit_entries:audit", "Print what operators did, and which attempts were refused."),
    "backup": ("storage:backup", "Copy the database and the blobs into a new directory."),
    "restore": ("storage:restore", "Copy a backup into an empty database and its blob store."),
    "migrate-storage": ("storage:migrate_storage", "Copy rows to another database and blobs to another store."),
    "export-openapi": ("serve:export_openapi", "Write the OpenAPI document of this version as JSON."),
    "diagram": ("task_control:show_diagram", "Print the states and transitions of a round as a Mermaid diagram."),
}
"""Command -> its module in `aggregator_service.commands` and its function or `typer.Typer` there, and its line in the
help."""


class _Commands(TyperGroup):
    """The root group: imports a command when it is used, and says what is wrong with an option in our words."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """Import the command and return it, None if there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        found = getattr(import_module(f"aggregator_service.commands.{module}"), name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name)(function)
        command = get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        """Print the commands in the help without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from protocols.parameter_text import cause_text

            error.message = cause_text(error) or error.message
            raise


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hushrec-server {metadata.version('hushrec')}")
        raise typer.Exit


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
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
    context.ensure_object(dict)["debug"] = debug


def main() -> None:
    """Run the command. Print errors that the caller can correct in one line, without a traceback; exit status 1."""
    os.umask(_UMASK)
    # Pydantic would look for plugins in the metadata of all installed packages, and show them every message.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    options = {"debug": False}
    try:
        app(obj=options)
    except Exception as error:
        text = _correctable(error)
        if text is None:
            raise
        if options["debug"]:
            traceback.print_exc()
        typer.echo(f"hushrec-server: {text}", err=True)
        raise SystemExit(1) from None


def _correctable(error: Exception) -> str | None:
    """Return what the caller can correct, None for an error that is ours."""
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith(("aggregator_service", "protocols")):
        from protocols.errors import missing_extra

        return str(missing_extra(f"the server needs {error.name}, of", "server"))

    from pydantic import ValidationError
    from sqlalchemy.exc import DBAPIError, TimeoutError

    from aggregator_service.problems import Problem
    from aggregator_service.settings import Settings, setting_fault
    from aggregator_service.storage.blobs import BlobsUnavailableError
    from aggregator_service.storage.dialects import database_cause
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
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return str(error) if isinstance(error, HushRecError) else None


if __name__ == "__main__":
    main()
