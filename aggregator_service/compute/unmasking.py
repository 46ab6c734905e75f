"""Remove the masks from a masked or one-shot sum: pure functions that run in worker processes.

Of a masked sum, one job removes all of them (`Masks.remove_from`), or several compute a correction each
(`Masks.split`, `Masks.correction`). Corrections are partial sums, and are merged with the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.masked import server
from protocols.sums.masked.plan import MASKED, RoundContext
from protocols.sums.masked.roster import Roster, open_roster
from protocols.sums.masked.server import BadShare
from protocols.sums.masked.wire import PAIR_BYTES
from protocols.sums.oneshot import server as oneshot_server
from protocols.sums.oneshot.committee import make_committee
from protocols.sums.oneshot.plan import OneshotContext
from protocols.sums.oneshot.wire import CommitteeKey
from protocols.sums.wire import Ring

_MOST_HELD: Final = 2 * 1024 * 1024
"""Bytes of shares of one part: server and worker have them two or three times over while they are passed on."""


@dataclass(frozen=True)
class Masks:
    """What is needed to remove the masks of a round, or a part of them."""

    context: RoundContext
    roster: bytes = field(repr=False)
    """The encoded roster (`Roster.whole`)."""
    sharers: tuple[str, ...] = field(repr=False)
    """Client ids."""
    survivors: tuple[str, ...] = field(repr=False)
    """Client ids."""
    held: server.HeldShares = field(repr=False)
    """The shares of the secrets from which the masks are made, of all owners or of some."""
    threads: int = 1
    """How many to use."""

    def remove_from(self, partial: Buffer) -> tuple[bytes, tuple[BadShare, ...]]:
        """Return the partial sum without masks, and the wrong shares; raises as `server.unmask`."""
        roster = open_roster(self.context, self.roster)
        return _removed(roster, partial, self.held, self.sharers, self.survivors, self.threads)

    def split(self, workers: int, least_bytes: int, threads: int, most_held: int = 0) -> tuple[Masks, ...]:
        """Split the masks into parts, each with the shares of its owners only and with `threads`.

        There are at most `workers` parts, each with at least `least_bytes` of mask streams to make, but more where a
        part would have more than about `most_held` bytes of shares. 0: as many as keep its shares below 2 MiB, or below
        what each part has besides, the roster and a correction.
        """
        roster = open_roster(self.context, self.roster)
        masks = server.count_masks(roster, self.survivors, self.held)
        parts = min(workers, masks * self.context.plan.partial_bytes // least_bytes)
        held = sum(
            one.shares.nbytes + one.commitments.nbytes + PAIR_BYTES * len(one.secrets) for one in self.held.values()
        )
        most = most_held or max(_MOST_HELD, len(self.roster), self.context.plan.partial_bytes)
        groups = server.split_shares(roster, self.survivors, self.held, max(1, parts, -(-held // most)))
        return tuple(replace(self, held=group, threads=threads) for group in groups)

    def correction(self) -> tuple[bytes, tuple[BadShare, ...]]:
        """Return the correction that removes these masks, a partial sum of no contributions, and the wrong shares."""
        roster = open_roster(self.context, self.roster)
        return _removed(roster, None, self.held, self.sharers, self.survivors, self.threads)


def _removed(
    roster: Roster,
    partial: Buffer | None,
    held: server.HeldShares,
    sharers: tuple[str, ...],
    survivors: tuple[str, ...],
    threads: int,
) -> tuple[bytes, tuple[BadShare, ...]]:
    """Return the partial sum, of each group, without the masks of these owners, and the wrong shares."""

    def add_to(sums: Ring, group: int) -> tuple[BadShare, ...]:
        own = roster.of_group(held, group)
        return server.unmask_shares(roster, sharers, survivors, own, threads, sums).bad_shares

    corrected, wrong = MASKED.correct(roster.context.plan, partial, add_to)
    return corrected, tuple(chain.from_iterable(wrong))


class SumUnopenedError(Exception):
    """The masks do not come off, or what comes out is no sum of honest contributions.

    A client sent values beyond its bounds, a contribution does not match its client's shares, or a summed share is
    wrong.
    """


@dataclass(frozen=True)
class OneshotMasks:
    """What is needed to take the masks off the sum of a round."""

    context: OneshotContext
    keys: tuple[bytes, ...] = field(repr=False)
    """The encoded keys of the committee."""
    survivors: bytes
    """Digest of the set that the committee confirmed."""
    shares: Mapping[str, bytes] = field(repr=False)
    """Member id -> summed share with its signature."""

    def unmask(self, partial: Buffer, contributions: int) -> tuple[bytes, tuple[str, ...]]:
        """Return the aggregate, and the ids of members whose summed shares are wrong.

        Raises `SumUnopenedError` when no sum comes out that `contributions` contributions can have.
        """
        committee = make_committee(self.context, map(CommitteeKey.decode, self.keys), lambda _: True)
        shares = {
            member_id: oneshot_server.check_summed_share(committee, member_id, self.survivors, body)
            for member_id, body in self.shares.items()
        }
        try:
            found = oneshot_server.unmask(committee, partial, contributions, shares)
        except CodecError as error:
            raise SumUnopenedError(str(error)) from error
        return found.aggregate, found.wrong
