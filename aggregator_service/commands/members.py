"""`hushrec-server member`: list and revoke the members of a task."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import DatabaseUrl, DataDir, named_task, transaction
from aggregator_service.tasks.members import member_page, revoke_member
from protocols.messages import Member

__all__ = ["members"]

members = typer.Typer(help="List and revoke the members of a task.", no_args_is_help=True, rich_markup_mode=None)

Task = Annotated[str, typer.Argument(help="Name or id of the task.")]
_PAGE: Final = 1000


@members.command("list")
def member_list(task: Task, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the members of a task in order of enrolment: client id, role and state.

    Example: hushrec-server member list movies
    """
    with transaction(data_dir, database_url) as session:
        row, after = named_task(session, task), 0
        while True:
            page = member_page(session, row.id, after, _PAGE, unkeyed=False)
            for member in page.members:
                typer.echo(f"{member.client_id}  {member.role}  {_state(member, row.needs_keyring)}")
            if page.next is None:
                return
            after = int(page.next)


def _state(member: Member, needs_keyring: bool) -> str:
    if member.revoked:
        return "revoked"
    return "waiting for keys" if needs_keyring and not member.keyed else "active"


@members.command("revoke")
def member_revoke(
    task: Task,
    client: Annotated[str, typer.Argument(help="Client id, as printed by hushrec-server member list.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a membership permanently: the token becomes invalid, later rounds exclude the client, and its identity
    cannot enrol again.

    Example: hushrec-server member revoke movies c_9b1d3f5a7c2e4f6a8b0d
    """
    with transaction(data_dir, database_url) as session:
        member = revoke_member(session, named_task(session, task).id, client, SystemClock().now())
    typer.echo(f"{member.client_id}  {member.role}  revoked")
