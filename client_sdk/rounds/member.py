"""One client of one task: who it is, what it agreed to, its certificate, and who else is a member.

The certificate comes from the organiser, not from the aggregator: as a document, from the organiser's issuing endpoint,
or from an object in this process. The client pins the organiser that signed it, and accepts as members only clients
that this organiser certified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import Program, work
from client_sdk.errors import NotFound, PolicyRefused
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity, Membership
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    Certificate,
    CertifiedRole,
    RevocationList,
    certificate_request,
    check_certificate,
    check_revocations,
    check_scope,
)
from protocols.errors import CertificateError, CodecError, ParameterError, to_accept
from protocols.messages import CertificateRequest, IssuedCertificate, OrganiserPin

if TYPE_CHECKING:
    from protocols.sums.masked.roster import RosterEntry
    from protocols.sums.oneshot.wire import CommitteeKey, Statement

Stop = Callable[[], bool]
"""Returns whether to stop taking part; called before each poll."""


@dataclass(frozen=True)
class Member:
    """One client of one task: a contributor, the key holder, or a member of the committee."""

    calls: ApiCalls
    """The API with the client's token, signed by its identity."""
    terms: TaskTerms
    """Those of the task, as this client agreed to them."""
    membership: Membership
    identity: Identity
    store: ClientStore
    """What it keeps."""
    policy: Policy
    """What it agrees to."""
    check: MembershipCheck = field(repr=False)
    """Who else is a member."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.terms.task_id

    @property
    def client_id(self) -> str:
        """The client's id in the task."""
        return self.membership.client_id


def require_known_people(member: Member) -> None:
    """Raise `PolicyRefused` if only the server says who takes part, and the policy does not trust it with that."""
    if member.check.pin is None and not member.policy.trust_roster:
        raise PolicyRefused(
            f"task {member.terms.name!r} has no organiser, so only the server says who the other clients, the key "
            "holder and the committee are",
            remedy="Ask for a task with an organiser and join with its certificate (certificate=..., --issuer). "
            + to_accept("trust_roster=True", "--trust-roster"),
        )


# --- a client's certificate, and the certificates of other members ----------------------------------------------------


@dataclass(frozen=True)
class Issuer:
    """An organiser's issuing endpoint: its URL, the scope, the role, and this client's code or login token."""

    url: str
    scope: str
    code: str = field(repr=False)
    role: CertifiedRole = "member"


class CertificateSource(Protocol):
    """An object in this process that issues certificates, such as one that calls the app's own login."""

    @property
    def scope(self) -> str:
        """The scope of the certificates."""

    @property
    def role(self) -> CertifiedRole:
        """The role of the certificates."""

    def issue(self, request: CertificateRequest) -> IssuedCertificate:
        """Return the certificate for a client's signed request. May block: an async client calls it in a thread."""


CertificateChoice = IssuedCertificate | Issuer | CertificateSource
"""Source of a client's certificate: a document, an issuing endpoint, or an object in this process."""


def request_for(identity: Identity, scope: str, role: CertifiedRole) -> CertificateRequest:
    """Return a request to certify this identity's keys, signed with its identity key.

    Raises `ParameterError` for a name that no scope can have.
    """
    check_scope(scope)
    statement = certificate_request(scope, role, identity.public_key, identity.mailbox_key)
    return CertificateRequest(
        scope=scope,
        role=role,
        identity_key=b64encode(identity.public_key),
        mailbox_key=b64encode(identity.mailbox_key),
        signature=b64encode(identity.signing_key.sign(statement)),
    )


def obtain_certificate(
    choice: CertificateChoice, identity: Identity, retry: RetryPolicy, allow_http: bool = False
) -> Program[IssuedCertificate]:
    """Return the certificate for this identity. Raises `CertificateError` if it is for other keys or has expired.

    allow_http: whether an `Issuer` may be asked over http:// when it is not on this machine; else `ParameterError`.
    """
    if isinstance(choice, IssuedCertificate):
        issued = choice
    else:
        request = request_for(identity, choice.scope, choice.role)
        if isinstance(choice, Issuer):
            calls = ApiCalls(choice.url, choice.code, retry, allow_http=allow_http)
            issued = yield from _issued(choice, calls, request)
        else:
            issued = yield from work(partial(choice.issue, request))
    organiser_key, certificate = b64decode(issued.organiser_key, 32), Certificate.decode(b64decode(issued.certificate))
    keys = identity.public_key, identity.mailbox_key
    check_certificate(organiser_key, issued.scope, *keys, certificate, time.time())
    return issued


