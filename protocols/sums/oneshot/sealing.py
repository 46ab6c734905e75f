"""Shares sealed from a client to a member of the committee, and what the client signs.

X25519 between the client's ephemeral key of the upload and the member's key of the round, then HKDF bound to round,
committee, client and member, then AES-256-GCM. The key is for one message, so the nonce is fixed. A share opens only
for the member, client, task, step, round and model that it was made for. Who made it, the client's signature says.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from protocols.crypto.domain import derive_key, domain_tag
from protocols.crypto.keys import agree
from protocols.errors import CodecError
from protocols.sums.oneshot.committee import Committee
from protocols.sums.oneshot.wire import Statement

__all__ = ["open_share", "seal_share", "signed_statement", "signed_sum", "signed_survivors"]

_NONCE: Final = bytes(12)


def seal_share(
    share: NDArray[np.uint32], secret: X25519PrivateKey, committee: Committee, place: int, client_id: str
) -> bytes:
    """Return the share sealed for the member at `place`, `plan.sealed_bytes` bytes; `secret`: the ephemeral key."""
    shared = agree(secret, committee.members[place].round_key)
    ephemeral = secret.public_key().public_bytes_raw()
    cipher, associated = _cipher(shared, committee, place, client_id, ephemeral)
    return cipher.encrypt(_NONCE, share.astype("<u4").tobytes(), associated)


def open_share(
    sealed: bytes, secret: X25519PrivateKey, committee: Committee, place: int, client_id: str, ephemeral: bytes
) -> NDArray[np.uint32] | None:
    """Return the share, uint32 (N,), or None if it does not open or is no share; `secret`: the member's round key."""
    plan = committee.context.plan
    try:
        shared = agree(secret, ephemeral)
        cipher, associated = _cipher(shared, committee, place, client_id, ephemeral)
        share = np.frombuffer(cipher.decrypt(_NONCE, sealed, associated), "<u4")
    except (CodecError, InvalidTag, ValueError):
        return None
    fits = share.size == plan.ring.degree and int(share.max()) < plan.ring.primes[0]
    return share.astype(np.uint32, copy=False) if fits else None


def _cipher(shared: bytes, committee: Committee, place: int, client_id: str, ephemeral: bytes) -> tuple[AESGCM, bytes]:
    bound = (committee.digest, committee.members[place].member_id, client_id, ephemeral)
    return AESGCM(derive_key(shared, "oneshot share", *bound)), domain_tag("oneshot share", *bound)


def signed_statement(committee: Committee, statement: Statement) -> bytes:
    """Return the bytes that a client signs: the round, the committee, and digests of all that it sends."""
    return domain_tag(
        "oneshot upload",
        committee.digest,
        statement.client_id,
        statement.ephemeral_key,
        statement.contribution_digest,
        *statement.share_digests,
    )


def signed_survivors(committee: Committee, survivors: bytes) -> bytes:
    """Return the bytes that a member signs to confirm the set of survivors with digest `survivors`."""
    return domain_tag("oneshot survivors", committee.digest, survivors)


def signed_sum(committee: Committee, survivors: bytes, member_id: str, share: bytes) -> bytes:
    """Return the bytes that a member signs with its summed share."""
    return domain_tag("oneshot summed share", committee.digest, survivors, member_id, share)
