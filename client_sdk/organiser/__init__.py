"""The organiser: certifies the keys of an app's members. Run it apart from the aggregator.

An organiser is a signing key and the ledger of its certificates, in one folder of mode 0700. The issuing endpoint is
`client_sdk.organiser.app.create_issuer`, which needs FastAPI.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk.errors import LocalFileError
from client_sdk.organiser.issued import IssuedCertificates, IssuedRecord, check_subject
from client_sdk.store import read_keys, write_keys
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    Certificate,
    CertifiedRole,
    RevocationList,
    certificate_request,
    certify,
    revoke,
)
from protocols.crypto.keys import verifies
from protocols.errors import ParameterError
from protocols.messages import CertificateRequest, IssuedCertificate, OrganiserPin

__all__ = ["Organiser", "TrialOrganiser"]

DEFAULT_LIFETIME: Final = 30 * 24 * 3600
"""Default validity of a certificate in seconds: 30 days. A revoked certificate stays listed until it expires."""
LONGEST_LIFETIME: Final = 3650 * 24 * 3600
"""Longest validity of a certificate in seconds: 3,650 days."""
_KEY_FILE: Final = "organiser.key"
_LEDGER_FILE: Final = "issued.sqlite3"
_FILE: Final = ("the organiser's key", "hushrec organiser 1")
_MISSING: Final = "Organiser.create creates it, as hushrec organiser init does (--folder names its folder)."
"""What errors call the file of the key, and its format."""


def check_lifetime(seconds: int) -> None:
    """Raise `ParameterError` unless a certificate may be valid for so long."""
    if not 1 <= seconds <= LONGEST_LIFETIME:
        raise ParameterError(
            f"the lifetime of a certificate must be 1 to {LONGEST_LIFETIME} seconds "
            f"({LONGEST_LIFETIME // 86_400} days), got {seconds}"
        )


@dataclass(frozen=True, repr=False, eq=False)
class Organiser:
    """Certifies and revokes clients' keys. Its `repr` shows only the public key."""

    signing_key: Ed25519PrivateKey
    issued: IssuedCertificates
    """The ledger."""
    clock: Callable[[], float] = field(default=time.time)
    """Returns seconds since the epoch; the system clock by default."""

    def __repr__(self) -> str:
        return f"<Organiser {b64encode(self.public_key)}>"

    @classmethod
    def create(cls, folder: str | Path) -> Self:
        """Create an organiser with a new key in `folder`.

        Raises `LocalFileError` if the folder has a key already, or cannot be written.
        """
        folder = Path(folder)
        if (folder / _KEY_FILE).exists():
            raise LocalFileError(f"{folder / _KEY_FILE} exists; an organiser's key is never overwritten", remedy="")
        key = Ed25519PrivateKey.generate()
        write_keys(folder / _KEY_FILE, *_FILE, {"signing_key": key.private_bytes_raw()})
        return cls(key, IssuedCertificates(folder / _LEDGER_FILE))

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Load the organiser in `folder`. Raises `LocalFileError` if it is missing, damaged or readable by others."""
        (secret,) = read_keys(Path(folder) / _KEY_FILE, *_FILE, "signing_key", missing=_MISSING)
        return cls(Ed25519PrivateKey.from_private_bytes(secret), IssuedCertificates(Path(folder) / _LEDGER_FILE))

    @property
    def public_key(self) -> bytes:
        """Ed25519 public key, 32 bytes, which clients and the aggregator pin."""
        return self.signing_key.public_key().public_bytes_raw()

    def certify(
        self,
        scope: str,
        subject: str,
        identity_key: bytes,
        mailbox_key: bytes,
        role: CertifiedRole = "member",
        lifetime: int = DEFAULT_LIFETIME,
    ) -> Certificate:
        """Certify the keys of one subject, or renew their certificate.

        subject: the user, as the organiser's own login names it; it has one identity and one role in each scope.
        lifetime: seconds, up to `LONGEST_LIFETIME`. Raises `ParameterError` for another, if the subject has a
        certificate for other keys or another role, if its certificate was revoked, if another subject has one for these
        keys, for a subject that is empty or not printable, and for keys or a scope that cannot be certified.
        """
        check_lifetime(lifetime)
        check_subject(subject)
        not_after = int(self.clock()) + lifetime
        made = partial(certify, self.signing_key, scope, identity_key, mailbox_key, role=role, not_after=not_after)
        made(serial=0)  # raises for keys and scopes that cannot be certified, before anything is recorded
        record = self.issued.record(scope, role, subject, identity_key, mailbox_key, not_after)
        return made(serial=record.serial)

    def issue(
        self,
        request: CertificateRequest,
        subject: str,
        lifetime: int = DEFAULT_LIFETIME,
        roles: Sequence[CertifiedRole] = ("member",),
    ) -> IssuedCertificate:
        """Return the certificate for the request of an authenticated subject.

        roles: the roles that this subject may have; the client, which writes the request, does not decide it. Raises
        `ParameterError` as `certify` does, if the request asks for another role, and if it is not signed with the
        identity key in it.
        """
        if request.role not in roles:
            raise ParameterError(
                f"the client asks for the role {request.role}, but may be certified as {' or '.join(roles)} only: the "
                f"client must ask for another role, or the organiser must allow this one, with a code for it (hushrec "
                f"organiser codes --role {request.role}), hushrec organiser certify --role {request.role}, or "
                "create_issuer(roles=...)"
            )
        identity_key, mailbox_key = b64decode(request.identity_key, 32), b64decode(request.mailbox_key, 32)
        statement = certificate_request(request.scope, request.role, identity_key, mailbox_key)
        if not verifies(identity_key, b64decode(request.signature, 64), statement):
            raise ParameterError("the request is not signed with the identity key that it contains")
        certificate = self.certify(request.scope, subject, identity_key, mailbox_key, request.role, lifetime)
        return _issued_certificate(request.scope, certificate, self.public_key)

    def revoke(self, scope: str, subject: str) -> RevocationList:
        """Revoke the subject's certificate in the scope; return the new revocation list.

        The subject gets no other certificate, for any keys, until `readmit`. Raises `ParameterError` if it has no
        certificate in the scope.
        """
        self.issued.revoke(scope, subject)
        return self.revocations(scope)

    def readmit(self, scope: str, subject: str) -> None:
        """Allow a new certificate for a subject whose certificate was revoked; the revoked one stays listed.

        Raises `ParameterError` if no certificate of the subject was revoked in the scope.
        """
        self.issued.readmit(scope, subject)

    def revocations(self, scope: str) -> RevocationList:
        """Sign and return the scope's revocation list, without expired certificates."""
        now = self.clock()
        return revoke(self.signing_key, scope, self.issued.revoked(scope, now), int(now))

    def held(self, scope: str) -> list[IssuedRecord]:
        """Return the certificates of the scope that are not revoked, in the order of their subjects."""
        return self.issued.held(scope)

    def stored_about(self, subject: str) -> list[dict[str, str | int]]:
        """Return everything that the ledger holds about a subject, in all scopes; empty if it holds nothing."""
        return self.issued.about(subject)

    def erase(self, subject: str) -> list[str]:
        """Delete what the ledger holds about a subject; return the scopes whose revocation list is longer now.

        Certificates that have not expired are revoked first: their serials stay in the lists until they expire, and
        name nobody any more. Raises `ParameterError` if the ledger holds nothing about the subject.
        """
        return self.issued.erase(subject, self.clock())


