"""Enrolment in a task, and the stored memberships."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from client_sdk.agreement.terms import AgreedTerms, TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program
from client_sdk.errors import Conflict, ContractBroken, NotEnrolled, PolicyRefused
from client_sdk.local_state.client_store import ClientStore, Membership
from client_sdk.local_state.identity import Identity
from protocols.codec import b64decode
from protocols.errors import ParameterError
from protocols.messages import IssuedCertificate, OrganiserPin, TaskView

__all__ = ["enrol", "find_membership", "join", "own_calls"]

_MOST_RENEWALS: Final = 2**31 - 1


def find_membership(client_store: ClientStore, url: str, task: str | None) -> Membership:
    """Return the stored membership of the task with that name or id (None: the only one) on the server at `url`.

    Raises `NotEnrolled` when none is stored, `ParameterError` when several tasks have that name.
    """
    here = [membership for membership in client_store.memberships() if membership.url == url]
    found = [membership for membership in here if task in (None, membership.task_name, membership.task_id)]
    if not found:
        known = ", ".join(sorted(membership.task_name for membership in here)) or "none"
        raise NotEnrolled(f"no membership of task {task or ''!r} on this server is stored here (stored: {known})")
    if len(found) > 1:
        choices = ", ".join(f"{membership.task_name}: {membership.task_id}" for membership in found)
        raise ParameterError(f"several stored tasks match; use the id of one of them ({choices})")
    return found[0]


def enrol(
    calls: ApiCalls,
    identity: Identity,
    invitation: str,
    issued: IssuedCertificate | None,
    device_group: int | None = None,
) -> Program[tuple[Membership, TaskView]]:
    """Enrol with an invitation, and return the membership and the task.

    An identity that enrols again gets the same client id and a new token: the server tells the number of its last
    enrolment, and the client signs the next one. device_group: the group of clients to join,
    where the recipe has several. Raises `ContractBroken` when the server enrols this client in another group.
    """
    certificate = None if issued is None else b64decode(issued.certificate)
    try:
        enrolment = yield from calls.enrol(identity.enrolment(invitation, certificate, device_group))
    except Conflict as error:
        last = (error.problem.model_extra or {}).get("renewal")
        if not isinstance(last, int) or not 0 <= last < _MOST_RENEWALS:
            raise
        enrolment = yield from calls.enrol(identity.enrolment(invitation, certificate, device_group, last + 1))
    if device_group not in (None, enrolment.group):
        detail = f"the server enrolled this client in group {enrolment.group}, not in group {device_group} as requested"
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
        certificate=certificate,
        organiser=None if issued is None else OrganiserPin(key=issued.organiser_key, scope=issued.scope),
        device_group=enrolment.group,
    )
    return membership, view


def join(
    calls: ApiCalls,
    identity: Identity,
    client_store: ClientStore,
    task: str | None,
    invitation: str | None,
    issued: IssuedCertificate | None,
    device_group: int | None = None,
    max_bytes: int | None = None,
) -> Program[tuple[Membership, TaskTerms]]:
    """Return the membership, from `invitation` or from the store, and the terms of the task.

    task: name or id. issued: the organiser's certificate, to enrol with or to renew the stored one. max_bytes: see
    `TaskTerms.of`. Raises
    `PolicyRefused` when the server names another organiser than the certificate's, `ParameterError` when the invitation
    is for a task other than `task` (the enrolment is stored nevertheless) and when `device_group` is not the group
    enrolled in, and `ContractBroken` when the terms differ from those that this client agreed to first.
    """
    if invitation is None:
        membership = find_membership(client_store, calls.url, task)
        if device_group not in (None, membership.device_group):
            raise ParameterError(f"this client is enrolled in group {membership.device_group} and cannot change it")
        own = own_calls(calls, identity, membership)
        if issued is not None:
            membership = yield from renew(own, client_store, membership, issued)
        view = yield from own.task(membership.task_id)
        _agree(view, client_store)
        require_organiser(membership, view)
    else:
        membership, view = yield from enrol(calls, identity, invitation, issued, device_group)
        require_organiser(membership, view)
        _agree(view, client_store)
        client_store.keep_membership(membership)
        if task not in (None, membership.task_name, membership.task_id):
            raise ParameterError(
                f"the invitation is for task {membership.task_name!r}, not for {task!r}; the enrolment is stored"
            )
    terms = TaskTerms.of(view, max_bytes)
    if membership.device_group >= terms.recipe.device_groups:
        detail = (
            f"this client is enrolled in group {membership.device_group}; the recipe has {terms.recipe.device_groups}"
        )
        raise ContractBroken("POST", "/v1/enrolments", 200, detail)
    return membership, terms


def renew(
    own: ApiCalls, client_store: ClientStore, membership: Membership, issued: IssuedCertificate
) -> Program[Membership]:
    """The membership with a later certificate of the same organiser; `PolicyRefused` for another's."""
    pin = OrganiserPin(key=issued.organiser_key, scope=issued.scope)
    if membership.organiser != pin:
        raise PolicyRefused("the new certificate is not from the organiser that this client joined the task with")
    certificate = b64decode(issued.certificate)
    yield from own.renew_certificate(membership.task_id, certificate)
    renewed = replace(membership, certificate=certificate)
    client_store.keep_membership(renewed)
    return renewed


def require_organiser(membership: Membership, view: TaskView) -> None:
    """Raise `PolicyRefused` unless the task names the organiser that certified this client, or neither has one."""
    if view.organiser != membership.organiser:
        found = "none" if view.organiser is None else "another one"
        raise PolicyRefused(
            f"the certificate names an organiser that the server does not: for task {view.name!r} it names {found}"
        )


def own_calls(calls: ApiCalls, identity: Identity, membership: Membership) -> ApiCalls:
    """Return the calls of this member: with its token, and signed by its identity."""
    return calls.enrolled(membership.client_id, membership.token, identity.signing_key)


def _agree(view: TaskView, client_store: ClientStore) -> None:
    """Store the task's terms the first time; later raise `ContractBroken` unless they are the same."""
    agreed = client_store.agreed(view.task_id)
    if agreed is None:
        client_store.keep_agreed(view.task_id, AgreedTerms.of(view))
    else:
        agreed.require(view)
