"""Sealed things: keyring envelopes between members, and model snapshots. The server stores both and opens neither.

Trust: the server hands out the roster, so it could invent members or put its own key in an envelope. Both need the
*membership secret*, 32 random bytes that the members share out of band and the server never sees: members prove that
they know it when they enrol, and it is mixed into every envelope's key (a pre-shared key in the sense of RFC 9180,
mode_psk).
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocols.codec import Reader
from protocols.crypto.domain import derive_key, domain_tag
from protocols.errors import EnvelopeError, ParameterError

__all__ = [
    "MEMBERSHIP_SECRET_BYTES",
    "check_membership",
    "enrolment_message",
    "membership_proof",
    "open_envelope",
    "open_snapshot",
    "seal_envelope",
    "seal_snapshot",
    "sealed_bytes",
]

MEMBERSHIP_SECRET_BYTES: Final = 32
Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; only test vectors bring their own."""

_NONCE: Final = 12
_TAG: Final = 16
_KEY: Final = 32


def enrolment_message(invitation: str, identity_key: bytes, mailbox_key: bytes, group: int | None = None) -> bytes:
    """What a client signs with its Ed25519 key to show that it owns the keys it enrols, with its group when it states
    one.
    """
    return domain_tag("enrolment", invitation, identity_key, mailbox_key, *(() if group is None else (group,)))


def membership_proof(membership_secret: bytes, identity_key: bytes, mailbox_key: bytes) -> bytes:
    """32 bytes that only somebody with the membership secret can make for these keys (HMAC-SHA256)."""
    if len(membership_secret) != MEMBERSHIP_SECRET_BYTES:
        raise ParameterError(
            f"a membership secret has {MEMBERSHIP_SECRET_BYTES} bytes, this one has {len(membership_secret)}"
        )
    key = derive_key(membership_secret, "membership key")
    return hmac.digest(key, domain_tag("membership", identity_key, mailbox_key), "sha256")


def check_membership(membership_secret: bytes, identity_key: bytes, mailbox_key: bytes, proof: bytes | None) -> bool:
    """Whether `proof` was made with the same secret (compared in constant time), for a key that can be sealed to.

    A member could enrol a point of low order, with which no secret can be agreed on: that must stop nobody else.
    """
    if proof is None or not hmac.compare_digest(membership_proof(membership_secret, identity_key, mailbox_key), proof):
        return False
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(mailbox_key))
    except ValueError:
        return False
    return True


def _envelope_key(shared: bytes, membership_secret: bytes, task_id: str, ephemeral: bytes, recipient: bytes) -> bytes:
    return derive_key(shared + membership_secret, "keyring envelope", task_id, ephemeral, recipient)


def _raw(key: X25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def seal_envelope(
    keyring: bytes, recipient: bytes, membership_secret: bytes, task_id: str, random: Randomness = os.urandom
) -> bytes:
    """`keyring` sealed to the X25519 public key `recipient`: ephemeral key (32), nonce (12), AES-256-GCM ciphertext."""
    ephemeral = X25519PrivateKey.from_private_bytes(random(_KEY))
    public = _raw(ephemeral.public_key())
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient))
    key = _envelope_key(shared, membership_secret, task_id, public, recipient)
    nonce = random(_NONCE)
    return public + nonce + AESGCM(key).encrypt(nonce, keyring, domain_tag("keyring envelope", task_id))


def open_envelope(envelope: bytes, mailbox: X25519PrivateKey, membership_secret: bytes, task_id: str) -> bytes:
    """The keyring bytes; `EnvelopeError` when the envelope is not for this key, secret and task, or was altered."""
    reader = Reader(envelope)
    public, nonce = reader.fixed(_KEY), reader.fixed(_NONCE)
    sealed = reader.fixed(len(envelope) - _KEY - _NONCE)
    try:
        shared = mailbox.exchange(X25519PublicKey.from_public_bytes(public))
        key = _envelope_key(shared, membership_secret, task_id, public, _raw(mailbox.public_key()))
        return AESGCM(key).decrypt(nonce, sealed, domain_tag("keyring envelope", task_id))
    except (InvalidTag, ValueError) as error:
        raise EnvelopeError(
            "the keyring envelope does not open: it was sealed for another client, with another secret, or altered"
        ) from error


def seal_snapshot(
    state: bytes, state_key: bytes, task_id: str, round_number: int, random: Randomness = os.urandom
) -> bytes:
    """A model state sealed for the members of a task: nonce (12) and AES-256-GCM ciphertext."""
    nonce = random(_NONCE)
    key = derive_key(state_key, "snapshot key", task_id)
    return nonce + AESGCM(key).encrypt(nonce, state, domain_tag("snapshot", task_id, round_number))


def open_snapshot(sealed: bytes, state_key: bytes, task_id: str, round_number: int) -> bytes:
    """The model state; `EnvelopeError` unless a member of this task sealed exactly this round's."""
    reader = Reader(sealed)
    nonce = reader.fixed(_NONCE)
    key = derive_key(state_key, "snapshot key", task_id)
    try:
        body = reader.fixed(len(sealed) - _NONCE)
        return AESGCM(key).decrypt(nonce, body, domain_tag("snapshot", task_id, round_number))
    except InvalidTag as error:
        raise EnvelopeError(f"the snapshot of round {round_number} was not sealed by a member of this task") from error


def sealed_bytes(length: int) -> int:
    """Length of a sealed snapshot of `length` bytes."""
    return _NONCE + length + _TAG
