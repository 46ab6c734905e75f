"""Take the masks off a one-shot sum: a pure function that runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.oneshot.committee import make_committee
from protocols.sums.oneshot.context import OneshotContext
from protocols.sums.oneshot.messages import CommitteeKey
from protocols.sums.oneshot.server import check_summed_share, unmask

__all__ = ["OneshotMasks", "SumUnopenedError"]


class SumUnopenedError(Exception):
    """The masks do not come off: a client's contribution does not match its shares, or a summed share is wrong."""


@dataclass(frozen=True)
class OneshotMasks:
    """What is needed to take the masks off the sum of a round.

    keys: the encoded keys of the committee. survivors: digest of the set that the committee confirmed. shares: member
    id -> summed share with its signature.
    """

    context: OneshotContext
    keys: tuple[bytes, ...] = field(repr=False)
    survivors: bytes
    shares: Mapping[str, bytes] = field(repr=False)

    @property
    def members(self) -> tuple[str, ...]:
        """The ids of the members that sent a summed share."""
        return tuple(self.shares)

    def unmask(self, partial: Buffer, contributions: int) -> tuple[bytes, tuple[str, ...]]:
        """Return the aggregate, and the ids of members whose summed shares are wrong.

        Raises `SumUnopenedError` when no sum comes out that `contributions` contributions can have.
        """
        committee = make_committee(self.context, map(CommitteeKey.decode, self.keys), lambda _: True)
        shares = {
            member_id: check_summed_share(committee, member_id, self.survivors, body)
            for member_id, body in self.shares.items()
        }
        try:
            found = unmask(committee, partial, contributions, shares)
        except CodecError as error:
            raise SumUnopenedError(str(error)) from error
        return found.aggregate, found.wrong
