"""`hushrec-server member`, `invitation` and `token`: who may take part, and who may operate the server."""

from __future__ import annotations

from typing import Annotated, Final

from sqlalchemy.orm import Session
from typer import Argument, Option

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import create_operator, list_operators, revoke_operator, rotate_operator
from aggregator_service.clock import SystemClock
from aggregator_service.commands.options import (
    AsJson,
    PrintedToken,
    TaskName,
    command_group,
    hand_over,
    json_array,
    named_task,
    on_database,
)
from aggregator_service.tasks.erasure import erase_member, find_member
from aggregator_service.tasks.exports import export_member
from aggregator_service.tasks.membership import invitation_page, member_page, revoke_invitation, revoke_member
from protocols.messages import InvitationView, Member, OperatorRequest, OperatorRole

members = command_group("List, revoke, export and erase the members of a task.")
invitations = command_group("List and revoke the invitations of a task.")
tokens = command_group("Create, list, rotate and revoke operator tokens.")

_PAGE: Final = 1000
_KEYS: Final = {"ignore_unknown_options": True}
"""Of commands with an identity key as argument, of which one in 64 begins with "-"."""
_HOUR: Final = 3600
_DAY: Final = 86_400.0


@members.command("list")
@on_database
def member_list(session: Session, task: TaskName, as_json: AsJson = False) -> str:
    """List the members of a task in order of enrolment: client id, role and state.

    Example: hushrec-server member list movies
    """
    row, after, found = named_task(session, task), 0, list[Member]()
    while True:
        page = member_page(session, row.id, after, _PAGE, unkeyed=False)
        found += page.members
        if page.next is None:
            break
        after = int(page.next)
    if as_json:
        return json_array(found)
    return "\n".join(f"{one.client_id}  {one.role}  {_state(one, row.needs_keyring)}" for one in found)


def _state(member: Member, needs_keyring: bool) -> str:
    if member.revoked:
        return "revoked"
    waits = needs_keyring and not member.keyed and member.role == "member"
    return "waiting for keys" if waits else "active"


Client = Annotated[
    str,
    Argument(
        help="Client id, as printed by hushrec-server member list; or the identity key, or the certificate's serial."
    ),
]


@members.command("revoke", context_settings=_KEYS)
@on_database
def member_revoke(
    session: Session,
    actor: Actor,
    task: TaskName,
    client: Client,
) -> str:
    """Revoke a membership permanently: the token becomes invalid, later rounds exclude the client, and its identity
    cannot enrol again.

    Example: hushrec-server member revoke movies c_9b1d3f5a7c2e4f6a8b0d
    """
    row = named_task(session, task)
    member = revoke_member(session, row.id, find_member(session, row, client), actor)
    return f"{member.client_id}  {member.role}  revoked"


@members.command("erase", context_settings=_KEYS)
@on_database
def member_erase(session: Session, actor: Actor, task: TaskName, client: Client) -> str:
    """Revoke a membership and erase the member: no row of the server names it afterwards. It cannot be undone.

    Sums with its contributions stay. While a round with the member is active, a
    running server erases it when the round is over. Erase it at the organiser, too:
    hushrec organiser erase.

    Example: hushrec-server member erase movies c_9b1d3f5a7c2e4f6a8b0d
    """
    row = named_task(session, task)
    done = erase_member(session, row.id, find_member(session, row, client), actor)
    if done.waits_for_round is not None:
        return f"revoked; the server erases it when round {done.waits_for_round} is over"
    return "erased; its contributions stay in the sums that were released"


@members.command("export", context_settings=_KEYS)
@on_database
def member_export(session: Session, actor: Actor, task: TaskName, client: Client) -> str:
    """Print everything that the server stores about a member, as JSON, for the person that it belongs to.

    Example: hushrec-server member export movies c_9b1d3f5a7c2e4f6a8b0d > ann.json
    """
    row = named_task(session, task)
    client_id = find_member(session, row, client)
    found = export_member(session, row, client_id)
    record(session, actor, "data of a member exported", task=row, target=client_id)
    return found.model_dump_json(indent=2)


