"""The pages of members and invitations of a task, and of operators' tokens, with what can be done to each.

No page shows client ids: a member is named by its number in `dashboard.member_list`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.access.principals import create_operator, list_operators, revoke_operator, rotate_operator
from aggregator_service.dashboard.access import HOME, EditorActorOf, EditorOf, Visitor, VisitorOf
from aggregator_service.dashboard.live import task_of
from aggregator_service.dashboard.member_list import MemberState, Order, member_list
from aggregator_service.dashboard.pages import PageRoute, page, redirect
from aggregator_service.problems import Problem
from aggregator_service.routes.common import TaskId
from aggregator_service.services import ServicesOf
from aggregator_service.storage.schema import ClientRow
from aggregator_service.tasks.erasure import erase_member
from aggregator_service.tasks.membership import invitation_page, revoke_invitation, revoke_member
from protocols.messages import OperatorRequest
from protocols.parameter_text import first_fault

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

_MOST_INVITATIONS: Final = 200
_DAY: Final = 86_400.0
PageNumber = Annotated[int, Query(ge=1, le=100_000)]


@router.get("/tasks/{task}/members")
def members(
    services: ServicesOf,
    request: Request,
    _visitor: VisitorOf,
    task: TaskId,
    state: MemberState = "",
    serial: Annotated[str, Query(max_length=20)] = "",
    order: Order = "",
    number: Annotated[PageNumber, Query(alias="page")] = 1,
) -> Response:
    """Show a page of the members of a task, and its invitations."""
    with services.database.read() as session:
        row = task_of(session, task)
        listed = member_list(session, row, state, serial.strip(), order, number)
        invitations = invitation_page(session, task, None, _MOST_INVITATIONS, services.clock.now()).invitations
    return page(request, "members", task=row, listed=listed, invitations=invitations[::-1])


# --- confirmations ---------------------------------------------------------------------------------------------------


def _client_id(session: Session, task: str, number: int) -> str:
    """Return the id of the member with this number; `Problem` not-found if there is none."""
    query = select(ClientRow.id).where(
        ClientRow.task_id == task, ClientRow.sequence == number, ClientRow.erased_at.is_(None)
    )
    found = session.scalars(query).one_or_none()
    if found is None:
        raise Problem("not-found", "The task has no member with this number: it may have been erased.")
    return found


_MEMBER_ACTIONS: Final = {
    "revoke": (
        "Revoke",
        (
            "The membership ends for good: its token is void, and its identity cannot enrol again.",
            "Later rounds do not ask it. What it has contributed stays in the sums, and it keeps the keys that it has.",
            "The server erases it after the days that HUSHREC_REVOKED_DAYS says.",
        ),
    ),
    "erase": (
        "Erase",
        (
            "The membership ends for good, and no row of the server names the member afterwards.",
            "If it is in an active round, it is erased as soon as that round is over.",
            "What it has contributed stays in the sums that were released.",
            "Erase it at the organiser, too: hushrec organiser erase.",
        ),
    ),
}
MemberAction = Literal["revoke", "erase"]


@router.get("/tasks/{task}/members/{number}/{action}")
def confirm_member(
    services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId, number: int, action: MemberAction
) -> Response:
    """Show what revoking or erasing a member does."""
    with services.database.read() as session:
        row = task_of(session, task)
        _client_id(session, task, number)
    verb, effects = _MEMBER_ACTIONS[action]
    trail = [(row.name, f"/tasks/{task}"), ("Members", f"/tasks/{task}/members")]
    return confirmation(request, f"{verb} member {number}", effects, f"/tasks/{task}/members/{number}/{action}", trail)


@router.post("/tasks/{task}/members/{number}/{action}")
def act_on_member(
    services: ServicesOf, request: Request, by: EditorActorOf, task: TaskId, number: int, action: MemberAction
) -> Response:
    """Revoke or erase a member."""

    def write(session: Session) -> None:
        client_id = _client_id(session, task, number)
        if action == "revoke":
            revoke_member(session, task, client_id, by)
        else:
            erase_member(session, task, client_id, by)

    services.database.transact(write)
    return redirect(request, f"/tasks/{task}/members")


@router.get("/tasks/{task}/invitations/{invitation}/revoke")
def confirm_invitation(
    services: ServicesOf, request: Request, _editor: EditorOf, task: TaskId, invitation: str
) -> Response:
    """Show what revoking an invitation does."""
    with services.database.read() as session:
        row = task_of(session, task)
    effects = ("Nobody can enrol with it any more.", "Members who used it stay members.")
    trail = [(row.name, f"/tasks/{task}"), ("Members", f"/tasks/{task}/members")]
    place = f"/tasks/{task}/invitations/{invitation}/revoke"
    return confirmation(request, f"Revoke invitation {invitation}", effects, place, trail)


@router.post("/tasks/{task}/invitations/{invitation}/revoke")
def end_invitation(
    services: ServicesOf, request: Request, by: EditorActorOf, task: TaskId, invitation: str
) -> Response:
    """Revoke an invitation."""
    services.database.transact(lambda session: revoke_invitation(session, task, invitation, by))
    return redirect(request, f"/tasks/{task}/members")


def confirmation(
    request: Request, title: str, effects: Sequence[str], place: str, trail: Sequence[tuple[str, str]], back: str = ""
) -> Response:
    """Show a page that lists the effects of an action and asks for a confirmation.

    place: the action's address, below the dashboard's. trail: the pages above it. back: the address to go back to, by
    default the last page of the trail.
    """
    facts: dict[str, Any] = {"what": title, "effects": effects, "place": place, "trail": trail}
    return page(request, "confirm", back=back or trail[-1][1], **facts)


# --- operators' tokens -----------------------------------------------------------------------------------------------


def _require_admin(visitor: Visitor) -> None:
    if visitor.operator.role != "admin":
        raise Problem("forbidden", "Only admins see and change the tokens of operators.")


@router.get("/tokens")
def tokens(services: ServicesOf, request: Request, visitor: VisitorOf) -> Response:
    """Show all tokens by name, and the form for a new one."""
    _require_admin(visitor)
    return _tokens(services, request)


def _tokens(services: ServicesOf, request: Request, wrong: str = "", **shown: Any) -> Response:
    with services.database.read() as session:
        listed = list_operators(session, services.clock.now()).operators
    return page(request, "tokens", 422 if wrong else 200, operators=listed, wrong=wrong, made=shown.get("made"))


@router.post("/tokens")
def create_token(
    services: ServicesOf,
    request: Request,
    visitor: VisitorOf,
    by: EditorActorOf,
    name: Annotated[str, Form(max_length=63)] = "",
    role: Annotated[str, Form(max_length=20)] = "",
    days: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    """Create a token and show it once, or show the form again with what is wrong."""
    _require_admin(visitor)
    try:
        seconds = float(days) * _DAY if days.strip() else None
        wanted = OperatorRequest.model_validate({"name": name.strip(), "role": role, "expires_seconds": seconds})
        made = services.database.transact(lambda session: create_operator(session, wanted, by))
    except ValidationError as error:
        return _tokens(services, request, first_fault(error))
    except ValueError:
        return _tokens(services, request, "enter a number of days, or nothing")
    except Problem as problem:
        return _tokens(services, request, problem.detail)
    return _tokens(services, request, made=made)


_TOKEN_ACTIONS: Final = {
    "rotate": (
        "Replace",
        ("The old token is void at once, in every program that uses it.", "The new one is shown once."),
    ),
    "revoke": ("Revoke", ("The token is void at once, in every program that uses it.", "Sign-ins with it end.")),
}
TokenAction = Literal["rotate", "revoke"]


@router.get("/tokens/{name}/{action}")
def confirm_token(request: Request, visitor: VisitorOf, name: str, action: TokenAction) -> Response:
    """Show what replacing or revoking a token does."""
    _require_admin(visitor)
    verb, effects = _TOKEN_ACTIONS[action]
    return confirmation(
        request, f"{verb} the token {name}", effects, f"/tokens/{name}/{action}", [("Tokens", "/tokens")]
    )


@router.post("/tokens/{name}/{action}")
def act_on_token(
    services: ServicesOf, request: Request, visitor: VisitorOf, by: EditorActorOf, name: str, action: TokenAction
) -> Response:
    """Replace or revoke a token."""
    _require_admin(visitor)
    if action == "rotate":
        made = services.database.transact(lambda session: rotate_operator(session, name, by))
        return _tokens(services, request, made=made)
    services.database.transact(lambda session: revoke_operator(session, name, by))
    return redirect(request, "/tokens")
