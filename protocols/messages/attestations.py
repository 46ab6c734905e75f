"""Attestations: what other members stated with their contributions about the aggregates before."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from protocols.messages.base import Key32, Message

__all__ = ["LARGEST_ATTESTATION_PAGE", "LONGEST_ATTESTATION", "Attestation", "AttestationPage"]

LARGEST_ATTESTATION_PAGE: Final = 100
LONGEST_ATTESTATION: Final = 4096
"""Longest attestation in JSON, in bytes."""


class Attestation(Message):
    """The signed components of a contribution's request, and the keys and certificate of the client that signed it.

    The path is not among them: it names the task, the round and the client, and follows from these.
    """

    client_id: str = Field(max_length=72)
    identity_key: Key32
    mailbox_key: Key32
    certificate: str | None = Field(max_length=200, description="Membership certificate, base64url; null without one.")
    method: str = Field(max_length=8, description="PUT, or PATCH for the last chunk of an upload in chunks.")
    authority: str = Field(max_length=300, description="Host and port that the request was signed for.")
    fields: dict[str, str] = Field(
        description="The header fields that the signature covers, by lower-case name; aggregate-chain is one of them."
    )
    signature_input: str = Field(max_length=1024, description="The header Signature-Input.")
    signature: str = Field(max_length=200, description="The header Signature.")


class AttestationPage(Message):
    """Attestations in order of client ids. While `more` is true, request the next page after the last client id."""

    attestations: list[Attestation]
    more: bool = False
