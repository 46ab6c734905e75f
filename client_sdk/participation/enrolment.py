"""Becoming a member of a task, and finding the tasks one is a member of."""

from __future__ import annotations

from client_sdk.agreement.terms import AgreedTerms, TaskTerms
from client_sdk.api.calls import Calls
from client_sdk.api.effects import Program
from client_sdk.errors import ContractBroken, NotEnrolled
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import Membership, Shelf
from protocols.errors import ParameterError
from protocols.messages import TaskView

__all__ = ["enrol", "find_membership", "join", "own_calls"]


def find_membership(shelf: Shelf, url: str, task: str | None) -> Membership:
    """The membership of the task with that name or id (the only one when None) on the server at `url`.

    Raises `NotEnrolled` when none is kept, `ParameterError` when the name fits several.
    """
    here = [membership for membership in shelf.memberships() if membership.url == url]
    found = [membership for membership in here if task in (None, membership.task_name, membership.task_id)]
    if not found:
        known = ", ".join(sorted(membership.task_name for membership in here)) or "none"
        raise NotEnrolled(f"no membership of task {task or ''!r} on this server is kept here (kept: {known})")
    if len(found) > 1:
        choices = ", ".join(f"{membership.task_name}: {membership.task_id}" for membership in found)
        raise ParameterError(f"several tasks fit; name one by its id ({choices})")
    return found[0]


def enrol(
    calls: Calls, identity: Identity, invitation: str, group_code: bytes | None, group: int | None = None
) -> Program[tuple[Membership, TaskView]]:
    """Enrol with an invitation, and see the task; the same identity may do so again and gets the same client id with a
    new token.

    group: which of the recipe's groups of clients to join, where it has several.
    """
    enrolment = yield from calls.enrol(identity.enrolment(invitation, group_code, group))
    if group not in (None, enrolment.group):
        detail = f"the server enrolled this client in group {enrolment.group}, and it asked for group {group}"
        raise ContractBroken("POST", "/v1/enrolments", 200, detail)
    own = calls.enrolled(enrolment.client_id, enrolment.token, identity.signing_key)
    view: TaskView = yield from own.task(enrolment.task_id)
    membership = Membership(
        url=calls.url,
        task_id=enrolment.task_id,
        task_name=view.name,
        client_id=enrolment.client_id,
        role=enrolment.role,
        token=enrolment.token,
        group_code=group_code,
        group=enrolment.group,
    )
    return membership, view


def join(
    calls: Calls,
    identity: Identity,
    shelf: Shelf,
    task: str | None,
    invitation: str | None,
    group_code: bytes | None,
    group: int | None = None,
) -> Program[tuple[Membership, TaskTerms]]:
    """The membership, enrolled with `invitation` or kept from before, and the task's terms.

    A kept group code is used where none is given. Raises `ParameterError` when the invitation is for another task
    than the one named: the enrolment is kept all the same; and for another `group` than the one enrolled in. Raises
    `ContractBroken` when the task's terms are not those of the first time.
    """
    if invitation is None:
        membership = find_membership(shelf, calls.url, task)
        if group not in (None, membership.group):
            raise ParameterError(f"this client enrolled in group {membership.group}, and stays there")
        if group_code is not None and group_code != membership.group_code:
            membership = Membership(**{**vars(membership), "group_code": group_code})
            shelf.keep_membership(membership)
        view = yield from own_calls(calls, identity, membership).task(membership.task_id)
        _agree(view, shelf)
    else:
        membership, view = yield from enrol(calls, identity, invitation, group_code, group)
        kept = shelf.membership(membership.task_id)
        if group_code is None and kept is not None:
            membership = Membership(**{**vars(membership), "group_code": kept.group_code})
        _agree(view, shelf)
        shelf.keep_membership(membership)
        if task not in (None, membership.task_name, membership.task_id):
            raise ParameterError(f"the invitation is for task {membership.task_name!r}, not for {task!r}")
    terms = TaskTerms.of(view)
    if membership.group >= terms.recipe.groups:
        detail = f"this client is in group {membership.group} of a recipe that has {terms.recipe.groups}"
        raise ContractBroken("POST", "/v1/enrolments", 200, detail)
    return membership, terms


def own_calls(calls: Calls, identity: Identity, membership: Membership) -> Calls:
    """The API as this member sees it."""
    return calls.enrolled(membership.client_id, membership.token, identity.signing_key)


def _agree(view: TaskView, shelf: Shelf) -> None:
    """The task as the server states it, compared with what was agreed on when this client first saw it."""
    agreed = shelf.agreed(view.task_id)
    if agreed is None:
        shelf.keep_agreed(view.task_id, AgreedTerms.of(view))
    else:
        agreed.require(view)
