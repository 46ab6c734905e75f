"""`hushrec-server invitation`: list and revoke the invitations of a task."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from aggregator_service.clock import SystemClock
from aggregator_service.commands.common import DatabaseUrl, DataDir, named_task, transaction
from aggregator_service.tasks.invitations import invitation_page, revoke_invitation
from protocols.messages import InvitationView

__all__ = ["invitations"]

invitations = typer.Typer(
    help="List and revoke the invitations of a task.", no_args_is_help=True, rich_markup_mode=None
)

Task = Annotated[str, typer.Argument(help="Name or id of the task.")]
_PAGE: Final = 1000
_HOUR: Final = 3600


@invitations.command("list")
def invitation_list(task: Task, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the invitations of a task, oldest first: id, role, uses and state. Not the invitations: they are not stored.

    Example: hushrec-server invitation list movies
    """
    with transaction(data_dir, database_url) as session:
        task_id, after, now = named_task(session, task).id, None, SystemClock().now()
        while True:
            page = invitation_page(session, task_id, after, _PAGE, now)
            for view in page.invitations:
                typer.echo(_line(view))
            if page.next is None:
                return
            after = page.next


@invitations.command("revoke")
def invitation_revoke(
    task: Task,
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
    with transaction(data_dir, database_url) as session:
        task_id = named_task(session, task).id
        typer.echo(_line(revoke_invitation(session, task_id, invitation, SystemClock().now())))


def _line(view: InvitationView) -> str:
    state = f"open for {view.expires_seconds / _HOUR:.1f} hours" if view.state == "open" else view.state
    return f"{view.invitation_id}  {view.role}  used {view.used} of {view.uses}  {state}"
