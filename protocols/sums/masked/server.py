"""The server of a masked round: checks what arrives, hands it on, and takes the masks off the sum. All functions pure.

Sets of clients are collections of client ids. After each stage a check says whether the round can still end with a sum
(`ThresholdError` when it cannot); contributions are folded as those of every mechanism, block by block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ContributionError, ThresholdError
from protocols.sums.base import Buffer
from protocols.sums.masked import messages
from protocols.sums.masked.agreement import (
    check_public_key,
    mask_context,
    pair_mask_key,
    public_key,
    seed_commitment,
    verify_advertisement,
    verify_survivors,
)
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.masks import Mask, add_masks
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import combine_checked
from protocols.sums.masked.shares import point

__all__ = [
    "BadShare",
    "Unmasking",
    "check_advertisement",
    "check_confirmation",
    "check_confirmed",
    "check_replies",
    "check_reply",
    "check_sharers",
    "check_shares",
    "check_survivors",
    "confirmations",
    "inboxes",
    "unmask",
]


@dataclass(frozen=True)
class BadShare:
    """A share of `owner`'s secret, as `holder` sent it, that does not fit the others: altered by it, or by the owner."""

    owner: str
    holder: str


@dataclass(frozen=True)
class Unmasking:
    """What to add to the sum of the contributions, ring elements (layout.length,), and the shares that were wrong."""

    correction: NDArray[np.unsignedinteger[Any]] = field(repr=False)
    bad_shares: tuple[BadShare, ...]


def check_advertisement(context: RoundContext, client_id: str, identity_key: bytes, body: Buffer) -> None:
    """Raise `ContributionError` unless the client signed these keys for this round and model."""
    raise NotImplementedError


def check_shares(roster: Roster, body: Buffer) -> None:
    """Raise `ContributionError` for another length."""
    raise NotImplementedError


def check_sharers(roster: Roster, sharers: Collection[str]) -> None:
    """Raise `ThresholdError` unless every sharer has t neighbours that shared."""
    raise NotImplementedError


def inboxes(roster: Roster, shares: Mapping[str, Buffer]) -> dict[str, bytes]:
    """For every client that shared, what its neighbours sealed for it."""
    raise NotImplementedError


def check_survivors(roster: Roster, sharers: Collection[str], survivors: Collection[str]) -> None:
    """Raise `ThresholdError` unless every secret that will be needed has t surviving holders."""
    raise NotImplementedError


def check_confirmation(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], client_id: str, body: Buffer
) -> None:
    """Raise `ContributionError` unless the client, a survivor, signed exactly these survivors."""
    raise NotImplementedError


def check_confirmed(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], confirmed: Collection[str]
) -> None:
    """Raise `ThresholdError` unless enough clients will answer."""
    raise NotImplementedError


def confirmations(roster: Roster, confirmed: Mapping[str, bytes]) -> dict[str, bytes]:
    """For every client that confirmed, the signatures of its neighbours."""
    raise NotImplementedError


def check_reply(roster: Roster, body: Buffer) -> None:
    """Raise `ContributionError` for another length."""
    raise NotImplementedError


def check_replies(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], replied: Collection[str]
) -> None:
    """Raise `ThresholdError` unless every secret that is needed has t holders that replied."""
    raise NotImplementedError


def unmask(
    roster: Roster,
    sharers: Collection[str],
    survivors: Collection[str],
    replies: Mapping[str, Buffer],
    threads: int = 1,
) -> Unmasking:
    """Put the secrets together, check them, and sum up the masks that are left in the sum, negated."""
    raise NotImplementedError
