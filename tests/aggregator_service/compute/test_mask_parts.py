"""The masks of a sum are removed in parts: several workers share them, and no part has many bytes of shares."""

from __future__ import annotations

import numpy as np

from aggregator_service.compute.unmasking import Masks
from protocols.sums.masked import server
from protocols.sums.masked.plan import MASKED
from protocols.sums.wire import Ring
from tests.protocols.sums.masked.rounds import alter_share, new_round

CLIENTS = 9
LARGE = 2**40


def test_masks_are_split_by_workers_and_by_the_bytes_of_their_shares() -> None:
    """The corrections of the parts, merged, are that of the whole, also with a wrong share; no part is empty."""
    played = new_round(CLIENTS).advertise().share().contribute(without=["c_005"]).confirm().unmask()
    alter_share(played, "c_001", "c_000")
    sharers, survivors = tuple(played.shares), tuple(played.contributions)
    held = server.collect_shares(played.roster, sharers, played.shares.items(), survivors, played.replies)
    masks = Masks(played.context, played.roster.whole, sharers, survivors, held)
    whole, bad_shares = masks.correction()
    assert len(bad_shares) == 1

    def parts(workers: int, least_bytes: int, most_held: int) -> tuple[Masks, ...]:
        found = masks.split(workers, least_bytes, threads=2, most_held=most_held)
        assert sorted(place for part in found for place in part.held) == sorted(held)
        assert all(part.held and part.threads == 2 for part in found)
        made = [part.correction() for part in found]
        assert MASKED.merge(played.context.plan, [correction for correction, _ in made]) == whole
        assert [bad for _, some in made for bad in some] == list(bad_shares)
        return found

    assert len(parts(1, 1, LARGE)) == len(parts(2, LARGE, LARGE)) == 1
    assert len(parts(3, 1, LARGE)) == 3
    assert len(parts(1, LARGE, 1)) == CLIENTS
    shares = sum(one.shares.nbytes + one.commitments.nbytes for one in held.values())
    shares += sum(len(secret) for one in held.values() for secret in one.secrets.values())
    assert [len(parts(1, LARGE, most)) for most in (shares, shares - 1, -(-shares // 4))] == [1, 2, 4]


def test_a_sum_without_its_masks_is_that_of_the_parts() -> None:
    """In one job, and as the partial sum merged with the corrections of the parts."""
    played = new_round(CLIENTS).advertise().share().contribute(without=["c_002"]).confirm().unmask()
    sharers, survivors, plan = tuple(played.shares), tuple(played.contributions), played.context.plan
    held = server.collect_shares(played.roster, sharers, played.shares.items(), survivors, played.replies)
    masks = Masks(played.context, played.roster.whole, sharers, survivors, held)

    def folded(sums: Ring, _: int) -> None:
        np.copyto(sums, np.arange(len(sums), dtype=sums.dtype))

    partial = MASKED.correct(plan, None, folded)[0]
    corrections = [part.correction()[0] for part in masks.split(1, LARGE, 1, most_held=1)]
    assert masks.remove_from(partial)[0] == MASKED.merge(plan, [partial, *corrections])
