"""Keys of one masked round: X25519 (RFC 7748) agreements, what is derived from them, and what is signed.

A client makes two X25519 keys a round. With the sealing key it agrees on keys that shares travel under; with the mask
key, on the masks it has in common with each neighbour. They are two because the second is given away, in shares, when
its owner drops out, and must then not open the shares that were sealed for it.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from protocols.crypto.domain import derive_key, digest, domain_tag
from protocols.errors import CodecError
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.messages import Advertisement, decode_advertisement

__all__ = [
    "agree",
    "clamped",
    "check_public_key",
    "is_mask_secret",
    "mask_context",
    "pair_mask_key",
    "public_key",
    "seed_commitment",
    "sign_advertisement",
    "sign_survivors",
    "verify_advertisement",
    "verify_survivors",
]

_FIXED: Final = X25519PrivateKey.from_private_bytes(digest("masked key check"))
"""Any private key tells a point of low order; this one is no secret."""


def public_key(secret: bytes) -> bytes:
    """The X25519 public key (32) of a secret key (32)."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def clamped(secret: bytes) -> bytes:
    """The one form (RFC 7748, section 5) of all the 32 bytes that X25519 takes for the same secret key.

    Mask keys are made in it, so that a key put together from shares is right in every bit, or known to be wrong.
    """
    return bytes([secret[0] & 248]) + secret[1:31] + bytes([secret[31] & 127 | 64])


def is_mask_secret(secret: bytes, public: bytes) -> bool:
    """Whether `secret` (32) is exactly the mask key that was advertised as `public`."""
    return secret == clamped(secret) and public_key(secret) == public


def agree(secret: X25519PrivateKey, peer: bytes) -> bytes:
    """The X25519 shared secret (32); `CodecError` for a public key of low order, with which none can be agreed on."""
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise CodecError("an X25519 public key is of low order: no secret can be agreed on with it") from error


def check_public_key(key: bytes) -> None:
    """Raise `CodecError` for a public key with which no secret can be agreed on."""
    agree(_FIXED, key)


def pair_mask_key(secret: X25519PrivateKey, own: bytes, peer: bytes) -> bytes:
    """The key (32) of the mask that the owner of `secret` (its public key is `own`) has in common with `peer`."""
    return derive_key(agree(secret, peer), "masked pair", *sorted((own, peer)))


def seed_commitment(seed: bytes) -> bytes:
    """What a client advertises of its self-mask seed (32): hides it, and tells a wrong one later."""
    return digest("masked seed commitment", seed)


def mask_context(context: RoundContext, roster_digest: bytes, sharers: bytes) -> bytes:
    """What every mask stream of a round is bound to: clients that were told different things share no mask.

    `sharers` is the encoded set of those that masks are shared with (and, with the roster, who they are).
    """
    return digest("masked stream", context.binding(), roster_digest, sharers)


def _advertised(context: RoundContext, client_id: str, mask_key: bytes, sealing_key: bytes, commitment: bytes) -> bytes:
    return domain_tag("masked advertisement", context.binding(), client_id, mask_key, sealing_key, commitment)


def sign_advertisement(
    identity: Ed25519PrivateKey, context: RoundContext, client_id: str, mask_key: bytes, sealing_key: bytes, seed: bytes
) -> Advertisement:
    """The advertisement of two public keys and the commitment of `seed`, signed for this round and this client."""
    commitment = seed_commitment(seed)
    signature = identity.sign(_advertised(context, client_id, mask_key, sealing_key, commitment))
    return Advertisement(mask_key, sealing_key, commitment, signature)


def verify_advertisement(context: RoundContext, client_id: str, identity_key: bytes, body: bytes) -> bool:
    """Whether the owner of `identity_key` (Ed25519, 32) advertised `body` for exactly this round."""
    parts = decode_advertisement(body)
    message = _advertised(context, client_id, parts.mask_key, parts.sealing_key, parts.commitment)
    return _verify(identity_key, parts.signature, message)


def _confirmed(context: RoundContext, roster_digest: bytes, sharers: bytes, survivors: bytes) -> bytes:
    return domain_tag("masked survivors", context.binding(), roster_digest, sharers, survivors)


def sign_survivors(
    identity: Ed25519PrivateKey, context: RoundContext, roster_digest: bytes, sharers: bytes, survivors: bytes
) -> bytes:
    """The confirmation (64) of one encoded set of survivors."""
    return identity.sign(_confirmed(context, roster_digest, sharers, survivors))


def verify_survivors(
    identity_key: bytes,
    signature: bytes,
    context: RoundContext,
    roster_digest: bytes,
    sharers: bytes,
    survivors: bytes,
) -> bool:
    """Whether the owner of `identity_key` confirmed exactly this set."""
    return _verify(identity_key, signature, _confirmed(context, roster_digest, sharers, survivors))


def _verify(identity_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