def _issued_certificate(scope: str, certificate: Certificate, organiser_key: bytes) -> IssuedCertificate:
    return IssuedCertificate(
        scope=scope,
        certificate=b64encode(certificate.encode()),
        organiser_key=b64encode(organiser_key),
        not_after=certificate.not_after,
    )


# --- an organiser in this process that certifies every client: for demos, simulations and tests ----------------------


@dataclass(frozen=True, repr=False)
class TrialOrganiser:
    """Certifies the keys of every request, for the one role that the caller states. It has no ledger, so one person can
    become many members.

    Use it only for trials and tests. It is a `CertificateSource` of members.
    """

    scope: str = "trial"
    lifetime: int = 24 * 3600
    """Validity of a certificate, in seconds."""
    role: CertifiedRole = "member"
    """The one that it certifies."""
    _key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __repr__(self) -> str:
        return f"<TrialOrganiser {self.scope}>"

    @property
    def pin(self) -> OrganiserPin:
        """The organiser's key and scope for a task: `task_request(..., organiser=trial.pin)`."""
        return OrganiserPin(key=b64encode(self._key.public_key().public_bytes_raw()), scope=self.scope)

    def source(self, role: CertifiedRole = "member") -> TrialOrganiser:
        """Return a `CertificateSource` for a client: `client.join(..., certificate=trial.source())`."""
        return replace(self, role=role)

    def issue(self, request: CertificateRequest, role: CertifiedRole | None = None) -> IssuedCertificate:
        """Return a certificate for the keys in the request. Raises `ParameterError` if it asks for another role.

        role: the one to certify, None for that of this organiser.
        """
        role = role or self.role
        if request.role != role:
            raise ParameterError(f"the client asks for the role {request.role}, but is to be certified as {role}")
        keys = b64decode(request.identity_key, 32), b64decode(request.mailbox_key, 32)
        serial, not_after = int.from_bytes(keys[0][:8], "big"), int(time.time()) + self.lifetime
        # the serial is of the key: every identity is a subject
        certificate = certify(self._key, self.scope, *keys, role=role, serial=serial, not_after=not_after)
        return _issued_certificate(self.scope, certificate, self._key.public_key().public_bytes_raw())
