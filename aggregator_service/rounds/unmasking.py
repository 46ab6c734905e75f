"""Taking the masks off a sum: a pure function from values to values, run in a worker process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols.sums.base import Buffer
from protocols.sums.masked import server
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.roster import open_roster
from protocols.sums.masked.server import BadShare

__all__ = ["Masks"]


@dataclass(frozen=True)
class Masks:
    """What takes the masks off a round's partial sum. Sets are client ids; bodies are what clients sent."""

    context: RoundContext
    roster: bytes = field(repr=False)
    sharers: tuple[str, ...] = field(repr=False)
    survivors: tuple[str, ...] = field(repr=False)
    replies: Mapping[str, bytes] = field(repr=False)

    def take_off(self, partial: Buffer) -> tuple[bytes, tuple[BadShare, ...]]:
        """The partial sum without masks, and the shares that were wrong. `ThresholdError`: too few good replies."""
        roster = open_roster(self.context, self.roster)
        threads = os.cpu_count() or 1
        found = server.unmask(roster, self.sharers, self.survivors, self.replies, threads)
        return MASKED.correct(self.context.plan, partial, found.correction), found.bad_shares
