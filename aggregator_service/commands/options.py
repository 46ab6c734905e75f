"""Shared by the commands: options, database transactions, output, and where new tokens go."""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from sqlalchemy import select
from sqlalchemy.orm import Session
from typer import Argument, Option

from aggregator_service.access.audit_trail import Actor, Attempt, refused_row
from aggregator_service.access.principals import hash_token
from aggregator_service.clock import SystemClock
from aggregator_service.migrations.migrate import migrate
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.data_directory import make_private
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import give_to_owner
from aggregator_service.storage.schema import OperatorRow, TaskRow
from aggregator_service.storage.stores import bind_store, delete_orphans, open_store, refuse_moved
from aggregator_service.tasks.task_views import list_tasks
from protocols.errors import HushRecError
from protocols.messages import OperatorToken
from protocols.messages.base import Message

DataDir = Annotated[
    Path | None, Option("--data-dir", help="Directory of the database and the blobs [HUSHREC_DATA_DIR; hushrec-data]")
]
DatabaseUrl = Annotated[
    str | None,
    Option(
        "--database-url",
        help="SQLAlchemy URL of the database; default: SQLite in the data directory [HUSHREC_DATABASE_URL]",
    ),
]
TaskName = Annotated[str, Argument(help="Name or id of the task.")]
AsJson = Annotated[bool, Option("--json", help="Print a JSON array of objects instead of lines.")]

Result = TypeVar("Result")
_LONGEST_TOKEN: Final = 1024
_LONGEST_NAME: Final = 200


class CommandError(HushRecError):
    """An error that the caller can correct; `main` prints it in one line."""


def command_group(help_text: str) -> typer.Typer:
    """Return a group of commands with this text in the help."""
    return typer.Typer(add_completion=False, help=help_text, no_args_is_help=True, rich_markup_mode=None)


def on_database(work: Callable[..., str]) -> Callable[..., None]:
    """Make a typer command of a function that takes a session and returns the text to be printed, "" for none.

    The command has the other parameters of `work`, then --data-dir and --database-url; `settings`, if `work` takes
    them, are those of the data directory, and `actor` is who runs the command. `work` runs in a transaction and may be
    called again, as `in_transaction` says. A command with an actor that is refused leaves that in the audit trail.
    """
    _, *own = signature(work, eval_str=True).parameters.values()
    given_here = {parameter.name for parameter in own} & {"settings", "actor"}
    shown = [parameter for parameter in own if parameter.name not in given_here]
    for name, kind in (("data_dir", DataDir), ("database_url", DatabaseUrl)):
        shown.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    @wraps(work)
    def command(*, data_dir: Path | None, database_url: str | None, **given: Any) -> None:
        if "settings" in given_here:
            given["settings"] = Settings.load(data_dir=data_dir)
        if "actor" not in given_here:
            text = in_transaction(data_dir, database_url, lambda session: work(session, **given))
        else:
            words = work.__name__.replace("_", " ")
            text = as_actor(words, data_dir, database_url, lambda session, actor: work(session, actor=actor, **given))
        if text:
            typer.echo(text)

    command.__signature__ = Signature(shown)  # type: ignore[attr-defined] # typer reads arguments and options from it
    return command


def in_transaction(data_dir: Path | None, database_url: str | None, work: Callable[[Session], Result]) -> Result:
    """Call `work` in a transaction on the server's database, which is migrated first; return its result.

    `work` may be called again, as `Database.transact` says. Raises `CommandError` if the data directory has no
    database, `MovedDatabaseError` if it was moved.
    """
    with database_in_use(data_dir, database_url) as database:
        return database.transact(work)


def as_actor(
    words: str, data_dir: Path | None, database_url: str | None, work: Callable[[Session, Actor], Result]
) -> Result:
    """Call `work` as `in_transaction` does, with who runs the command; a refusal is stored in the audit trail.

    words: of the command, such as "task close". Its arguments are left out: one of them may be a secret.
    """
    actor = command_actor()
    with database_in_use(data_dir, database_url) as database:
        try:
            return database.transact(lambda session: work(session, actor))
        except (Problem, HushRecError) as error:
            slug = error.slug if isinstance(error, Problem) else "invalid-parameters"
            attempt = Attempt(actor.name, actor.via, actor.address, f"hushrec-server {words}", slug)
            with database.write() as session:
                session.add(refused_row(attempt, actor.at, actor.at))
            raise


