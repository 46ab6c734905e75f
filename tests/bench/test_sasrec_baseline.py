"""The baseline of sequences: what it is trained on, and that it learns an order that is there."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.sasrec import Way, curve, histories_of
from client_sdk.lab.data.interactions import Interactions, leave_one_out
from client_sdk.lab.measures import OneHeldOut
from tests.support.needs import required

ITEMS, LENGTH, USERS = 30, 8, 240


@pytest.fixture(scope="module")
def data() -> Interactions:
    """Items that always follow others, in any order of the rows."""
    rng = np.random.default_rng(0)
    owned = (rng.integers(0, ITEMS, USERS)[:, None] + np.arange(LENGTH)) % ITEMS
    rows = rng.permutation(USERS * LENGTH)
    return Interactions.from_pairs(
        np.repeat(np.arange(USERS), LENGTH)[rows],
        owned.ravel()[rows],
        n_users=USERS,
        n_items=ITEMS,
        timestamps=np.tile(np.arange(LENGTH), USERS)[rows],
    )


def test_histories_are_in_the_order_of_their_times(data: Interactions) -> None:
    found = histories_of(data, 0)
    assert len(found) == USERS
    assert all(((np.diff(own) % ITEMS) == 1).all() and own.size == LENGTH for own in found)


@pytest.mark.parametrize("negatives", [0, 4], ids=["of all items", "of drawn negatives"])
def test_what_follows_is_learned(data: Interactions, negatives: int) -> None:
    required("torch")
    split = OneHeldOut(leave_one_out(data, 0), None)
    values = curve(split, Way(32, length=8, dropout=0.1, negatives=negatives), 60, 0, 60)
    assert values[60]["NDCG@20 full"] > 0.8
