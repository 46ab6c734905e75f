"""Helpers of the attack tests: removing a defence, and what a server can reconstruct from all messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import pytest

from protocols.crypto.keys import public_key
from protocols.errors import CodecError
from protocols.sums.masked import shamir
from protocols.sums.masked.keys import seed_commitment
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.shares import point
from protocols.sums.masked.wire import split_slots
from tests.protocols.sums.masked.rounds import Round

__all__ = ["DEFENDED", "VICTIM", "Patch", "always_true", "secrets_of"]

DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
Patch = pytest.MonkeyPatch
VICTIM = "c_000"


def always_true(*_: object) -> bool:
    return True


def secrets_of(
    played: Round, replies: dict[str, list[bytes]], victim: str, told: Mapping[str, Iterable[bytes]] | None = None
) -> tuple[bool, bool]:
    """Return whether the server can reconstruct the victim's seed, and its mask key, from all messages.

    told: shares of the victim's secrets that colluding clients gave to the server.
    """
    place, entry = played.roster.index(victim), played.roster.entries[played.roster.index(victim)]
    held: list[tuple[int, bytes]] = []
    for holder, bodies in replies.items():
        slot = played.roster.neighbours_of(played.roster.index(holder)).index(place)
        for body in bodies:
            share = split_slots(body, played.roster.degree, SHARE_BYTES, "a reply")[slot]
            held += [(point(played.roster.index(holder)), share)] if share else []
    for holder, shares in (told or {}).items():
        held += [(point(played.roster.index(holder)), share) for share in shares]

    def found(check: Callable[[bytes], bool]) -> bool:
        for chosen in itertools.combinations(held, played.roster.threshold):
            if len(dict(chosen)) == len(chosen):
                try:
                    if check(shamir.combine(dict(chosen), played.roster.threshold)):
                        return True
                except CodecError:
                    continue
        return False

    return (
        found(lambda secret: seed_commitment(secret) == entry.advertised.commitment),
        found(lambda secret: public_key(secret) == entry.advertised.mask_key),
    )
