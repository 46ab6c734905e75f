"""Encryption of keyring envelopes between members and of model snapshots. The server stores both and opens neither.

Trust: the server distributes the roster, so it could invent members or put its own key in an envelope. Both need the
*membership secret*, 32 random bytes that the members share out of band and the server never sees. Members prove that
they know it when they enrol, and it is part of every envelope's key (a pre-shared key as in RFC 9180, mode_psk).
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
"""random(n) -> n secret random bytes; `os.urandom` except in test vectors."""

_NONCE: Final = 12
_TAG: Final = 16
_KEY: Final = 32


def enrolment_message(invitation: str, identity_key: bytes, mailbox_key: bytes, group: int | None = None) -> bytes:
    """Return the bytes that a client signs with its Ed25519 key to enrol these keys and, if given, its device group."""
    return domain_tag("enrolment", invitation, identity_key, mailbox_key, *(() if group is None else (group,)))


def membership_proof(membership_secret: bytes, identity_key: bytes, mailbox_key: bytes) -> bytes:
    """Return the proof (32 bytes, HMAC-SHA256) that the owner of these keys knows the membership secret.

    Raises `ParameterError` for a membership secret of another length than 32 bytes.
    """
    if len(membership_secret) != MEMBERSHIP_SECRET_BYTES:
        raise ParameterError(
            f"a membership secret must be {MEMBERSHIP_SECRET_BYTES} bytes, got {len(membership_secret)}"
        )
    key = derive_key(membership_secret, "membership key")
    return hmac.digest(key, domain_tag("membership", identity_key, mailbox_key), "sha256")


def check_membership(membership_secret: bytes, identity_key: bytes, mailbox_key: bytes, proof: bytes | None) -> bool:
    """Return whether `proof` was made with the same secret, and the mailbox key is usable for key agreement.

    The comparison takes constant time. A mailbox key of low order is rejected here, so that a member with such a key
    does not block the key holder.
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
    """Return `keyring` encrypted to `recipient` (X25519 public key): ephemeral key (32), nonce (12), AES-256-GCM."""
    ephemeral = X25519PrivateKey.from_private_bytes(random(_KEY))
    public = _raw(ephemeral.public_key())
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient))
    key = _envelope_key(shared, membership_secret, task_id, public, recipient)
    nonce = random(_NONCE)
    return public + nonce + AESGCM(key).encrypt(nonce, keyring, domain_tag("keyring envelope", task_id))


def open_envelope(envelope: bytes, mailbox: X25519PrivateKey, membership_secret: bytes, task_id: str) -> bytes:
    """Return the keyring bytes; `EnvelopeError` if the envelope is for another key, secret or task, or was altered."""
    reader = Reader(envelope)
    public, nonce = reader.fixed(_KEY), reader.fixed(_NONCE)
    sealed = reader.fixed(len(envelope) - _KEY - _NONCE)
    try:
        shared = mailbox.exchange(X25519PublicKey.from_public_bytes(public))
        key = _envelope_key(shared, membership_secret, task_id, public, _raw(mailbox.public_key()))
        return AESGCM(key).decrypt(nonce, sealed, domain_tag("keyring envelope", task_id))
    except (InvalidTag, ValueError) as error:
        raise EnvelopeError(
            "cannot open the keyring envelope: it was sealed for another client or with another secret, or altered"
        ) from error


def seal_snapshot(
    state: bytes, state_key: bytes, task_id: str, round_number: int, random: Randomness = os.urandom
) -> bytes:
    """Return a model state encrypted for the members of a task: nonce (12) and AES-256-GCM ciphertext."""
    nonce = random(_NONCE)
    key = derive_key(state_key, "snapshot key", task_id)
    return nonce + AESGCM(key).encrypt(nonce, state, domain_tag("snapshot", task_id, round_number))


def open_snapshot(sealed: bytes, state_key: bytes, task_id: str, round_number: int) -> bytes:
    """Return the model state; `EnvelopeError` unless a member of this task sealed the state of this round."""
    reader = Reader(sealed)
    nonce = reader.fixed(_NONCE)
    key = derive_key(state_key, "snapshot key", task_id)
    try:
        body = reader.fixed(len(sealed) - _NONCE)
        return AESGCM(key).decrypt(nonce, body, domain_tag("snapshot", task_id, round_number))
    except InvalidTag as error:
        raise EnvelopeError(f"the snapshot of round {round_number} was not sealed by a member of this task") from error


def sealed_bytes(length: int) -> int:
    """Return the length in bytes of a sealed snapshot of a state of `length` bytes."""
    return _NONCE + length + _TAG
