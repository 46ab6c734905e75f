"""Vectors of what identities sign and seal: certificates, envelopes and snapshots."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.certificates import certify, revoke
from protocols.crypto.domain import digest
from protocols.crypto.envelope import EnvelopeSender, seal_envelope, seal_snapshot

__all__ = ["certificates", "envelope"]


def certificates() -> dict[str, Any]:
    """Membership certificates and revocation lists, those that hold and those that do not."""
    key = Ed25519PrivateKey.from_private_bytes(digest("vector organiser"))
    organiser, identity = key.public_key().public_bytes_raw(), digest("vector identity")
    mailbox = X25519PrivateKey.from_private_bytes(digest("vector mailbox")).public_key().public_bytes_raw()
    made = certify(key, "movies", identity, mailbox, role="member", serial=2**63 + 5, not_after=1_900_000_000)
    listed = revoke(key, "movies", [7, 2**63 + 5], 1_800_000_000)
    case = {
        "organiser_key": organiser.hex(),
        "scope": "movies",
        "identity_key": identity.hex(),
        "mailbox_key": mailbox.hex(),
        "certificate": made.encode().hex(),
        "now": 1_900_000_000,
    }
    other = made.encode()
    revoked = {"organiser_key": organiser.hex(), "scope": "movies", "list": listed.encode().hex()}
    return {
        "about": "certificate: role (0 member, 1 holder, 2 committee), serial and not_after (uint64 LE), Ed25519 over "
        "the domain tag of 'membership certificate', scope, role, identity key, mailbox key, serial, not_after. "
        "list: issued_at (uint64 LE), count (uint32 LE), serials ascending (uint64 LE), Ed25519 over the domain tag of "
        "'revoked certificates', scope, issued_at, the serials' bytes.",
        "certificates": [
            {**case, "role": "member", "serial": str(2**63 + 5), "not_after": 1_900_000_000},
            {**case, "now": 1_900_000_001, "error": "CertificateError"},
            {**case, "scope": "songs", "error": "CertificateError"},
            {**case, "mailbox_key": identity.hex(), "error": "CertificateError"},
            {**case, "certificate": (b"\x01" + other[1:]).hex(), "error": "CertificateError"},
            {**case, "certificate": (b"\x03" + other[1:]).hex(), "error": "CodecError"},
            {**case, "certificate": other[:-1].hex(), "error": "CodecError"},
        ],
        "revocations": [
            {**revoked, "serials": ["7", str(2**63 + 5)], "issued_at": 1_800_000_000},
            {**revoked, "scope": "songs", "error": "CertificateError"},
            {**revoked, "list": (listed.encode() + b"x").hex(), "error": "CodecError"},
        ],
    }


def envelope() -> dict[str, Any]:
    """Keyring envelopes and snapshots, sealed with made-up randomness."""
    secret, sender_key = digest("vector mailbox"), Ed25519PrivateKey.from_private_bytes(digest("vector holder"))
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    body, state, state_key = b"not a real keyring", bytes(range(16)), digest("vector state key")
    sender = EnvelopeSender(sender_key, b"m" * 32, bytes(range(81)))
    sealed = seal_envelope(body, public, "t_1", sender, lambda n: digest("vector randomness", n)[:n])
    chain = AggregateChain(digest("vector chain", 2), digest("vector chain", 3))
    snapshot = seal_snapshot(state, chain, state_key, "t_1", 3, lambda n: digest("vector randomness", n)[:n])
    flipped, flipped_snapshot = (bytes([*s[:-1], s[-1] ^ 1]) for s in (sealed, snapshot))
    altered = sealed[:100] + bytes([sealed[100] ^ 1]) + sealed[101:]
    opened = {"mailbox_secret": secret.hex(), "task": "t_1", "envelope": sealed.hex()}
    kept = {"state_key": state_key.hex(), "task": "t_1", "round": 3, "sealed": snapshot.hex()}
    return {
        "about": "sender's identity key (32), mailbox key (32), certificate (81), Ed25519 signature (64), ephemeral "
        "X25519 key (32), nonce (12), AES-256-GCM ciphertext under HKDF-SHA256 of the shared secret. The signature is "
        "over the domain tag of 'signed keyring envelope', task, recipient's key, the first 145 bytes, and all that "
        "follows the signature.",
        "envelopes": [
            {**opened, "body": body.hex(), "sender": sender_key.public_key().public_bytes_raw().hex()},
            {**opened, "task": "t_2", "error": "EnvelopeError"},
            {**opened, "envelope": flipped.hex(), "error": "EnvelopeError"},
            {**opened, "envelope": altered.hex(), "error": "EnvelopeError"},
        ],
        "snapshots": [
            {**kept, "state": state.hex(), "chain": chain.encode().hex()},
            {**kept, "round": 4, "error": "EnvelopeError"},
            {**kept, "sealed": flipped_snapshot.hex(), "error": "EnvelopeError"},
        ],
    }
