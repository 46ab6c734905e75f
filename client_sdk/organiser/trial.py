"""An organiser in this process that certifies every client: for demos, simulations and tests."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import CertifiedRole, certify
from protocols.messages import CertificateRequest, IssuedCertificate, OrganiserPin

__all__ = ["TrialOrganiser"]


@dataclass(frozen=True)
class _Source:
    """Issues for one role; what `CertificateSource` asks for."""

    organiser: TrialOrganiser
    scope: str
    role: CertifiedRole

    def issue(self, request: CertificateRequest) -> IssuedCertificate:
        """A certificate for the request's keys; there is no login to ask."""
        return self.organiser.issue(request)


@dataclass(frozen=True, repr=False)
class TrialOrganiser:
    """Whoever asks is a member. It keeps no ledger, so it must not be used where members are to be told apart.

    lifetime: seconds for which a certificate holds.
    """

    scope: str = "trial"
    lifetime: int = 24 * 3600
    _key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __repr__(self) -> str:
        return f"<TrialOrganiser {self.scope}>"

    @property
    def pin(self) -> OrganiserPin:
        """What the task names: `task_request(..., organiser=trial.pin)`."""
        return OrganiserPin(key=b64encode(self._key.public_key().public_bytes_raw()), scope=self.scope)

    def source(self, role: CertifiedRole = "member") -> _Source:
        """What a client is given: `client.join(..., certificate=trial.source())`."""
        return _Source(self, self.scope, role)

    def issue(self, request: CertificateRequest) -> IssuedCertificate:
        """A certificate for the keys in the request."""
        made = certify(
            self._key,
            self.scope,
            b64decode(request.identity_key, 32),
            b64decode(request.mailbox_key, 32),
            role=request.role,
            serial=secrets.randbits(64),
            not_after=int(time.time()) + self.lifetime,
        )
        return IssuedCertificate(
            scope=self.scope,
            certificate=b64encode(made.encode()),
            organiser_key=self.pin.key,
            not_after=made.not_after,
        )
