"""Remove the masks from a sum: pure functions that run in worker processes.

One worker removes all of them (`Masks.remove_from`), or several compute a correction each (`Masks.split`,
`SomeMasks.correction`). Corrections are partial sums, and are merged with the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols.sums.base import Buffer
from protocols.sums.masked import server
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.packing import Ring
from protocols.sums.masked.roster import open_roster
from protocols.sums.masked.server import BadShare

__all__ = ["Masks", "SomeMasks"]


@dataclass(frozen=True)
class Masks:
    """What is needed to remove the masks of a round.

    roster: the encoded roster. shares, replies: the messages by client id. survivors: client ids. threads: how many to
    use.
    """

    context: RoundContext
    roster: bytes = field(repr=False)
    shares: Mapping[str, bytes] = field(repr=False)
    survivors: tuple[str, ...] = field(repr=False)
    replies: Mapping[str, bytes] = field(repr=False)
    threads: int = 1

    @property
    def sharers(self) -> tuple[str, ...]:
        """The ids of the clients that shared."""
        return tuple(self.shares)

    def remove_from(self, partial: Buffer) -> tuple[bytes, tuple[BadShare, ...]]:
        """Return the partial sum without masks, and the wrong shares; raises as `server.unmask`."""
        roster = open_roster(self.context, self.roster)

        def add_to(sums: Ring) -> tuple[BadShare, ...]:
            return server.unmask(roster, self.shares, self.survivors, self.replies, self.threads, sums).bad_shares

        return MASKED.correct_in_place(self.context.plan, partial, add_to)

    def split(self, workers: int, least_bytes: int, threads: int) -> tuple[SomeMasks, ...]:
        """Split the masks into at most `workers` parts, each with the shares of its owners only and with `threads`.

        Every part has at least `least_bytes` of mask streams to make; one part when there are too few for two.
        Raises `ThresholdError` when a secret has too few replies.
        """
        roster = open_roster(self.context, self.roster)
        held = server.collect_shares(roster, self.shares, self.survivors, self.replies)
        masks = server.count_masks(roster, self.survivors, held)
        parts = min(workers, masks * self.context.plan.partial_bytes // least_bytes)
        return tuple(
            SomeMasks(self.context, self.roster, self.sharers, self.survivors, group, threads)
            for group in server.split_shares(roster, self.survivors, held, max(1, parts))
        )


@dataclass(frozen=True)
class SomeMasks:
    """A part of `Masks`. held: the shares of the secrets from which its masks are made."""

    context: RoundContext
    roster: bytes = field(repr=False)
    sharers: tuple[str, ...] = field(repr=False)
    survivors: tuple[str, ...] = field(repr=False)
    held: server.HeldShares = field(repr=False)
    threads: int = 1

    def correction(self) -> tuple[bytes, tuple[BadShare, ...]]:
        """Return the correction that removes these masks, a partial sum of no contributions, and the wrong shares."""
        roster = open_roster(self.context, self.roster)

        def add_to(sums: Ring) -> tuple[BadShare, ...]:
            found = server.unmask_shares(roster, self.sharers, self.survivors, self.held, self.threads, sums)
            return found.bad_shares

        return MASKED.correct_in_place(self.context.plan, None, add_to)
