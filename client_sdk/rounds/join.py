"""Joining a task as one identity, under its policy."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from client_sdk.agreement.terms import AgreedTerms, TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.requests import check_secret
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict, ContractBroken, LocalFileError, NotEnrolled, PolicyRefused
from client_sdk.rounds.account import Account, find_membership, own_calls
from client_sdk.rounds.ledger import OwnLedger, check_budget, listed_sums, read_ledger, reserve_budget
from client_sdk.rounds.member import CertificateChoice, Member, MembershipCheck, obtain_certificate
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Membership
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import Certificate
from protocols.errors import HushRecError, ParameterError
from protocols.messages import Enrolment, IssuedCertificate, OrganiserPin, TaskView
from protocols.recipes.base import Recipe
from protocols.recipes.private import Private

_LOG: Final = logging.getLogger(__name__)
_LONGEST_INVITATION: Final = 200
"""Characters of an invitation that the API accepts at most."""


def _check_invitation(invitation: str) -> None:
    """Raise `ParameterError`, which does not repeat it, for a text that no server can have given as an invitation."""
    check_secret(invitation, "invitation", _LONGEST_INVITATION)
    if invitation.startswith("hoc_"):
        raise ParameterError(
            "the invitation begins with hoc_: this is a code of the organiser, for --code or Issuer(code=...); the "
            "task's operator gives invitations, which begin with hri_"
        )


def preview(account: Account, invitation: str) -> Program[TaskTerms]:
    """Return the terms of the task that an invitation is for, without using it. See `Client.preview`."""
    _check_invitation(invitation)
    view = yield from account.calls.invited_task(invitation)
    terms = TaskTerms.of(view, account.policy.max_model_bytes)
    _check_task(account, terms, "member")
    check_budget(account.store, account.policy, terms)
    return terms


def following(account: Account, task: str | None) -> Program[TaskTerms | None]:
    """Return the terms of the last task that follows `task`, without enrolling. See `Client.following`."""
    view = yield from _successor(account, find_membership(account, task))
    if view is None:
        return None
    terms = TaskTerms.of(view, account.policy.max_model_bytes)
    _check_task(account, terms, "member")
    check_budget(account.store, account.policy, terms)
    return terms


def own_ledger(account: Account, task: str | None) -> Program[OwnLedger]:
    """Return the released sums of `task` with this identity's data; `NotEnrolled` without a stored membership."""
    membership = find_membership(account, task)
    return read_ledger(own_calls(account, membership), account.store, membership.task_id, membership.task_name)


def join(
    account: Account,
    task: str | None = None,
    invitation: str | None = None,
    certificate: CertificateChoice | None = None,
    device_group: int | None = None,
    check: MembershipCheck | None = None,
    after: str | None = None,
    shown: TaskTerms | None = None,
) -> Program[Member]:
    """Enrol with `invitation` or as a member of `after`, or load the stored membership of `task`, and check the task
    against the policy.

    See `Client.join` for the arguments and the errors. check: that of another client of the task in this process, whose
    list of revocations is used; None to fetch the list.
    """
    if invitation is not None and after is not None:
        raise ParameterError("pass invitation= or after=, not both")
    if after is None and invitation is None and shown is not None:
        raise ParameterError("shown= goes with after= or invitation=")
    if after is not None and task is not None:
        raise ParameterError("pass task= or after=, not both: shown= says which task is to follow")
    if invitation is not None:
        _check_invitation(invitation)
    successor: tuple[Membership, TaskView] | None = None
    if after is not None:
        followed = find_membership(account, after)
        found = yield from _successor(account, followed)
        if found is None:
            raise NotEnrolled(f"no task follows {followed.task_name!r} yet; to join another one, pass invitation=...")
        _require_shown(shown, found, "following()")
        successor = followed, found
    elif invitation is not None and shown is not None:
        _require_shown(shown, (yield from account.calls.invited_task(invitation)), "preview()")
    issued = None
    if certificate is not None:  # asked for last: it may cost a code that can be used once
        options = account.options
        issued = yield from obtain_certificate(certificate, account.identity, options.retry, options.allow_http)
    if successor is not None:
        membership, view = yield from _carried_over(account, *successor, issued, device_group)
    else:
        membership, view = yield from _enrolled(account, task, invitation, issued, device_group, shown)
    if account.policy.follow and view.state != "open" and membership.role == "member":
        try:
            found = yield from _successor(account, membership)
            if found is not None and found.state == "open":
                membership, view = yield from _carried_over(account, membership, found, issued, device_group)
        except HushRecError as error:  # whatever it is, this client can still recommend with the model that it has
            _LOG.warning("the task that follows %r is not joined: %s", membership.task_name, error)
    terms = TaskTerms.of(view, account.policy.max_model_bytes)
    if membership.device_group >= terms.recipe.device_groups:
        groups = terms.recipe.device_groups
        detail = f"this client is enrolled in group {membership.device_group}; the recipe has {groups}"
        raise ContractBroken("POST", "/v1/enrolments", 200, detail)
    _check_task(account, terms, membership.role)
    if isinstance(terms.recipe, Private):
        listed, _ = yield from listed_sums(own_calls(account, membership), membership.task_id)
        reserve_budget(account.store, account.policy, terms, len(listed))
    if check is None:
        check = MembershipCheck(membership.organiser)
        yield from check.refresh(own_calls(account, membership), account.store, membership.task_id)
    return _member(account, membership, terms, check)


