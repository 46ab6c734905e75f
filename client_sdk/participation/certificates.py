"""A client's membership certificate, and the check of everybody else's.

The certificate comes from the organiser, not from the aggregator: ready-made, from the organiser's issuing endpoint, or
from an object in this process. The organiser that signed it is the one this client pins: members whom that organiser
did not certify are no members, whatever the server says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program, work
from client_sdk.api.retry import RetryPolicy
from client_sdk.local_state.identity import Identity
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    Certificate,
    CertifiedRole,
    RevocationList,
    certificate_request,
    check_certificate,
    check_revocations,
)
from protocols.errors import CertificateError, CodecError
from protocols.messages import CertificateRequest, IssuedCertificate, OrganiserPin
from protocols.sums.masked.roster import RosterEntry

__all__ = ["CertificateChoice", "CertificateSource", "Issuer", "MembershipCheck", "obtain_certificate", "request_for"]


@dataclass(frozen=True)
class Issuer:
    """An organiser's issuing endpoint: its address, the scope, and this client's code or login token there."""

    url: str
    scope: str
    code: str = field(repr=False)
    role: CertifiedRole = "member"


class CertificateSource(Protocol):
    """Something in this process that issues certificates, such as the app's own login code."""

    @property
    def scope(self) -> str:
        """The scope that it issues for."""

    @property
    def role(self) -> CertifiedRole:
        """The role that it issues for."""

    def issue(self, request: CertificateRequest) -> IssuedCertificate:
        """The certificate for a client's signed request. May block; it is called in a thread where there is one."""


CertificateChoice = IssuedCertificate | Issuer | CertificateSource
"""Where a client's certificate comes from."""


def request_for(identity: Identity, scope: str, role: CertifiedRole) -> CertificateRequest:
    """A signed request to certify this identity's keys."""
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
    """The certificate for this identity, checked: `CertificateError` unless it is for these keys and still holds.

    allow_http: whether an `Issuer` may be asked over http:// when it is not on this machine; else `ParameterError`.
    """
    if isinstance(choice, IssuedCertificate):
        issued = choice
    else:
        request = request_for(identity, choice.scope, choice.role)
        if isinstance(choice, Issuer):
            issued = yield from ApiCalls(choice.url, choice.code, retry, allow_http=allow_http).certificate(request)
        else:
            source = choice
            issued = yield from work(lambda: source.issue(request))
    check_certificate(
        b64decode(issued.organiser_key, 32),
        issued.scope,
        identity.public_key,
        identity.mailbox_key,
        Certificate.decode(b64decode(issued.certificate)),
        time.time(),
    )
    return issued


class MembershipCheck:
    """Who is a member: whoever the pinned organiser certified and has not revoked, by this client's own clock.

    pin: None in tasks without an organiser, where the server's word is all there is; such a client must have agreed to
    trust it. One check may serve many clients of one task.
    """

    def __init__(self, pin: OrganiserPin | None, clock: Callable[[], float] = time.time) -> None:
        self.pin = pin
        self._key = b"" if pin is None else b64decode(pin.key, 32)
        self._clock = clock
        self._verified: dict[tuple[bytes, bytes, bytes], int] = {}
        self._revocations: RevocationList | None = None

    def __call__(self, entry: RosterEntry) -> bool:
        """Whether this member of a masked round's roster is one."""
        try:
            self.require(entry.identity_key, entry.mailbox_key, entry.certificate, ("member", "holder"))
        except (CertificateError, CodecError):
            return False
        return True

    def require(
        self, identity_key: bytes, mailbox_key: bytes, certificate: bytes, roles: tuple[CertifiedRole, ...]
    ) -> None:
        """Raise `CertificateError` or `CodecError` unless these keys are certified for one of `roles`."""
        if self.pin is None:
            return
        made = Certificate.decode(certificate)
        if made.role not in roles:
            raise CertificateError(f"the membership certificate is for the role {made.role}, not {' or '.join(roles)}")
        if self._revocations is not None and self._revocations.covers(made):
            raise CertificateError("the membership certificate was revoked by the organiser")
        now, seen = self._clock(), (identity_key, mailbox_key, certificate)
        if self._verified.get(seen, -1) >= now:
            return
        check_certificate(self._key, self.pin.scope, identity_key, mailbox_key, made, now)
        self._verified[seen] = made.not_after

    def refresh(self, calls: ApiCalls, task_id: str) -> Program[None]:
        """Fetch the newest revocation list; an older one than is known here is refused with `CertificateError`."""
        if self.pin is None:
            return
        body = yield from calls.revocations(task_id)
        if body is None:
            if self._revocations is not None:
                raise CertificateError("the server no longer hands out the organiser's revocation list")
            return
        listed = RevocationList.decode(body)
        check_revocations(self._key, self.pin.scope, listed)
        if self._revocations is not None and listed.issued_at < self._revocations.issued_at:
            raise CertificateError("the server hands out an older revocation list than before")
        self._revocations = listed
