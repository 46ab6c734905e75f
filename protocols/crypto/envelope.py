"""Encryption of keyring envelopes between members and of model snapshots. The server stores both and opens neither.

A keyring envelope is sealed to one member's mailbox and signed by the key holder. It contains the holder's public keys
and membership certificate, so a member verifies who made it without trusting the server. Otherwise the
server could put keys of its own into the mailbox and read what is encrypted with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.codec import Reader
from protocols.crypto.aggregate_chain import CHAIN_BYTES, AggregateChain
from protocols.crypto.certificates import CERTIFICATE_BYTES, NO_CERTIFICATE
from protocols.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, derive_key, domain_tag, verifies
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey, key_name, seal
from protocols.errors import CodecError, EnvelopeError

_NONCE: Final = 12
_TAG: Final = 16
_PURPOSE: Final = "keyring envelope"
_HEAD: Final = 2 * KEY_BYTES + CERTIFICATE_BYTES + SIGNATURE_BYTES


def enrolment_message(
    invitation: str,
    identity_key: bytes,
    mailbox_key: bytes,
    group: int | None = None,
    certificate: bytes | None = None,
    renewal: int = 0,
) -> bytes:
    """Return the bytes that a client signs with its Ed25519 key to enrol.

    mailbox_key: the name of its mailbox's sealing key, 32 bytes. group: its device group, where it states one.
    certificate: its membership certificate, where it sends one. renewal: 0 for the first enrolment; a later one
    replaces the token only if its number is greater, so that a recorded one cannot be used again.
    """
    stated = (*(() if group is None else (group,)), *(() if certificate is None else (certificate,)))
    if renewal:
        return domain_tag("enrolment renewal", renewal, invitation, identity_key, mailbox_key, *stated)
    return domain_tag("enrolment", invitation, identity_key, mailbox_key, *stated)


@dataclass(frozen=True, repr=False)
class EnvelopeSender:
    """Who seals an envelope: its identity key, the name of its mailbox key (32 bytes), its certificate (or zeros)."""

    signing_key: Ed25519PrivateKey
    mailbox_key: bytes
    certificate: bytes = NO_CERTIFICATE


CheckSender = Callable[[bytes, bytes, bytes], None]
"""check(identity_key, mailbox_key, certificate) raises unless these are the key holder's."""


def seal_envelope(
    keyring: bytes, recipient: bytes, task_id: str, sender: EnvelopeSender, random: Randomness = os.urandom
) -> bytes:
    """Seal `keyring` to the public sealing key `recipient` and sign it as `sender`.

    The sender's identity key (32), mailbox key (32) and certificate (81), its signature (64), an ephemeral X25519 key
    (32) and the sealed keyring. The signature covers all the rest, the task and the recipient.
    """
    ephemeral = X25519PrivateKey.from_private_bytes(random(KEY_BYTES))
    sealed = ephemeral.public_key().public_bytes_raw() + seal(ephemeral, recipient, keyring, _PURPOSE, task_id)
    head = sender.signing_key.public_key().public_bytes_raw() + sender.mailbox_key + sender.certificate
    statement = _envelope_statement(task_id, key_name(recipient), head, sealed)
    return head + sender.signing_key.sign(statement) + sealed


def open_envelope(envelope: bytes, mailbox: SealingKey, task_id: str, check_sender: CheckSender) -> bytes:
    """Return the keyring bytes of an envelope whose signer `check_sender` accepts.

    Raises `EnvelopeError` when the envelope is not for this mailbox and task, or was altered, and whatever
    `check_sender` raises.
    """
    reader = Reader(envelope)
    identity_key, mailbox_key = reader.fixed(KEY_BYTES), reader.fixed(KEY_BYTES)
    certificate, signature = reader.fixed(CERTIFICATE_BYTES), reader.fixed(SIGNATURE_BYTES)
    sealed = reader.fixed(len(envelope) - _HEAD)
    statement = _envelope_statement(task_id, mailbox.name, identity_key + mailbox_key + certificate, sealed)
    if not verifies(identity_key, signature, statement):
        raise EnvelopeError(
            "the keyring envelope was sealed for another client or task, or altered: its signature does not verify"
        )
    check_sender(identity_key, mailbox_key, certificate)
    try:
        return mailbox.open(sealed[:KEY_BYTES], sealed[KEY_BYTES:], _PURPOSE, task_id)
    except CodecError as error:
        raise EnvelopeError("the keyring envelope does not open with this client's mailbox key") from error


def _envelope_statement(task_id: str, recipient: bytes, head: bytes, sealed: bytes) -> bytes:
    return domain_tag("signed keyring envelope", task_id, recipient, head, sealed)


def seal_snapshot(
    state: bytes,
    chain: AggregateChain,
    state_key: bytes,
    task_id: str,
    round_number: int,
    random: Randomness = os.urandom,
) -> bytes:
    """Return a model state encrypted for the members of a task: nonce (12) and AES-256-GCM ciphertext.

    chain: of the aggregates up to this round; it is encrypted before the state (64 bytes).
    """
    nonce = random(_NONCE)
    key = derive_key(state_key, "snapshot key", task_id)
    return nonce + AESGCM(key).encrypt(nonce, chain.encode() + state, domain_tag("snapshot", task_id, round_number))


def open_snapshot(sealed: bytes, state_key: bytes, task_id: str, round_number: int) -> tuple[bytes, AggregateChain]:
    """Return the model state and the chain of the aggregates up to its round.

    Raises `EnvelopeError` unless a member of this task sealed the state of this round, `CodecError` for a snapshot that
    is too short.
    """
    reader = Reader(sealed)
    nonce = reader.fixed(_NONCE)
    key = derive_key(state_key, "snapshot key", task_id)
    try:
        body = reader.fixed(len(sealed) - _NONCE)
        opened = AESGCM(key).decrypt(nonce, body, domain_tag("snapshot", task_id, round_number))
    except InvalidTag as error:
        raise EnvelopeError(f"the snapshot of round {round_number} was not sealed by a member of this task") from error
    return opened[CHAIN_BYTES:], AggregateChain.decode(opened[:CHAIN_BYTES])


def sealed_bytes(length: int) -> int:
    """Return the length in bytes of a sealed snapshot of a state of `length` bytes."""
    return _NONCE + CHAIN_BYTES + length + _TAG
