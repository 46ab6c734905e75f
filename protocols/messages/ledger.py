"""The ledger of released sums: which there are, over how many clients, and which contain one's own data."""

from __future__ import annotations

from pydantic import Field

from protocols.messages.base import Message

__all__ = ["LedgerEntry", "LedgerPage"]


class LedgerEntry(Message):
    """One released sum of a task."""

    round: int = Field(ge=1)
    step: int = Field(ge=1, description="Which of the task's sums it is.")
    recipe: str = Field(description="What was summed.")
    mechanism: str = Field(description="How it was summed.")
    data_set: str | None = Field(description="Label of the data that the task sums, where its operator gave one.")
    survivors: int = Field(ge=1, description="Clients whose contributions are in the sum.")
    survivors_digest: str = Field(
        description="SHA-256 (hex) over their identity keys: equal for sums over the same clients, in any task."
    )
    released_at: float = Field(description="Seconds since 1970, by the server's clock.")
    contribution_digest: str | None = Field(
        default=None, description="SHA-256 (hex) of the asking client's contribution to it."
    )


class LedgerPage(Message):
    """Released sums in order of their rounds; while there are `more`, ask again after the last one's round."""

    entries: list[LedgerEntry]
    more: bool
