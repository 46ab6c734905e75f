"""`hushrec-server token`: create, list, rotate and revoke operator tokens."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aggregator_service.access.operator_tokens import create_operator, list_operators, revoke_operator, rotate_operator
from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import DatabaseUrl, DataDir, transaction
from aggregator_service.commands.token_output import TokenFile, hand_over
from aggregator_service.settings import Settings
from protocols.messages import OperatorRequest, OperatorRole

__all__ = ["tokens"]

tokens = typer.Typer(
    help="Create, list, rotate and revoke operator tokens.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(help="Name of the token: its owner or its purpose.")]
_DAY: Final = 86_400.0


@tokens.command("create")
def token_create(
    name: Name,
    role: Annotated[OperatorRole, typer.Option(help="Role: admin, operator or read-only.")] = "operator",
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires; default: never.")] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    token_file: TokenFile = None,
) -> None:
    """Create a token and print it once; the server stores only its hash.

    If the output is not a terminal, the token is written to a file (mode 0600),
    and the path is printed.

    Example: hushrec-server token create grafana --role read-only --expires-days 90
    """
    seconds = None if expires_days is None else expires_days * _DAY
    request = OperatorRequest(name=name, role=role, expires_seconds=seconds)
    with transaction(data_dir, database_url) as session:
        made = create_operator(session, request, SystemClock().now())
        text = hand_over(made, Settings.load(data_dir=data_dir), token_file)
    typer.echo(text)


@tokens.command("list")
def token_list(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the tokens: name, role, age and expiry. The tokens themselves are not stored.

    Example: hushrec-server token list --data-dir /var/lib/hushrec
    """
    with transaction(data_dir, database_url) as session:
        page = list_operators(session, SystemClock().now())
    for view in page.operators:
        typer.echo(f"{view.name}  {view.role}  {view.age_seconds / _DAY:.1f} days old  {_expiry(view.expires_seconds)}")


def _expiry(seconds: float | None) -> str:
    if seconds is None:
        return "does not expire"
    return f"expires in {seconds / _DAY:.1f} days" if seconds else "expired"


@tokens.command("rotate")
def token_rotate(
    name: Name, data_dir: DataDir = None, database_url: DatabaseUrl = None, token_file: TokenFile = None
) -> None:
    """Replace a token: print the new one, and make the old one invalid at once. The new one has the same lifetime.

    If the output is not a terminal, the token is written to a file (mode 0600),
    and the path is printed.

    Example: hushrec-server token rotate grafana
    """
    with transaction(data_dir, database_url) as session:
        made = rotate_operator(session, name, SystemClock().now())
        text = hand_over(made, Settings.load(data_dir=data_dir), token_file)
    typer.echo(text)


@tokens.command("revoke")
def token_revoke(name: Name, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Revoke a token: it becomes invalid at once.

    Example: hushrec-server token revoke grafana
    """
    with transaction(data_dir, database_url) as session:
        view = revoke_operator(session, name, SystemClock().now())
    typer.echo(f"{view.name}  {view.role}  revoked")
