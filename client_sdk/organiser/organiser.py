"""An organiser: a signing key, and the ledger of what was signed with it, in one folder of mode 0700."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from client_sdk.errors import LocalFileError
from client_sdk.local_state.private_files import ensure_private_directory, read_private, write_private
from client_sdk.organiser.issued import IssuedCertificates, IssuedRecord
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import (
    Certificate,
    CertifiedRole,
    RevocationList,
    certificate_request,
    certify,
    revoke,
)
from protocols.errors import CodecError, ParameterError
from protocols.messages.certificates import CertificateRequest, IssuedCertificate

__all__ = ["DEFAULT_LIFETIME", "Organiser"]

DEFAULT_LIFETIME: Final = 30 * 24 * 3600
"""Seconds for which a certificate holds unless told otherwise: 30 days. A revoked one is listed for that long."""
_KEY_FILE: Final = "organiser.key"
_LEDGER_FILE: Final = "issued.sqlite3"
_FORMAT: Final = "hushrec organiser 1"


@dataclass(frozen=True, repr=False, eq=False)
class Organiser:
    """Certifies and revokes. It shows its public key, never the private one.

    clock: seconds since the epoch; the machine's by default.
    """

    signing_key: Ed25519PrivateKey
    issued: IssuedCertificates
    clock: Callable[[], float] = field(default=time.time)

    def __repr__(self) -> str:
        return f"<Organiser {b64encode(self.public_key)}>"

    @classmethod
    def create(cls, folder: str | Path) -> Self:
        """A new organiser with a fresh key in `folder`; `LocalFileError` when there is one already."""
        folder = Path(folder)
        if (folder / _KEY_FILE).exists():
            raise LocalFileError(f"{folder / _KEY_FILE} exists: an organiser's key is never overwritten")
        ensure_private_directory(folder)
        key = Ed25519PrivateKey.generate()
        content = {"format": _FORMAT, "signing_key": b64encode(key.private_bytes_raw())}
        write_private(folder / _KEY_FILE, json.dumps(content, indent=1).encode() + b"\n")
        return cls(key, IssuedCertificates(folder / _LEDGER_FILE))

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """The organiser in `folder`; `LocalFileError` when it is missing, damaged or readable by other users."""
        path = Path(folder) / _KEY_FILE
        body = read_private(path, "the organiser's key")
        try:
            content = json.loads(body)
            if content["format"] != _FORMAT:
                raise LocalFileError(f"{path} is of a format that is not known here")
            key = Ed25519PrivateKey.from_private_bytes(b64decode(content["signing_key"], 32))
        except (ValueError, TypeError, KeyError, CodecError) as error:
            raise LocalFileError(f"{path} is damaged") from error
        return cls(key, IssuedCertificates(Path(folder) / _LEDGER_FILE))

    @property
    def public_key(self) -> bytes:
        """Ed25519 public key, 32 bytes: what clients and the aggregator pin."""
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
        """Certify the keys of one subject, for the first time or again before the last certificate expires.

        subject: who it is by the organiser's own login; one subject has one identity for each scope and role. lifetime:
        seconds. Raises `ParameterError` when the subject has a certificate for other keys, when another subject has one
        for these, and for keys or a scope that cannot be certified.
        """
        if lifetime < 1:
            raise ParameterError(f"a certificate holds for at least one second, got a lifetime of {lifetime}")
        not_after = int(self.clock()) + lifetime
        # before anything is recorded: this raises for keys and scopes that cannot be certified
        certify(self.signing_key, scope, identity_key, mailbox_key, role=role, serial=0, not_after=not_after)
        record = self.issued.record(scope, role, subject, identity_key, mailbox_key, not_after)
        return certify(
            self.signing_key, scope, identity_key, mailbox_key, role=role, serial=record.serial, not_after=not_after
        )

    def issue(self, request: CertificateRequest, subject: str, lifetime: int = DEFAULT_LIFETIME) -> IssuedCertificate:
        """Answer a client's request, once its login has said who it is.

        Raises `ParameterError` as `certify` does, and when the request is not signed with the identity key it names.
        """
        identity_key, mailbox_key = b64decode(request.identity_key, 32), b64decode(request.mailbox_key, 32)
        statement = certificate_request(request.scope, request.role, identity_key, mailbox_key)
        try:
            Ed25519PublicKey.from_public_bytes(identity_key).verify(b64decode(request.signature, 64), statement)
        except (InvalidSignature, ValueError):
            raise ParameterError("the request is not signed with the identity key that it names") from None
        made = self.certify(request.scope, subject, identity_key, mailbox_key, request.role, lifetime)
        return IssuedCertificate(
            scope=request.scope,
            certificate=b64encode(made.encode()),
            organiser_key=b64encode(self.public_key),
            not_after=made.not_after,
        )

    def revoke(self, scope: str, subject: str) -> RevocationList:
        """Revoke what the subject holds in the scope and return the new list; `ParameterError` when it holds nothing.

        The subject may be certified again afterwards, with the same or other keys.
        """
        if not self.issued.revoke(scope, subject):
            raise ParameterError(f"subject {subject!r} holds no certificate in scope {scope!r}")
        return self.revocations(scope)

    def revocations(self, scope: str) -> RevocationList:
        """The scope's revocation list, signed now; certificates that have expired by themselves are left out."""
        now = self.clock()
        return revoke(self.signing_key, scope, self.issued.revoked(scope, now), int(now))

    def held(self, scope: str) -> list[IssuedRecord]:
        """Who holds a certificate in the scope, by subject."""
        return self.issued.held(scope)
