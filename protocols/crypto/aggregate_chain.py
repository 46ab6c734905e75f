"""The chain of the aggregates that a member has absorbed, and other members' signed statements of it.

A server could hand different members different aggregates, or a model that does not follow from them. So each member
keeps a digest over all aggregates that it downloaded, whether they opened or not, and states it in the header
Aggregate-Chain of its next contribution, which its request signature covers. Where the server makes the snapshots
(sums that anyone can open), the digest also covers the state after each round, which members compute themselves. The
contributions of a round thus state what its members hold of all rounds before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from protocols.codec import exact
from protocols.crypto.http_signature import SignedRequest, verify_request
from protocols.crypto.keys import DIGEST_BYTES, digest
from protocols.errors import SignatureError

AGGREGATE_CHAIN: Final = "aggregate-chain"
"""The header of a contribution that states the chain, in lower case; its value is 64 hexadecimal digits."""
CHAIN_BYTES: Final = 2 * DIGEST_BYTES
_REMEMBERED: Final = 1024
"""Statements whose verification is remembered: those of a few rounds, about 1 MB."""


@dataclass(frozen=True)
class AggregateChain:
    """What a member has absorbed after a completed round: `digest`, 32 bytes."""

    before: bytes
    """The digest before that round, 32 bytes, which the contributions to that round state.

    Both are equal before the first completed round. Neither is secret.
    """
    digest: bytes

    @classmethod
    def first(cls, task_id: str) -> AggregateChain:
        """Return the chain of a task without a completed round."""
        first = first_chain(task_id)
        return cls(first, first)

    @classmethod
    def decode(cls, body: bytes) -> AggregateChain:
        """Return the chain whose encoding is `body`; `CodecError` unless that has `CHAIN_BYTES` bytes."""
        exact(body, CHAIN_BYTES, "an aggregate chain")
        return cls(body[:DIGEST_BYTES], body[DIGEST_BYTES:])

    def encode(self) -> bytes:
        """Return the encoding, `CHAIN_BYTES` bytes."""
        return self.before + self.digest

    def extended(self, round_number: int, aggregate: bytes, state_digest: bytes = b"") -> AggregateChain:
        """Return the chain after the completed round `round_number`, whose aggregate is `aggregate`.

        state_digest: see `extend_chain`.
        """
        aggregate_digest = hashlib.sha256(aggregate).digest()
        return AggregateChain(self.digest, extend_chain(self.digest, round_number, aggregate_digest, state_digest))


def first_chain(task_id: str) -> bytes:
    """Return the digest, 32 bytes, that members of a task state before its first completed round."""
    return digest("aggregate chain", task_id)


def extend_chain(before: bytes, round_number: int, aggregate_digest: bytes, state_digest: bytes = b"") -> bytes:
    """Return the digest after a completed round, 32 bytes.

    before: the digest before it. aggregate_digest: SHA-256 of the aggregate's bytes, 32 bytes. state_digest: SHA-256 of
    the encoded state after the round, where anyone can open the sums; empty where only members can.
    """
    return digest("aggregate chain link", before, round_number, aggregate_digest, state_digest)


@dataclass(frozen=True)
class StatedChain:
    """The signed components of a contribution's request, as another member gets them from the server."""

    client_id: str
    method: str
    """PUT, or PATCH for a chunk."""
    authority: str
    """Host and port that it was signed for."""
    fields: Mapping[str, str]
    """The covered header fields by lower-case name."""
    signature_input: str
    signature: str
    """The two fields of the signature."""


def stated_chain(stated: StatedChain, identity_key: bytes, task_id: str, round_number: int) -> tuple[bytes, int]:
    """Return the chain, 32 bytes, that a client stated with its contribution to a round of a task, and when it did.

    identity_key: the client's Ed25519 public key, 32 bytes. The time is in seconds since the epoch. The path is
    computed here, so that a statement of another task or round does not verify. Raises `SignatureError` for a statement
    that this client did not sign for this round.
    """
    path = f"/v1/tasks/{task_id}/rounds/{round_number}/contributions/{stated.client_id}"
    if stated.method not in ("PUT", "PATCH"):
        raise SignatureError("a contribution is sent with PUT or PATCH")
    components = stated.method, stated.authority, path, tuple(stated.fields.items())
    created = _verified(identity_key, stated.client_id, components, stated.signature_input, stated.signature)
    try:
        chain = bytes.fromhex(stated.fields.get(AGGREGATE_CHAIN, ""))
    except ValueError:
        chain = b""
    if len(chain) != DIGEST_BYTES:
        raise SignatureError("the contribution states no aggregate chain")
    return chain, created


@lru_cache(maxsize=_REMEMBERED)
def _verified(
    identity_key: bytes,
    client_id: str,
    components: tuple[str, str, str, tuple[tuple[str, str], ...]],
    signature_input: str,
    signature: str,
) -> int:
    """Return when a statement was signed, as `verify_request` does.

    components: method, authority, path and fields. All arguments are public, and the result depends on nothing else.
    Clients that run in one process, a fleet or a simulation, look at the same statements, and verify each once.
    """
    method, authority, path, fields = components
    request = SignedRequest(method, authority, path, "", dict(fields))
    return verify_request(identity_key, client_id, request, signature_input, signature)