def _issued(choice: Issuer, calls: ApiCalls, request: CertificateRequest) -> Program[IssuedCertificate]:
    if choice.code.startswith("hri_"):
        raise ParameterError(
            "the organiser's code begins with hri_: this is an invitation of the task's operator; the organiser gives "
            "codes, which begin with hoc_"
        )
    try:
        return (yield from calls.certificate(request))
    except NotFound as error:
        if error.problem.type == "about:blank":
            raise  # the organiser's own words: it does not know the scope
        detail = f"{choice.url} issues no certificates: pass the address of the organiser, not that of the aggregator"
        problem = error.problem.model_copy(update={"detail": detail})
        raise NotFound(error.method, error.url, error.status, problem) from error


class MembershipCheck:
    """Checks that members are certified by the pinned organiser, unexpired by this client's own clock, and not revoked.

    pin: None in tasks without an organiser. Then every client that the server names is accepted, so the caller must
    have checked that the policy trusts the roster. One object may serve many clients of one task.
    """

    def __init__(self, pin: OrganiserPin | None, clock: Callable[[], float] = time.time) -> None:
        self.pin = pin
        self._key = b"" if pin is None else b64decode(pin.key, 32)
        self._clock = clock
        self._verified: dict[tuple[bytes, bytes, bytes], int] = {}
        self._revocations: RevocationList | None = None

    def __call__(self, keys: RosterEntry | CommitteeKey | Statement, role: CertifiedRole = "member") -> bool:
        """Return whether the organiser certified these keys for `role`; always True in tasks without an organiser."""
        try:
            self.require(keys.identity_key, keys.mailbox_key, keys.certificate, (role,))
        except (CertificateError, CodecError):
            return False
        return True

    def require(
        self,
        identity_key: bytes,
        mailbox_key: bytes,
        certificate: bytes,
        roles: tuple[CertifiedRole, ...],
        at: float | None = None,
    ) -> None:
        """Raise `CertificateError` or `CodecError` unless these keys are certified for one of `roles`.

        at: a past time, in seconds since the epoch, at which they must have been certified; members that left since, or
        were revoked, count: they were members then. None for now.
        """
        if self.pin is None:
            return
        decoded, checked = Certificate.decode(certificate), (identity_key, mailbox_key, certificate)
        if decoded.role not in roles:
            raise CertificateError(
                f"the membership certificate is for the role {decoded.role}, not {' or '.join(roles)}"
            )
        if at is None:
            if self._revocations is not None and self._revocations.covers(decoded):
                raise CertificateError("the membership certificate was revoked by the organiser")
            at = self._clock()
        if self._verified.get(checked, -1) < at:
            check_certificate(self._key, self.pin.scope, identity_key, mailbox_key, decoded, at)
            self._verified[checked] = decoded.not_after

    def use_stored(self, client_store: ClientStore) -> None:
        """Use the newest revocation list that this client has stored, without a request."""
        self._revocations = None if self.pin is None else client_store.revocations(self.pin)

    def refresh(self, calls: ApiCalls, client_store: ClientStore, task_id: str) -> Program[None]:
        """Fetch the newest revocation list and store it, so that it also holds after a restart.

        Raises `CertificateError` for a list that the organiser did not sign, and if the server returns an older list
        than `client_store` has of this organiser's scope, or none; `CodecError` for a malformed list.
        """
        if self.pin is None:
            return
        body = yield from calls.revocations(task_id)
        listed = None if body is None else RevocationList.decode(body)
        if listed is not None:
            check_revocations(self._key, self.pin.scope, listed)
        known = client_store.revocations(self.pin)
        if known is not None and (listed is None or listed.is_older_than(known)):
            raise CertificateError(
                f"the server returned {'no' if listed is None else 'an older'} revocation list of scope "
                f"{self.pin.scope!r}, although this client has seen one that was issued at "
                f"{datetime.fromtimestamp(known.issued_at, UTC):%Y-%m-%d %H:%M:%S} UTC: the operator must publish the "
                "organiser's newest list for this task (hushrec-server task revocations)"
            )
        if listed is not None and listed != known:
            client_store.keep_revocations(self.pin, listed)
        self._revocations = listed
