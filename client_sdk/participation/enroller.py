"""Joining a task as one identity, under its policy: the common part of `Client`, `AsyncClient` and `Fleet`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.drivers import Timeouts
from client_sdk.api.effects import Program
from client_sdk.api.requests import check_secret
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES
from client_sdk.local_state.client_store import ClientStore
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.stores import Store, default_store
from client_sdk.model.cache import ModelCache
from client_sdk.model.catch_up import ModelFollower
from client_sdk.participation.certificates import CertificateChoice, MembershipCheck, obtain_certificate
from client_sdk.participation.enrolment import find_membership, join, own_calls
from client_sdk.participation.ledger import OwnLedger, read_ledger
from client_sdk.participation.participation import Participation
from client_sdk.training.base import TrainingConfig
from client_sdk.training.registry import client_half

__all__ = ["ClientOptions", "Enroller"]


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
