"""The messages of a one-shot round as bytes. All lengths follow from the plan.

    committee key   member -> all      (c of them; ahead of the round)
    upload          client -> server   ticket || contribution
    statement       server -> member   what a client signed; with the member's sealed share
    confirmation    member -> server   signature of one set of survivors, 64 bytes
    summed share    member -> server   residues (uint32 little-endian, N of each group), then a signature, 64 bytes

A ticket is the client's ephemeral X25519 key (32), its signature (64) and one sealed share (4 N + 1,104) for each
member of the committee in order. A contribution is K planes of m residues, uint32 little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Final

from protocols.codec import LONGEST_ID, Reader, exact, join_named, split_named
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.keys import DIGEST_BYTES, KEY_BYTES, SIGNATURE_BYTES, digest
from protocols.sums.base import Buffer
from protocols.sums.oneshot.plan import KEY_LENGTHS, OneshotPlan, key_bytes

LONGEST_KEY: Final = key_bytes(LONGEST_ID)
"""Length in bytes of the longest encoded committee key."""


def body_digest(body: Buffer) -> bytes:
    """Return the SHA-256 of a body, 32 bytes: the digest that the service computes of every upload anyway."""
    return sha256(body).digest()


@dataclass(frozen=True)
class CommitteeKey:
    """A member's key for one round, which its identity signed; see `protocols.sums.oneshot.committee`."""

    member_id: str
    """1 to 64 bytes of UTF-8."""
    identity_key: bytes
    """Ed25519."""
    mailbox_key: bytes
    """Name of a sealing key, 32 bytes each."""
    certificate: bytes
    """The organiser's, for the role "committee", 81 bytes, zeros for none."""
    round_key: bytes
    """A public sealing key, 1,216 bytes."""
    signature: bytes
    """Ed25519, 64 bytes."""

    def encode(self) -> bytes:
        """Return the id behind its length (1 byte), then the fields in order; `ParameterError` for wrong lengths."""
        fields = (self.identity_key, self.mailbox_key, self.certificate, self.round_key, self.signature)
        return join_named(self.member_id, fields, KEY_LENGTHS)

    @classmethod
    def decode(cls, body: Buffer) -> CommitteeKey:
        """Inverse of `encode`; `CodecError` for any other form."""
        reader = Reader(body)
        name, parts = split_named(reader, KEY_LENGTHS)
        reader.finish()
        return cls(name, *parts)


@dataclass(frozen=True)
class Ticket:
    """What a client sends besides its contribution: ephemeral key (32), signature (64), a sealed share a member."""

    ephemeral_key: bytes
    signature: bytes
    sealed: tuple[bytes, ...] = field(repr=False)

    def encode(self) -> bytes:
        """Return `plan.ticket_bytes` bytes."""
        return self.ephemeral_key + self.signature + b"".join(self.sealed)

    @classmethod
    def decode(cls, plan: OneshotPlan, body: Buffer) -> Ticket:
        """Inverse of `encode`; `CodecError` for another length."""
        view = exact(body, plan.ticket_bytes, "the ticket of a one-shot upload")
        head, size = KEY_BYTES + SIGNATURE_BYTES, plan.sealed_bytes
        sealed = tuple(bytes(view[start : start + size]) for start in range(head, view.nbytes, size))
        return cls(bytes(view[:KEY_BYTES]), bytes(view[KEY_BYTES:head]), sealed)


@dataclass(frozen=True)
class Upload:
    """A client's only message of a round."""

    ticket: Ticket
    contribution: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the ticket, then the contribution."""
        return self.ticket.encode() + self.contribution

    @staticmethod
    def split(plan: OneshotPlan, body: Buffer) -> tuple[memoryview, memoryview]:
        """Return views of the ticket and of the contribution in an upload; `CodecError` for another length."""
        length = plan.ticket_bytes + plan.body_bytes
        view = exact(body, length, "a one-shot upload")
        return view[: plan.ticket_bytes], view[plan.ticket_bytes :]


@dataclass(frozen=True)
class Statement:
    """What a client signed: its ephemeral key, and the digests of its contribution and of every sealed share.

    Members of the committee get it with the client's keys and certificate, and need nothing else of an upload.
    """

    client_id: str
    identity_key: bytes
    mailbox_key: bytes
    certificate: bytes
    ephemeral_key: bytes
    contribution_digest: bytes
    share_digests: tuple[bytes, ...]
    signature: bytes

    def encode(self) -> bytes:
        """Return the id behind its length (1 byte), then the fields in order; `ParameterError` for wrong lengths."""
        keys = (self.identity_key, self.mailbox_key, self.certificate, self.ephemeral_key, self.contribution_digest)
        fields = (*keys, *self.share_digests, self.signature)
        return join_named(self.client_id, fields, _statement_lengths(len(self.share_digests)))

    @classmethod
    def read(cls, plan: OneshotPlan, reader: Reader) -> Statement:
        """Return the next statement of `reader`; `CodecError` for any other form."""
        name, parts = split_named(reader, _statement_lengths(plan.committee))
        identity, mailbox, certificate, ephemeral, contribution, *share_digests, signature = parts
        return cls(name, identity, mailbox, certificate, ephemeral, contribution, tuple(share_digests), signature)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that identify the statement."""
        return digest("oneshot statement", self.encode())


def _statement_lengths(shares: int) -> tuple[int, ...]:
    """Return the lengths of the fields of a statement after the id."""
    before = (KEY_BYTES, KEY_BYTES, CERTIFICATE_BYTES, KEY_BYTES, DIGEST_BYTES)
    return (*before, *(DIGEST_BYTES,) * shares, SIGNATURE_BYTES)


def survivors_digest(statements: Iterable[Statement]) -> bytes:
    """Return the digest (32 bytes) of a set of survivors: of their statements, in ascending order of ids."""
    ordered = sorted((statement.client_id, statement.digest) for statement in statements)
    return digest("oneshot survivors", len(ordered), b"".join(one for _, one in ordered))
