"""The public key of one round, signed by the key holder, so that the server can exchange it for no other.

identity key (32) | mailbox key (32) | certificate (81) | signature (64) | public key

The first three belong to the key holder. Its signature covers them, the public key, and what the key is for: the task,
the number of the round, the mechanism and the id of the HE parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.codec import Reader, exact
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.domain import domain_tag
from protocols.crypto.ed25519 import verifies
from protocols.crypto.envelope import CheckSender, EnvelopeSender
from protocols.errors import CodecError, RoundKeyError

__all__ = ["RoundKeyPurpose", "open_round_key", "round_key_document_bytes", "sign_round_key"]

_KEY: Final = 32
_SIGNATURE: Final = 64
_HEAD: Final = 2 * _KEY + CERTIFICATE_BYTES + _SIGNATURE


@dataclass(frozen=True)
class RoundKeyPurpose:
    """What a round key is for. parameter_id: 32 bytes that identify the HE parameters; see `Keyring`."""

    task_id: str
    round_number: int
    mechanism: str
    parameter_id: bytes

    def statement(self, head: bytes, public_key: bytes) -> bytes:
        """Return the bytes that the holder signs; head: its identity key, mailbox key and certificate."""
        where = (self.task_id, self.round_number, self.mechanism, self.parameter_id)
        return domain_tag("round key", *where, head, public_key)


def round_key_document_bytes(public_key_bytes: int) -> int:
    """Return the length in bytes of the document of a public key of this length."""
    return _HEAD + public_key_bytes


def sign_round_key(purpose: RoundKeyPurpose, public_key: bytes, sender: EnvelopeSender) -> bytes:
    """Return the document of `public_key`, signed as the key holder `sender`."""
    head = sender.signing_key.public_key().public_bytes_raw() + sender.mailbox_key + sender.certificate
    return head + sender.signing_key.sign(purpose.statement(head, public_key)) + public_key


def open_round_key(
    purpose: RoundKeyPurpose, document: bytes, public_key_bytes: int, check_sender: CheckSender
) -> bytes:
    """Return the public key, of `public_key_bytes` bytes, whose signer `check_sender` accepts.

    Raises `RoundKeyError` for another length and for a key that was signed for another task, round, mechanism or
    parameters, or altered; and whatever `check_sender` raises.
    """
    try:
        reader = Reader(exact(document, round_key_document_bytes(public_key_bytes), "a round key"))
    except CodecError as error:
        raise RoundKeyError(str(error)) from error
    identity_key, mailbox_key = reader.fixed(_KEY), reader.fixed(_KEY)
    certificate, signature = reader.fixed(CERTIFICATE_BYTES), reader.fixed(_SIGNATURE)
    public_key = reader.fixed(public_key_bytes)
    if not verifies(identity_key, signature, purpose.statement(identity_key + mailbox_key + certificate, public_key)):
        raise RoundKeyError(
            f"the public key of round {purpose.round_number} was signed for another task or round, or altered: its "
            "signature does not verify"
        )
    check_sender(identity_key, mailbox_key, certificate)
    return public_key
