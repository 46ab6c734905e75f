"""The committee of a task with one-shot sums, and reports of sealed shares that do not open."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from protocols.messages.base import HexDigest, Message

__all__ = ["COMMITTEE_KEYS_AHEAD", "MOST_BAD_SHARES", "BadShares", "CommitteeMemberView", "CommitteeView"]

COMMITTEE_KEYS_AHEAD: Final = 8
"""A member of the committee may publish the keys of so many rounds that have not opened."""
MOST_BAD_SHARES: Final = 1000
"""Clients that one request may name. A member that finds more names them in further requests."""


class CommitteeMemberView(Message):
    """A member of the committee, and what it has published."""

    client_id: str
    keys: list[int] = Field(description="Numbers of the rounds, the newest and later ones, whose key it has published.")
    in_round: bool = Field(description="Whether it is in the committee of the newest round.")
    answered: list[str] = Field(description="Messages of the newest round that it has sent: confirm, unmask.")


class CommitteeView(Message):
    """The committee of a task. A round opens when `needed` members have published its key."""

    needed: int = Field(ge=0, description="Members that a round needs; 0 if the mechanism has no committee.")
    threshold: int = Field(ge=0, description="Members that must confirm and unmask; 0 without a committee.")
    next_round: int = Field(ge=1, description="Number of the next round to open.")
    members: list[CommitteeMemberView] = Field(description="Enrolled members that are not revoked, by enrolment.")


class BadShares(Message):
    """Clients whose sealed shares do not open: for a neighbour in a masked round, or a member of the committee."""

    survivors_digest: HexDigest | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="One-shot: the proposed set, as `survivors_digest` of the round's view names it. Masked: null.",
    )
    clients: list[Annotated[str, Field(max_length=40)]] = Field(
        min_length=1, max_length=MOST_BAD_SHARES, description="Ids of clients of that set, or of neighbours."
    )