@invitations.command("list")
@on_database
def invitation_list(session: Session, task: TaskName, as_json: AsJson = False) -> str:
    """List the invitations of a task, oldest first: id, role, uses and state. Not the invitations: they are not stored.

    Example: hushrec-server invitation list movies
    """
    task_id, after, now, found = named_task(session, task).id, None, SystemClock().now(), list[InvitationView]()
    while True:
        page = invitation_page(session, task_id, after, _PAGE, now)
        found += page.invitations
        if page.next is None:
            return json_array(found) if as_json else "\n".join(map(_line, found))
        after = page.next


@invitations.command("revoke")
@on_database
def invitation_revoke(
    session: Session,
    actor: Actor,
    task: TaskName,
    invitation: Annotated[str, Argument(help="Id of the invitation, as printed by hushrec-server invitation list.")],
) -> str:
    """Revoke an invitation: no client can enrol with it any more. Members who used it stay members.

    To end a membership, use hushrec-server member revoke.

    Example: hushrec-server invitation revoke movies i_4c6e8a0b2d4f6a8c0e2b
    """
    return _line(revoke_invitation(session, named_task(session, task).id, invitation, actor))


def _line(view: InvitationView) -> str:
    state = f"open for {view.expires_seconds / _HOUR:.1f} hours" if view.state == "open" else view.state
    return f"{view.invitation_id}  {view.role}  used {view.used} of {view.uses}  {state}"


Name = Annotated[str, Argument(help="Name of the token: its owner or its purpose.")]


@tokens.command("create")
@on_database
def token_create(
    session: Session,
    actor: Actor,
    name: Name,
    role: Annotated[OperatorRole, Option(help="Role: admin, operator or read-only.")] = "operator",
    expires_days: Annotated[float | None, Option(help="Days until it expires; default: never.")] = None,
    token_file: PrintedToken = None,
) -> str:
    """Create a token and print it once, as invite prints an invitation; the server stores only its hash.

    With --token-file it is written to that file, and the path is printed.

    Example: hushrec-server token create grafana --role read-only --expires-days 90
    """
    seconds = None if expires_days is None else expires_days * _DAY
    request = OperatorRequest(name=name, role=role, expires_seconds=seconds)
    return hand_over(session, create_operator(session, request, actor), token_file)


@tokens.command("list")
@on_database
def token_list(session: Session, as_json: AsJson = False) -> str:
    """List the tokens: name, role, age and expiry. The tokens themselves are not stored.

    Example: hushrec-server token list --data-dir /var/lib/hushrec
    """
    found = list_operators(session, SystemClock().now()).operators
    if as_json:
        return json_array(found)
    return "\n".join(
        f"{view.name}  {view.role}  {view.age_seconds / _DAY:.1f} days old  {_expiry(view.expires_seconds)}"
        for view in found
    )


def _expiry(seconds: float | None) -> str:
    if seconds is None:
        return "does not expire"
    return f"expires in {seconds / _DAY:.1f} days" if seconds else "expired"


@tokens.command("rotate")
@on_database
def token_rotate(session: Session, actor: Actor, name: Name, token_file: PrintedToken = None) -> str:
    """Replace a token: print the new one, and make the old one invalid at once. The new one has the same lifetime.

    With --token-file it is written to that file, and the path is printed.

    Example: hushrec-server token rotate grafana
    """
    return hand_over(session, rotate_operator(session, name, actor), token_file)


@tokens.command("revoke")
@on_database
def token_revoke(session: Session, actor: Actor, name: Name) -> str:
    """Revoke a token: it becomes invalid at once.

    Example: hushrec-server token revoke grafana
    """
    view = revoke_operator(session, name, actor)
    return f"{view.name}  {view.role}  revoked"
