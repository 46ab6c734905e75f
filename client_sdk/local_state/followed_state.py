"""A model state that a client has reached, with the chain of the aggregates that led to it."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.crypto.aggregate_chain import AggregateChain
from protocols.recipes.base import ModelState

__all__ = ["FollowedState"]


@dataclass(frozen=True)
class FollowedState:
    """A model state. chain: of the aggregates up to its round; None in tasks whose sums anyone can open.

    from_snapshot: whether another member's snapshot is the source of the chain, or of its beginning.
    """

    state: ModelState
    chain: AggregateChain | None = None
    from_snapshot: bool = False
