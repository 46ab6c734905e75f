"""Membership certificates: the organiser's signature over the keys of a member, with a scope, a role and an expiry.

The organiser is the publisher of the app, who can authenticate its users; it is never the aggregator. It signs a
client's identity key (Ed25519) and mailbox key (the name of its sealing key) for one role in one scope. A scope is a
name that one or several tasks share. Members and the server hold only the organiser's public key. So neither the
server, nor a member, nor both together can add a member. (With a secret that all members share, any one of them could.)

A certificate on the wire has 81 bytes: role (1), serial (8), not_after (8, both little-endian uint64), signature (64).
The certificate does not contain the keys and the scope: the verifier has them already, and the signature covers them.
Ed25519 is RFC 8032, as `cryptography` implements it. No function reads a clock: `now` is an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import Reader, exact
from protocols.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, domain_tag, verifies
from protocols.errors import CertificateError, CodecError, ParameterError

CertifiedRole = Literal["member", "holder", "committee"]
"""What the keys may be used for: to contribute, to hold the HE keys of a task, to unmask one-shot sums."""

LONGEST_SCOPE: Final = 100
"""Maximum length of a scope's name in UTF-8, in bytes."""
_ROLES: Final[tuple[CertifiedRole, ...]] = get_args(CertifiedRole)
_HEAD: Final = struct.Struct("<BQQ")
_LIST_HEAD: Final = struct.Struct("<QI")
_SERIAL: Final = struct.Struct("<Q")
_MOST: Final = 2**64 - 1
CERTIFICATE_BYTES: Final = _HEAD.size + SIGNATURE_BYTES
NO_CERTIFICATE: Final = bytes(CERTIFICATE_BYTES)
"""Placeholder for the certificate in tasks without an organiser."""
MOST_REVOKED: Final = 100_000
"""Maximum number of serials in a revocation list: 800 kB. Signer, server and clients have the same limit."""
LONGEST_REVOCATIONS: Final = _LIST_HEAD.size + MOST_REVOKED * _SERIAL.size + SIGNATURE_BYTES
"""Bytes of the longest revocation list."""


@dataclass(frozen=True)
class Certificate:
    """An organiser's statement about one client's keys.

    The keys and the scope are not fields; see `check_certificate`.
    """

    role: CertifiedRole
    serial: int
    """Identifies the subject among the organiser's, and the certificate in a revocation list."""
    not_after: int
    """Last second of validity, since the epoch."""
    signature: bytes

    def encode(self) -> bytes:
        """Return the wire form: role, serial, not_after, signature; `CERTIFICATE_BYTES` bytes."""
        return _HEAD.pack(_ROLES.index(self.role), self.serial, self.not_after) + self.signature

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> Certificate:
        """Inverse of `encode`. Raises `CodecError` for a wrong length or an unknown role."""
        view = exact(body, CERTIFICATE_BYTES, "a membership certificate")
        role, serial, not_after = _HEAD.unpack_from(view)
        if role >= len(_ROLES):
            raise CodecError(f"a membership certificate has the unknown role number {role}")
        return cls(_ROLES[role], serial, not_after, bytes(view[_HEAD.size :]))


def check_scope(scope: str) -> None:
    """Raise `ParameterError` for a name that no scope can have."""
    if not 1 <= len(scope.encode()) <= LONGEST_SCOPE:
        raise ParameterError(f"the name of a scope must have 1 to {LONGEST_SCOPE} bytes, got {len(scope.encode())}")


def certificate_request(scope: str, role: CertifiedRole, identity_key: bytes, mailbox_key: bytes) -> bytes:
    """Return the bytes that a client signs to request a certificate.

    The signature with the identity key proves to the organiser that the client owns that key.
    """
    return domain_tag("certificate request", scope, role, identity_key, mailbox_key)


def certify(
    organiser: Ed25519PrivateKey,
    scope: str,
    identity_key: bytes,
    mailbox_key: bytes,
    *,
    role: CertifiedRole,
    serial: int,
    not_after: int,
) -> Certificate:
    """Certify a client's keys (32 bytes each) for `role` in `scope`.

    serial: unique among the organiser's certificates, 0 to 2^64 - 1. not_after: seconds since the epoch. Raises
    `ParameterError` for keys of another length and for numbers out of range.
    """
    if len(identity_key) != KEY_BYTES or len(mailbox_key) != KEY_BYTES:
        raise ParameterError(f"identity and mailbox keys must have {KEY_BYTES} bytes")
    if not (0 <= serial <= _MOST and 0 <= not_after <= _MOST):
        raise ParameterError("serial and not_after of a certificate must be 0 to 2^64 - 1")
    signature = organiser.sign(_statement(scope, identity_key, mailbox_key, role, serial, not_after))
    return Certificate(role, serial, not_after, signature)