def command_actor() -> Actor:
    """Return who runs this command: the account, and with sudo the one that asked for it, on this machine."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers may have no entry for their user
        name = f"uid {os.getuid()}"
    before = os.environ.get("SUDO_USER", "")
    asked = f" (sudo of {before})" if before and os.getuid() == 0 else ""
    return Actor(f"{name}{asked}"[:_LONGEST_NAME], "command line", socket.gethostname(), SystemClock().now())


@contextmanager
def database_in_use(data_dir: Path | None, database_url: str | None) -> Iterator[Database]:
    """Yield the server's database, which is migrated first. Raises as `in_transaction`."""
    settings = server_settings(data_dir, database_url)
    blobs = open_store(settings.blob_location, settings.scratch_dir)
    with open_database(settings.database) as database:
        database.listeners.append(lambda effects: delete_orphans(effects, blobs))
        refuse_moved(database)
        yield database


@contextmanager
def open_database(url: str, connections: int = 1) -> Iterator[Database]:
    """Yield a database with the newest schema."""
    with closing(Database(url, connections=connections)) as database:
        migrate(database)
        yield database


def server_settings(data_dir: Path | None, database_url: str | None) -> Settings:
    """Return the settings of a server that has a database. Raises `CommandError` if the data directory has none."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    if settings.database_url is None and not settings.data_dir.joinpath("hushrec.db").exists():
        raise CommandError(
            f"no database in {settings.data_dir}: set --data-dir to the server's data directory, or create a database "
            f"with hushrec-server init"
        )
    make_private(settings)
    return settings


def blob_store(settings: Settings, database: Database) -> BlobStore:
    """Return the blob store of an open database. Raises `MovedDatabaseError`, and as `bind_store` does."""
    refuse_moved(database)
    return bind_store(database, open_store(settings.blob_location, settings.scratch_dir))


def json_array(found: Sequence[Message]) -> str:
    """Return what a `list` command prints with --json: an array with an object for each message."""
    return json.dumps([one.model_dump(mode="json") for one in found], indent=2)


def named_task(session: Session, name: str) -> TaskRow:
    """Return the task with this name or id. Raises `CommandError` if there is none."""
    found = list_tasks(session, name)
    row = found[0] if found else session.get(TaskRow, name)
    if row is None:
        raise CommandError(f"no task {name!r}; list the tasks with: hushrec-server task list")
    return row


TokenFile = Annotated[
    Path | None,
    Option(
        "--token-file",
        help="File for the token, mode 0600; its folder is created if it is missing.",
        show_default="the terminal; without one, NAME.token in the data directory",
    ),
]

PrintedToken = Annotated[
    Path | None,
    Option("--token-file", help="File for the token, mode 0600; its folder is created if it is missing."),
]


def hand_over_first(session: Session, made: OperatorToken, settings: Settings, token_file: Path | None) -> str:
    """Return what `init` and `serve` print about a new token: the token, or the path of the file that it is in.

    The token is returned only if standard output is a terminal and no file was named: their output is often a log,
    which would keep it. Raises as `hand_over`, and is to be called where that is.
    """
    if token_file is None and not sys.stdout.isatty():
        return hand_over(session, made, settings.data_dir / f"{made.name}.token", give_away=True)
    return hand_over(session, made, token_file)


def hand_over(session: Session, made: OperatorToken, token_file: Path | None, *, give_away: bool = False) -> str:
    """Return what a command prints about a new token: the token, or the path of the file that it was written to.

    token_file: None prints the token. give_away: whether the file belongs to the owner of its folder also if root
    writes it. To be called before the transaction ends, so that a file that cannot be written leaves no token behind.

    Raises `CommandError` if the file cannot be written, or holds another token that is valid, which would then be lost
    and stay valid.
    """
    if token_file is None:
        return made.token
    path = token_file.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CommandError(f"cannot create the folder {path.parent} for the token: {error.strerror}") from None
    if path.is_file() and not path.is_symlink():  # a link is replaced, and its target stays
        with path.open("rb") as file:
            held = file.read(_LONGEST_TOKEN).decode("ascii", "replace").strip()
        name = session.scalar(select(OperatorRow.name).where(OperatorRow.token_hash == hash_token(held)))
        if name is not None:
            raise CommandError(
                f"{path} holds the token of {name!r}, which would be lost and stay valid: name another file, or "
                f"replace that token with hushrec-server token rotate {name}"
            )
    try:
        _write_private(path, f"{made.token}\n", give_away=give_away)
    except OSError as error:
        raise CommandError(f"cannot write the token to {path}: {error.strerror}; name another file") from None
    return str(path)


def _write_private(path: Path, text: str, *, give_away: bool) -> None:
    """Write a file of mode 0600. An earlier file or a link at `path` is replaced, not written to.

    give_away: whether it belongs to the owner of its directory also if root writes it.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp creates it with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            if give_away:
                give_to_owner(file.fileno(), path.parent)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
