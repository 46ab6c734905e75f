"""Taking the masks off a sum: pure functions from values to values, run in worker processes.

One worker takes all of them off (`Masks.take_off`), or several find a correction each (`Masks.split`,
`SomeMasks.correction`), which are merged with the sum as the partial sums they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols.sums.base import Buffer
from protocols.sums.masked import server
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.roster import open_roster
from protocols.sums.masked.server import BadShare

__all__ = ["Masks", "SomeMasks"]


@dataclass(frozen=True)
class Masks:
    """What takes the masks off a round's partial sum. Sets are client ids; bodies are what clients sent."""

    context: RoundContext
    roster: bytes = field(repr=False)
    sharers: tuple[str, ...] = field(repr=False)
    survivors: tuple[str, ...] = field(repr=False)
    replies: Mapping[str, bytes] = field(repr=False)
    threads: int = 1

    def take_off(self, partial: Buffer) -> tuple[bytes, tuple[BadShare, ...]]:
        """The partial sum without masks, and the shares that were wrong. `ThresholdError`: too few good replies."""
        roster = open_roster(self.context, self.roster)
        found = server.unmask(roster, self.sharers, self.survivors, self.replies, self.threads)
        return MASKED.correct(self.context.plan, partial, found.correction), found.bad_shares

    def split(self, workers: int, least_bytes: int, threads: int) -> tuple[SomeMasks, ...]:
        """The masks in at most `workers` parts, each with the shares of its own owners alone and with `threads`.

        Every part has at least `least_bytes` of mask streams to make; one part when there is not enough for two.
        `ThresholdError` when a secret has too few replies.
        """
        roster = open_roster(self.context, self.roster)
        held = server.collect_shares(roster, self.sharers, self.survivors, self.replies)
        masks = server.count_masks(roster, self.survivors, held)
        parts = min(workers, masks * self.context.plan.partial_bytes // least_bytes)
        return tuple(
            SomeMasks(self.context, self.roster, self.sharers, self.survivors, group, threads)
            for group in server.split_shares(roster, self.survivors, held, max(1, parts))
        )


@dataclass(frozen=True)
class SomeMasks:
    """Some of a round's masks, as `Masks`; `held` are the shares of the secrets that they come from."""

    context: RoundContext
    roster: bytes = field(repr=False)
    sharers: tuple[str, ...] = field(repr=False)
    survivors: tuple[str, ...] = field(repr=False)
    held: server.HeldShares = field(repr=False)
    threads: int = 1

    def correction(self) -> tuple[bytes, tuple[BadShare, ...]]:
        """What takes them off, as a partial sum of no contributions, and the shares that were wrong."""
        roster = open_roster(self.context, self.roster)
        found = server.unmask_shares(roster, self.sharers, self.survivors, self.held, self.threads)
        return MASKED.correct(self.context.plan, None, found.correction), found.bad_shares