def open_stored(account: Account, task: str | None = None) -> Member:
    """Return the stored membership of `task` with the terms that this client agreed to, without a request.

    Raises `NotEnrolled` and `ParameterError` as `find_membership` does, `PolicyRefused`, and `LocalFileError` if the
    terms are missing.
    """
    membership = find_membership(account, task)
    agreed = account.store.agreed(membership.task_id)
    if agreed is None:
        raise LocalFileError(f"the terms of task {membership.task_name!r} are not stored here: join it with the server")
    terms = TaskTerms.stored(membership.task_id, membership.task_name, agreed, account.policy.max_model_bytes)
    _check_task(account, terms, membership.role)
    check = MembershipCheck(membership.organiser)
    check.use_stored(account.store)
    return _member(account, membership, terms, check)


def _check_task(account: Account, terms: TaskTerms, role: str) -> None:
    account.policy.check_task(terms, _same_data(account, terms), gives_data=role != "committee")


def _same_data(account: Account, terms: TaskTerms) -> list[Recipe]:
    """Return the recipes of the other tasks of this server with the label of `terms` that this client has joined."""
    label, found = terms.view.data_set, list[Recipe]()
    for one in account.store.memberships() if label is not None else ():
        agreed = account.store.agreed(one.task_id) if one.url == account.calls.url else None
        if agreed is not None and agreed.data_set == label and one.task_id != terms.task_id:
            found.append(TaskTerms.stored(one.task_id, one.task_name, agreed).recipe)
    return found


# --- enrolment, and the stored memberships ---------------------------------------------------------------------------

_MOST_RENEWALS: Final = 2**31 - 1
_MOST_ENROLMENTS: Final = 6
"""An identity that has enrolled before needs two, and each answer that is lost needs one more."""


def _enrolled(
    account: Account,
    task: str | None,
    invitation: str | None,
    issued: IssuedCertificate | None,
    device_group: int | None,
    shown: TaskTerms | None = None,
) -> Program[tuple[Membership, TaskView]]:
    """Return the membership, from `invitation` or from the store, and the task as this client agreed to it.

    shown: what the task of the invitation must be, for which the server was asked just before.
    """
    store = account.store
    if invitation is None:
        membership = find_membership(account, task)
        if device_group not in (None, membership.device_group):
            raise ParameterError(f"this client is enrolled in group {membership.device_group} and cannot change it")
        own = own_calls(account, membership)
        if issued is not None:
            membership = yield from _renew(own, store, membership, issued)
        view = yield from own.task(membership.task_id)
        _agree(view, store)
        _require_organiser(membership, view)
        return membership, view
    membership, view = yield from _enrol(account, invitation, issued, device_group)
    if shown is not None:
        _require_offered(shown.view, membership, view)
    _require_organiser(membership, view)
    _agree(view, store)
    store.keep_membership(membership)
    if task not in (None, membership.task_name, membership.task_id):
        raise ParameterError(
            f"the invitation is for task {membership.task_name!r}, not for {task!r}; the enrolment is stored"
        )
    return membership, view


def _successor(account: Account, followed: Membership) -> Program[TaskView | None]:
    """Return the last task that follows one that this client is a member of; None while there is none.

    Raises `PolicyRefused` for one whose members somebody else certifies, whose sums would not count together with
    those of the task that it follows, or whose terms name no earlier task. Which one they name is not checked: there
    may be others between the two.
    """
    view = yield from own_calls(account, followed).successor(followed.task_id)
    if view is None:
        return None
    agreed = account.store.agreed(followed.task_id)
    differs = [] if view.organiser == followed.organiser else ["organiser"]
    if agreed is None or agreed.data_set != view.data_set:
        differs.append("data_set")
    if view.schedule.follows is None or differs:
        raise PolicyRefused(
            f"task {view.name!r} does not follow {followed.task_name!r}: it has another {' and '.join(differs)}"
            if differs
            else f"the terms of task {view.name!r} do not say that it follows another one",
            remedy="Ask the operator for an invitation, and look at the terms of the task.",
        )
    return view


