"""Consoles, tables and error output shared by all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, Final, NoReturn, TypeVar, get_type_hints

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from client_sdk.errors import (
    BadSignature,
    ConnectionFailed,
    Forbidden,
    GaveUp,
    Gone,
    LocalFileError,
    ModelUnavailable,
    NotEnrolled,
    PolicyRefused,
    ServerFault,
    StaleSignature,
    Unauthenticated,
    UntrustedServer,
)
from protocols.errors import CertificateError, EnvelopeError, KeyringError

__all__ = [
    "command_options",
    "console",
    "expiry_text",
    "fail",
    "hint",
    "stderr",
    "table",
]


console: Final = Console()
stderr: Final = Console(stderr=True)


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column is left-aligned and whose other columns are right-aligned.

    The header row is left out if all `headings` are empty. Each row has as many cells as there are headings; cells may
    contain rich markup.
    """
    made = Table(title=title, title_justify="left", show_header=any(headings), min_width=cell_len(title))
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="left" if place == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def expiry_text(not_after: int) -> str:
    """Return the last second of a certificate's validity, in seconds since the epoch, as a date and time in UTC."""
    try:
        return f"{datetime.fromtimestamp(not_after, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # what `fromtimestamp` raises depends on the size of the number
        return "after the year 9999"


def fail(message: str, hint: str = "") -> NoReturn:
    """Print `error: message` and, on a second line, `hint` to standard error; raise `typer.Exit` with code 1."""
    stderr.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    if hint:
        stderr.print(f"  {escape(hint)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)


# --- commands whose arguments and options are the fields of one dataclass --------------------------------------------

T = TypeVar("T")


def command_options(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Return a decorator that makes a typer command of a function with one parameter of type `kind`.

    kind: a dataclass. Each field is an argument or option of the command, in order; its type is
    `Annotated[type, typer.Option(...)]` or `Annotated[type, typer.Argument(...)]`, its default is the option's default.
    The command's help is the docstring of the decorated function.
    """
    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(kind(**values))

        # typer reads the options from the signature
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate


# --- hints printed below an error: what the user can do about it -----------------------------------------------------

_HINTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NotEnrolled, "Join the task first: hushrec join URL --invitation INVITATION --interactions FILE"),
    (Gone, "Ask the operator for a new invitation: hushrec-server invite TASK"),
    (Unauthenticated, "The server does not know this client any more: join again with an invitation."),
    (
        BadSignature,
        "Check that --identity is the file this client enrolled with, and that the server knows this address as "
        "its own (HUSHREC_PUBLIC_ORIGINS). A proxy that rewrites paths breaks signatures.",
    ),
    (StaleSignature, "Set this machine's clock: it differs too much from the server's."),
    (
        Forbidden,
        "Check that the invitation is copied in full and is for this server, and that the membership certificate is "
        "from the task's organiser (--issuer with --scope and --code, or --certificate).",
    ),
    (PolicyRefused, "To accept such a task, pass --min-cohort, --allow-plain, --trust-roster or --max-model-bytes."),
    (ModelUnavailable, "Try again when the next round has ended."),
    (
        UntrustedServer,
        "Set SSL_CERT_FILE to the PEM file of the authority that issued the server's certificate, and use the host "
        "name that the certificate names. If you did not expect this, do not go on: another server may be answering.",
    ),
    (ConnectionFailed, "Check the address and that the server is running: hushrec doctor --url URL"),
    (EnvelopeError, "Ask the key holder to run hushrec keyring serve; check that this is the identity that enrolled."),
    (
        CertificateError,
        "Ask the task's organiser for a certificate for this identity: --issuer with --scope and a code, or a file "
        "made from hushrec certificate request.",
    ),
    (
        KeyringError,
        "The key holder makes keys with: hushrec keyring create, and seals them with: hushrec keyring serve.",
    ),
    (ServerFault, "The error is in the server: its operator finds the details in the server's log."),
    (
        LocalFileError,
        "hushrec join creates a client's identity and files (--identity names the identity file); hushrec organiser "
        "init creates an organiser's key (--folder names its folder).",
    ),
)


def hint(error: Exception) -> str:
    """Return what the user can do about `error`, in one sentence, or "" if there is no hint for its type.

    For `GaveUp` the last error before giving up decides. The first matching entry of the table is used.
    """
    cause = error.last if isinstance(error, GaveUp) else error
    return next((text for kind, text in _HINTS if isinstance(cause, kind)), "")