def check_certificate(
    organiser_key: bytes,
    scope: str,
    identity_key: bytes,
    mailbox_key: bytes,
    certificate: Certificate,
    now: float,
) -> None:
    """Raise `CertificateError` unless the organiser certified these keys for this scope and `now` <= `not_after`.

    organiser_key: Ed25519 public key, 32 bytes. now: seconds since the epoch, by the caller's own clock. Does not check
    for revocation; see `RevocationList.covers`.
    """
    c = certificate
    if now > c.not_after:
        raise CertificateError("the membership certificate has expired: ask the organiser for a new one")
    statement = _statement(scope, identity_key, mailbox_key, c.role, c.serial, c.not_after)
    if not verifies(organiser_key, c.signature, statement):
        raise CertificateError(
            f"the membership certificate was not signed by the organiser of scope {scope!r} for these keys"
        )


@dataclass(frozen=True)
class RevocationList:
    """The revoked certificates of one scope, signed by the organiser."""

    issued_at: int
    """Seconds since the epoch; a newer list replaces an older one."""
    serials: frozenset[int]
    """Those of the revoked certificates."""
    signature: bytes
    """Ed25519, 64 bytes."""

    def covers(self, certificate: Certificate) -> bool:
        """Whether the certificate is revoked."""
        return certificate.serial in self.serials

    def is_older_than(self, other: RevocationList) -> bool:
        """Whether it was issued before `other`, or in the same second without all of its serials."""
        return self.issued_at < other.issued_at or (
            self.issued_at == other.issued_at and not self.serials >= other.serials
        )

    def encode(self) -> bytes:
        """Return issued_at (8 bytes), number of serials (4), serials (8 each) in ascending order, signature (64)."""
        head = _LIST_HEAD.pack(self.issued_at, len(self.serials))
        return head + b"".join(map(_SERIAL.pack, sorted(self.serials))) + self.signature

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> RevocationList:
        """Inverse of `encode`. Raises `CodecError` for any other form and for more than `MOST_REVOKED` serials."""
        reader = Reader(body)
        issued_at, count = _LIST_HEAD.unpack(reader.fixed(_LIST_HEAD.size))
        if count > MOST_REVOKED:
            raise CodecError(f"a revocation list has at most {MOST_REVOKED} serials, this one has {count}")
        serials = [serial for (serial,) in _SERIAL.iter_unpack(reader.fixed(count * _SERIAL.size))]
        signature = reader.fixed(SIGNATURE_BYTES)
        reader.finish()
        if any(later <= earlier for earlier, later in zip(serials, serials[1:], strict=False)):
            raise CodecError("the serials of a revocation list must be in ascending order, without duplicates")
        return cls(issued_at, frozenset(serials), signature)


def subject_of(certificate: bytes) -> bytes | None:
    """Return the serial (8 bytes) in an encoded certificate, which stands for its subject; None for no certificate.

    An organiser gives each subject of a scope one serial, and another one only after it revoked the first.
    """
    return None if certificate == NO_CERTIFICATE else certificate[1 : 1 + _SERIAL.size]


def shares_subject(certificates: Iterable[bytes]) -> bool:
    """Return whether two of these encoded certificates are of one subject; those of no organiser are of none."""
    subjects = [subject for each in certificates if (subject := subject_of(each)) is not None]
    return len(set(subjects)) < len(subjects)


def revoke(organiser: Ed25519PrivateKey, scope: str, serials: Iterable[int], issued_at: int) -> RevocationList:
    """Sign the complete list of revoked serials of `scope`. issued_at: seconds since the epoch.

    Raises `ParameterError` for more than `MOST_REVOKED` serials and for one that is not 0 to 2^64 - 1.
    """
    revoked = frozenset(serials)
    if len(revoked) > MOST_REVOKED or not all(0 <= serial <= _MOST for serial in revoked):
        raise ParameterError(f"a revocation list has at most {MOST_REVOKED} serials of 0 to 2^64 - 1")
    return RevocationList(issued_at, revoked, organiser.sign(_list_statement(scope, revoked, issued_at)))


def check_revocations(organiser_key: bytes, scope: str, revocations: RevocationList) -> None:
    """Raise `CertificateError` unless the organiser signed this list for this scope."""
    statement = _list_statement(scope, revocations.serials, revocations.issued_at)
    if not verifies(organiser_key, revocations.signature, statement):
        raise CertificateError(f"the revocation list was not signed by the organiser of scope {scope!r}")


def _statement(
    scope: str, identity_key: bytes, mailbox_key: bytes, role: CertifiedRole, serial: int, not_after: int
) -> bytes:
    """Return the bytes that the organiser signs for a certificate; `ParameterError` for a scope of a wrong length."""
    check_scope(scope)
    return domain_tag("membership certificate", scope, role, identity_key, mailbox_key, serial, not_after)


def _list_statement(scope: str, serials: frozenset[int], issued_at: int) -> bytes:
    return domain_tag("revoked certificates", scope, issued_at, b"".join(map(_SERIAL.pack, sorted(serials))))