def _carried_over(
    account: Account,
    followed: Membership,
    view: TaskView,
    issued: IssuedCertificate | None,
    device_group: int | None,
) -> Program[tuple[Membership, TaskView]]:
    """Return the membership of a task that follows `followed`, stored or new, and the task as this client agreed to it.

    The terms are checked against the policy before anything is sent. issued: a new certificate; None for that of
    `followed`, which is for the same organiser and scope.
    """
    store = account.store
    if any(one.task_id == view.task_id and one.url == account.calls.url for one in store.memberships()):
        return (yield from _enrolled(account, view.task_id, None, issued, device_group))
    terms = TaskTerms.of(view, account.policy.max_model_bytes)
    _check_task(account, terms, "member")
    check_budget(store, account.policy, terms)
    if issued is None and followed.certificate is not None and followed.organiser is not None:
        issued = IssuedCertificate(
            scope=followed.organiser.scope,
            certificate=b64encode(followed.certificate),
            organiser_key=followed.organiser.key,
            not_after=Certificate.decode(followed.certificate).not_after,
        )
    if device_group is None and terms.recipe.device_groups > 1:
        device_group = followed.device_group
    membership, enrolled = yield from _enrol(account, view.task_id, issued, device_group)
    _require_offered(view, membership, enrolled)
    _require_organiser(membership, enrolled)
    _agree(enrolled, store)
    store.keep_membership(membership)
    return membership, enrolled


def _is_same(view: TaskView, other: TaskView) -> bool:
    """Return whether two answers are about one task with the same terms."""
    return view.task_id == other.task_id and AgreedTerms.of(view) == AgreedTerms.of(other)


def _require_shown(shown: TaskTerms | None, found: TaskView, again: str) -> None:
    """Raise `PolicyRefused` for another task than the user agreed to. again: the call that shows what is found."""
    if shown is not None and not _is_same(shown.view, found):
        raise PolicyRefused(
            f"the server names {found.name!r} now, which is another task than {shown.name!r}, or has other terms",
            remedy=f"Show the terms to the user again: {again}.",
        )


def _require_offered(offered: TaskView, membership: Membership, enrolled: TaskView) -> None:
    """Raise `ContractBroken` unless the client is a member of the task that it was offered, with the same terms."""
    if membership.role != "member":
        raise ContractBroken("POST", "/v1/enrolments", 200, "the server enrolled this client with other rights")
    if not _is_same(offered, enrolled):
        detail = f"the server enrolled this client in another task than {offered.name!r}, or with other terms"
        raise ContractBroken("POST", "/v1/enrolments", 200, detail)


def _enrol(
    account: Account, invitation: str, issued: IssuedCertificate | None, device_group: int | None
) -> Program[tuple[Membership, TaskView]]:
    """Enrol with an invitation, or the id of a task that follows another one; return the membership and the task.

    An identity that enrols again gets the same client id and a new token: the server tells the number of its last
    enrolment, and the client signs the next one. It does so several times, because the answer to an enrolment may have
    been lost, which was then repeated.
    """
    calls, identity = account.calls, account.identity
    certificate = None if issued is None else b64decode(issued.certificate)
    renewal, tries = 0, 0
    enrolment: Enrolment | None = None
    while enrolment is None:
        try:
            tries += 1
            enrolment = yield from calls.enrol(identity.enrolment(invitation, certificate, device_group, renewal))
        except Conflict as error:
            last = (error.problem.model_extra or {}).get("renewal")
            if tries == _MOST_ENROLMENTS or not isinstance(last, int) or not renewal <= last < _MOST_RENEWALS:
                raise
            renewal = last + 1
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


def _renew(
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


def _require_organiser(membership: Membership, view: TaskView) -> None:
    """Raise `PolicyRefused` unless the task names the organiser that certified this client, or neither has one."""
    if view.organiser != membership.organiser:
        found = "none" if view.organiser is None else "another one"
        raise PolicyRefused(
            f"the certificate names an organiser that the server does not: for task {view.name!r} it names {found}"
        )


def _member(account: Account, membership: Membership, terms: TaskTerms, check: MembershipCheck) -> Member:
    calls = own_calls(account, membership)
    return Member(calls, terms, membership, account.identity, account.store, account.policy, check)


def _agree(view: TaskView, client_store: ClientStore) -> None:
    """Store the task's terms the first time; later raise `ContractBroken` unless they are the same."""
    agreed = client_store.agreed(view.task_id)
    if agreed is None:
        client_store.keep_agreed(view.task_id, AgreedTerms.of(view))
    else:
        agreed.require(view)
