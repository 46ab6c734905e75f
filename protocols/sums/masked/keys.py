"""Keys of one masked round: what is derived from X25519 agreement, and what clients sign.

A client makes two X25519 keys per round. The sealing key is for the encryption of shares, the mask key for the masks
that it has in common with each neighbour. They are separate because the mask key of a client that drops out is
reconstructed by the server, which must not be able to decrypt the shares that were sent to that client.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.crypto.domain import derive_key, digest, domain_tag
from protocols.crypto.keys import agree, clamped, public_key, verifies
from protocols.sums.masked.plan import RoundContext
from protocols.sums.masked.wire import Advertisement, decode_advertisement

__all__ = [
    "is_mask_secret",
    "pair_mask_key",
    "seed_commitment",
    "mask_context",
    "sign_advertisement",
    "verify_advertisement",
    "sign_survivors",
    "verify_survivors",
]


def is_mask_secret(secret: bytes, public: bytes) -> bool:
    """Return whether `secret` (32 bytes) is exactly the mask key whose public key is `public`."""
    return secret == clamped(secret) and public_key(secret) == public


def pair_mask_key(secret: X25519PrivateKey, own: bytes, peer: bytes) -> bytes:
    """Return the key (32 bytes) of the mask that the owner of `secret` (public key `own`) has in common with `peer`."""
    return derive_key(agree(secret, peer), "masked pair", *sorted((own, peer)))


def seed_commitment(seed: bytes) -> bytes:
    """Return the commitment (32 bytes) to a self-mask seed (32 bytes): hiding and binding."""
    return digest("masked seed commitment", seed)


def mask_context(context: RoundContext, roster_digest: bytes, sharers: bytes) -> bytes:
    """Return the context (32 bytes) of every mask stream of a round; clients with different inputs share no mask.

    sharers: the encoded set of clients that sent shares, as places in the roster with digest `roster_digest`.
    """
    return digest("masked stream", context.binding, roster_digest, sharers)


def _advertised(context: RoundContext, client_id: str, mask_key: bytes, sealing_key: bytes, commitment: bytes) -> bytes:
    return domain_tag("masked advertisement", context.binding, client_id, mask_key, sealing_key, commitment)


def sign_advertisement(
    identity: Ed25519PrivateKey, context: RoundContext, client_id: str, mask_key: bytes, sealing_key: bytes, seed: bytes
) -> Advertisement:
    """Return the advertisement of two public keys and the commitment to `seed`, signed for this round and client."""
    commitment = seed_commitment(seed)
    signature = identity.sign(_advertised(context, client_id, mask_key, sealing_key, commitment))
    return Advertisement(mask_key, sealing_key, commitment, signature)


def verify_advertisement(context: RoundContext, client_id: str, identity_key: bytes, body: bytes) -> bool:
    """Return whether the owner of `identity_key` (Ed25519, 32 bytes) signed the advertisement `body` for this round."""
    parts = decode_advertisement(body)
    message = _advertised(context, client_id, parts.mask_key, parts.sealing_key, parts.commitment)
    return verifies(identity_key, parts.signature, message)


def _confirmed(context: RoundContext, roster_digest: bytes, sharers: bytes, survivors: bytes) -> bytes:
    return domain_tag("masked survivors", context.binding, roster_digest, sharers, survivors)


def sign_survivors(
    identity: Ed25519PrivateKey, context: RoundContext, roster_digest: bytes, sharers: bytes, survivors: bytes
) -> bytes:
    """Return the confirmation (64 bytes) of one encoded set of survivors."""
    return identity.sign(_confirmed(context, roster_digest, sharers, survivors))


def verify_survivors(
    identity_key: bytes,
    signature: bytes,
    context: RoundContext,
    roster_digest: bytes,
    sharers: bytes,
    survivors: bytes,
) -> bool:
    """Return whether `signature` is the confirmation of exactly this set by the owner of `identity_key`."""
    return verifies(identity_key, signature, _confirmed(context, roster_digest, sharers, survivors))
