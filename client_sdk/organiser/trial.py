"""An organiser in this process that certifies every client: for demos, simulations and tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import CertifiedRole, certify
from protocols.errors import ParameterError
from protocols.messages import CertificateRequest, IssuedCertificate, OrganiserPin

__all__ = ["TrialOrganiser"]


@dataclass(frozen=True)
class _Source:
    """A `CertificateSource` for one role."""

    organiser: TrialOrganiser
    scope: str
    role: CertifiedRole

    def issue(self, request: CertificateRequest) -> IssuedCertificate:
        """Return a certificate for the request's keys, without any authentication."""
        return self.organiser.issue(request, self.role)


@dataclass(frozen=True, repr=False)
class TrialOrganiser:
    """Certifies the keys of every request, for the one role that the caller states. It has no ledger, so one person can
    become many members.

    Use it only for trials and tests. lifetime: validity of a certificate, in seconds.
    """

    scope: str = "trial"
    lifetime: int = 24 * 3600
    _key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __repr__(self) -> str:
        return f"<TrialOrganiser {self.scope}>"

    @property
    def pin(self) -> OrganiserPin:
        """The organiser's key and scope for a task: `task_request(..., organiser=trial.pin)`."""
        return OrganiserPin(key=b64encode(self._key.public_key().public_bytes_raw()), scope=self.scope)

    def source(self, role: CertifiedRole = "member") -> _Source:
        """Return a `CertificateSource` for a client: `client.join(..., certificate=trial.source())`."""
        return _Source(self, self.scope, role)

    def issue(self, request: CertificateRequest, role: CertifiedRole = "member") -> IssuedCertificate:
        """Return a certificate for the keys in the request. Raises `ParameterError` if it asks for another role."""
        if request.role != role:
            raise ParameterError(f"the client asks for the role {request.role}, but is to be certified as {role}")
        certificate = certify(
            self._key,
            self.scope,
            b64decode(request.identity_key, 32),
            b64decode(request.mailbox_key, 32),
            role=role,
            serial=int.from_bytes(b64decode(request.identity_key, 32)[:8], "big"),  # every identity is a subject
            not_after=int(time.time()) + self.lifetime,
        )
        return IssuedCertificate(
            scope=self.scope,
            certificate=b64encode(certificate.encode()),
            organiser_key=self.pin.key,
            not_after=certificate.not_after,
        )
