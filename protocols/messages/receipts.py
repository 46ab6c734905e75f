"""Receipts: what a server signs of a contribution and of a round that is over, and the file that a member shows."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from protocols.crypto.merkle import LONGEST_PATH
from protocols.messages.base import HexDigest, Key32, Message, Signature64
from protocols.messages.tasks import OrganiserPin

LONGEST_RECEIPT: Final = 1 << 16  # bytes of a receipt's JSON
LONGEST_AUDIENCE: Final = 200

TaskIdText = Annotated[str, Field(min_length=1, max_length=40)]
RoundNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Release(Message):
    """What a server signed of a round that is over: who is in its sum, and which sum it released."""

    task_id: TaskIdText
    round: RoundNumber
    sum_index: RoundNumber = Field(description="Index of the sum among the task's sums, from 1.")
    survivors: int = Field(ge=0, le=2**31 - 1, description="Clients whose contributions are in the sum; 0: it failed.")
    survivors_digest: HexDigest = Field(
        description="Root (hex) of the tree of RFC 9162 over the survivors' leaves in ascending order."
    )
    aggregate_digest: HexDigest | None = Field(description="SHA-256 (hex) of the aggregate; null: the round failed.")
    signature: Signature64 = Field(description="Ed25519 of the task's receipt key.")


class Place(Message):
    """A leaf of the tree over the survivors of a round, and the hashes that lead from it to the root."""

    leaf: HexDigest = Field(description="Digest of a survivor's identity key.")
    index: int = Field(ge=0, le=2**31 - 1, description="From 0, in ascending order of the leaves.")
    path: list[HexDigest] = Field(max_length=LONGEST_PATH, description="The lowest hash first.")


class RoundReceipt(Message):
    """What a server says of one member's contribution to a round that is over."""

    release: Release
    places: list[Place] = Field(
        max_length=2,
        description="The member's own place. If it is not among the survivors, those between which it would be.",
    )


class Acknowledged(Message):
    """The contribution that a server signed to have stored."""

    task_id: TaskIdText
    round: RoundNumber
    digest: HexDigest = Field(description="SHA-256 (hex) of what was uploaded.")
    bytes: int = Field(ge=0, le=2**53 - 1)
    signature: Signature64 = Field(description="Ed25519 of the task's receipt key.")


class Receipt(Message):
    """The file that a member shows to a third party. It holds no secret, and nothing of a contribution but its digest.

    `protocols.receipts` says what it proves, and what not.
    """

    format: Literal["hushrec receipt 1"] = "hushrec receipt 1"
    server_key: Key32 = Field(description="The task's receipt key, Ed25519.")
    identity_key: Key32 = Field(description="The member's identity key, Ed25519.")
    mailbox_key: Key32 = Field(description="Name of the member's sealing key, which its certificate covers too.")
    organiser: OrganiserPin | None = Field(description="Who certified the member; null: nobody.")
    certificate: str | None = Field(max_length=200, description="Membership certificate, base64url; null: none.")
    acknowledged: Acknowledged
    round: RoundReceipt | None = Field(description="Null: the server has not said how the round ended.")
    audience: str = Field(max_length=LONGEST_AUDIENCE, description="To whom the member shows it, or why; may be empty.")
    signature: Signature64 = Field(description="Ed25519 of the member over everything else.")
