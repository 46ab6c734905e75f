"""Joining a task as one identity, under its policy: the common part of `Client`, `AsyncClient` and `Fleet`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import AgreedTerms, TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import Timeouts
from client_sdk.api.requests import check_secret
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict, ContractBroken, NotEnrolled, PolicyRefused
from client_sdk.model.cache import ModelCache
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.certificates import CertificateChoice, MembershipCheck, obtain_certificate
from client_sdk.rounds.ledger import OwnLedger, read_ledger
from client_sdk.rounds.task import Participation
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.identity import Identity
from client_sdk.store.stores import Store, default_store
from client_sdk.training import client_half
from client_sdk.training.base import TrainingConfig
from protocols.codec import b64decode
from protocols.errors import ParameterError
from protocols.messages import IssuedCertificate, OrganiserPin, TaskView

__all__ = [
    "ClientOptions",
    "Enroller",
    "enrol",
    "find_membership",
    "join",
    "own_calls",
]


@dataclass(frozen=True)
class ClientOptions:
    """How a client sends requests.

    retry: when a failed request is repeated. timeouts: of every connection. chunk_bytes: contributions longer than this
    are uploaded in resumable chunks. allow_http: whether the addresses of the server and of the organiser's endpoint
    may begin with http:// when their host is not this machine; anyone on the way can then read tokens and
    contributions.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeouts: Timeouts = field(default_factory=Timeouts)
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    allow_http: bool = False


class Enroller:
    """One identity at one server, with its store and its policy.

    Raises `ParameterError` for an invalid `url`, and for http:// to another machine without `options.allow_http`.
    """

    def __init__(
        self, url: str, identity: Identity, store: Store | None, policy: Policy | None, options: ClientOptions
    ) -> None:
        self.identity = identity
        self.policy = policy or Policy()
        self.options = options
        self.calls = ApiCalls(url, None, options.retry, options.chunk_bytes, allow_http=options.allow_http)
        kept = default_store() if store is None else store
        self.client_store = ClientStore(kept, identity.fingerprint, self.calls.url)

    def ledger(self, task: str | None) -> Program[OwnLedger]:
        """Return the released sums of `task` with this identity's data; `NotEnrolled` without a stored membership."""
        membership = find_membership(self.client_store, self.calls.url, task)
        calls = own_calls(self.calls, self.identity, membership)
        return read_ledger(calls, self.client_store, membership.task_id, membership.task_name)

    def preview(self, invitation: str) -> Program[TaskTerms]:
        """Return the terms of the task that an invitation is for, without using it. See `Client.preview`."""
        check_secret(invitation, "invitation")
        view = yield from self.calls.invited_task(invitation)
        terms = TaskTerms.of(view, self.policy.max_model_bytes)
        self.policy.check_task(terms)
        return terms

    def participation(
        self,
        task: str | None,
        invitation: str | None,
        certificate: CertificateChoice | None,
        training: TrainingConfig | None,
        seed: int | Sequence[int] | None,
        shared: ModelCache | None = None,
        graph_filter: str | None = None,
        device_group: int | None = None,
        membership_check: MembershipCheck | None = None,
    ) -> Program[Participation]:
        """Join a task, check it against the policy, and return the client's part in it. See `Client.join`.

        shared: a cache of the model that several clients share; the model is then not stored for this client.
        membership_check: that of another client of the task in this process, whose list of revocations is used.
        """
        if invitation is not None:
            check_secret(invitation, "invitation")
        issued = None
        if certificate is not None:
            retry, allow_http = self.options.retry, self.options.allow_http
            issued = yield from obtain_certificate(certificate, self.identity, retry, allow_http)
        membership, terms = yield from join(
            self.calls,
            self.identity,
            self.client_store,
            task,
            invitation,
            issued,
            device_group,
            self.policy.max_model_bytes,
        )
        self.policy.check_task(terms)
        calls = own_calls(self.calls, self.identity, membership)
        if membership_check is None:
            membership_check = MembershipCheck(membership.organiser)
            yield from membership_check.refresh(calls, self.client_store, membership.task_id)
        client_store = None if shared else self.client_store
        return Participation(
            calls,
            terms,
            membership,
            self.identity,
            self.client_store,
            self.policy,
            ModelFollower(calls, terms, client_store, shared=shared, device_group=membership.device_group),
            client_half(terms.recipe, training, graph_filter),
            np.random.default_rng(seed),
            membership_check=membership_check,
        )


# --- enrolment in a task, and the stored memberships -----------------------------------------------------------------

_MOST_RENEWALS: Final = 2**31 - 1


def find_membership(client_store: ClientStore, url: str, task: str | None) -> Membership:
    """Return the stored membership of the task with that name or id (None: the only one) on the server at `url`.

    Raises `NotEnrolled` when none is stored, `ParameterError` when several tasks have that name.
    """
    here = [membership for membership in client_store.memberships() if membership.url == url]
    found = [membership for membership in here if task in (None, membership.task_name, membership.task_id)]
    if not found:
        known = ", ".join(sorted(membership.task_name for membership in here)) or "none"
        wanted = "any task" if task is None else f"task {task!r}"
        raise NotEnrolled(
            f"no membership of {wanted} on this server is stored on this device (stored: {known}); "
            "to join one, pass invitation=..."
        )
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
