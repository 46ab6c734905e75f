"""Messages between a client and the issuing endpoint of an organiser."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from protocols.codec import b64decode
from protocols.crypto.certificates import CERTIFICATE_BYTES, LONGEST_SCOPE, CertifiedRole
from protocols.messages.base import Key32, Message, Signature64

__all__ = ["CertificateRequest", "CertificateText", "IssuedCertificate", "OrganiserView"]


def _certificate(text: str) -> str:
    b64decode(text, CERTIFICATE_BYTES)
    return text


CertificateText = Annotated[
    str, Field(min_length=108, max_length=108, description="81 bytes, base64url."), AfterValidator(_certificate)
]
"""A membership certificate as text."""


class CertificateRequest(Message):
    """A client's keys, signed with the identity key over `certificate_request`."""

    scope: str = Field(min_length=1, max_length=LONGEST_SCOPE, description="Name of the task or group of tasks.")
    role: CertifiedRole = "member"
    identity_key: Key32 = Field(description="Ed25519 public key.")
    mailbox_key: Key32 = Field(description="X25519 public key.")
    signature: Signature64 = Field(description="Ed25519 over the domain tag of scope, role and both keys.")


class IssuedCertificate(Message):
    """A membership certificate with the scope and the organiser's key to verify it."""

    scope: str
    certificate: CertificateText
    organiser_key: Key32 = Field(description="Ed25519 public key of the organiser; clients compare it with their pin.")
    not_after: int = Field(description="Last second of validity, since the epoch.")


class OrganiserView(Message):
    """The organiser's key and the scopes that its endpoint issues certificates for."""

    organiser_key: Key32
    scopes: list[str]
    lifetime_seconds: int = Field(description="Validity of a certificate from its issue, in seconds.")
