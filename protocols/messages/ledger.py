"""The ledger of released sums: over how many clients each one is, and whether the requesting client is in it."""

from __future__ import annotations

from pydantic import Field

from protocols.messages.base import HexDigest, Message

__all__ = ["LedgerEntry", "LedgerPage"]


class LedgerEntry(Message):
    """One released sum of a task."""

    round: int = Field(ge=1, description="Number of the round that released it.")
    step: int = Field(ge=1, description="Index of the sum among the task's sums, from 1.")
    recipe: str = Field(description="Name of the recipe: what was summed.")
    mechanism: str = Field(description="Name of the mechanism: how it was summed.")
    data_set: str | None = Field(description="Label of the data that the task sums; null when the operator gave none.")
    survivors: int = Field(ge=1, description="Clients whose contributions are in the sum.")
    survivors_digest: HexDigest = Field(
        description="SHA-256 (hex) over the survivors' identity keys: equal for sums over the same clients in any task."
    )
    released_at: float = Field(description="Seconds since 1970, by the server's clock.")
    contribution_digest: HexDigest | None = Field(
        default=None,
        description="SHA-256 (hex) of this client's contribution to the sum; null if it has none, and for operators.",
    )


class LedgerPage(Message):
    """Released sums by round. While `more` is true, request the next page with `after` set to the last round."""

    entries: list[LedgerEntry]
    more: bool
