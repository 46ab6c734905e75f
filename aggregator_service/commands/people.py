"""`hushrec-server member`, `invitation` and `token`: who may take part, and who may operate the server."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from sqlalchemy.orm import Session

from aggregator_service.access.principals import create_operator, list_operators, revoke_operator, rotate_operator
from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import (
    DatabaseUrl,
    DataDir,
    TaskName,
    TokenFile,
    hand_over,
    in_transaction,
    named_task,
)
from aggregator_service.settings import Settings
from aggregator_service.tasks.members import invitation_page, member_page, revoke_invitation, revoke_member
from protocols.messages import InvitationView, Member, OperatorRequest, OperatorRole

members = typer.Typer(
    add_completion=False, help="List and revoke the members of a task.", no_args_is_help=True, rich_markup_mode=None
)

_PAGE: Final = 1000


@members.command("list")
def member_list(task: TaskName, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the members of a task in order of enrolment: client id, role and state.

    Example: hushrec-server member list movies
    """

    def work(session: Session) -> list[str]:
        row, after, lines = named_task(session, task), 0, list[str]()
        while True:
            page = member_page(session, row.id, after, _PAGE, unkeyed=False)
            lines += [f"{one.client_id}  {one.role}  {_state(one, row.needs_keyring)}" for one in page.members]
            if page.next is None:
                return lines
            after = int(page.next)

    _print_lines(in_transaction(data_dir, database_url, work))


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)


def _state(member: Member, needs_keyring: bool) -> str:
    if member.revoked:
        return "revoked"
    return "waiting for keys" if needs_keyring and not member.keyed else "active"


@members.command("revoke")
def member_revoke(
    task: TaskName,
    client: Annotated[str, typer.Argument(help="Client id, as printed by hushrec-server member list.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a membership permanently: the token becomes invalid, later rounds exclude the client, and its identity
    cannot enrol again.

    Example: hushrec-server member revoke movies c_9b1d3f5a7c2e4f6a8b0d
    """
    now = SystemClock().now()
    member = in_transaction(
        data_dir, database_url, lambda session: revoke_member(session, named_task(session, task).id, client, now)
    )
    typer.echo(f"{member.client_id}  {member.role}  revoked")


invitations = typer.Typer(
    add_completion=False, help="List and revoke the invitations of a task.", no_args_is_help=True, rich_markup_mode=None
)

_HOUR: Final = 3600


@invitations.command("list")
def invitation_list(task: TaskName, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the invitations of a task, oldest first: id, role, uses and state. Not the invitations: they are not stored.

    Example: hushrec-server invitation list movies
    """

    def work(session: Session) -> list[str]:
        task_id, after, now, lines = named_task(session, task).id, None, SystemClock().now(), list[str]()
        while True:
            page = invitation_page(session, task_id, after, _PAGE, now)
            lines += map(_line, page.invitations)
            if page.next is None:
                return lines
            after = page.next

    _print_lines(in_transaction(data_dir, database_url, work))


@invitations.command("revoke")
def invitation_revoke(
    task: TaskName,
    invitation: Annotated[
        str, typer.Argument(help="Id of the invitation, as printed by hushrec-server invitation list.")
    ],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke an invitation: no client can enrol with it any more. Members who used it stay members.

    To end a membership, use hushrec-server member revoke.

    Example: hushrec-server invitation revoke movies i_4c6e8a0b2d4f6a8c0e2b
    """
    now = SystemClock().now()
    view = in_transaction(
        data_dir,
        database_url,
        lambda session: revoke_invitation(session, named_task(session, task).id, invitation, now),
    )
    typer.echo(_line(view))


def _line(view: InvitationView) -> str:
    state = f"open for {view.expires_seconds / _HOUR:.1f} hours" if view.state == "open" else view.state
    return f"{view.invitation_id}  {view.role}  used {view.used} of {view.uses}  {state}"


tokens = typer.Typer(
    add_completion=False,
    help="Create, list, rotate and revoke operator tokens.",
    no_args_is_help=True,
    rich_markup_mode=None,
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
    settings = Settings.load(data_dir=data_dir)

    def work(session: Session) -> str:
        return hand_over(session, create_operator(session, request, SystemClock().now()), settings, token_file)

    typer.echo(in_transaction(data_dir, database_url, work))


@tokens.command("list")
def token_list(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the tokens: name, role, age and expiry. The tokens themselves are not stored.

    Example: hushrec-server token list --data-dir /var/lib/hushrec
    """
    page = in_transaction(data_dir, database_url, lambda session: list_operators(session, SystemClock().now()))
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
    settings = Settings.load(data_dir=data_dir)

    def work(session: Session) -> str:
        return hand_over(session, rotate_operator(session, name, SystemClock().now()), settings, token_file)

    typer.echo(in_transaction(data_dir, database_url, work))


@tokens.command("revoke")
def token_revoke(name: Name, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Revoke a token: it becomes invalid at once.

    Example: hushrec-server token revoke grafana
    """
    now = SystemClock().now()
    view = in_transaction(data_dir, database_url, lambda session: revoke_operator(session, name, now))
    typer.echo(f"{view.name}  {view.role}  revoked")
