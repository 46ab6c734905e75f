"""Splits of rated rows, hold-out of the item introduced last, and subsets of active users."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.experiments.leaks import hold_out_introduced_last, users_with_at_least
from client_sdk.lab.data.interactions import DataError, Interactions, leave_one_out
from client_sdk.lab.data.splits import split_rows

PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11)), min_size=1, max_size=60, unique=True)


def made(pairs) -> Interactions:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Interactions.from_pairs(
        users, items, n_users=8, n_items=12, ratings=100 * users + items, timestamps=1000 + items
    )


def triples(side: Interactions) -> set[tuple[int, int, float]]:
    return set(zip(side.users.tolist(), side.items.tolist(), side.ratings.tolist(), strict=True))


@given(PAIRS, st.integers(0, 100), st.sampled_from([0.2, 0.5]))
def test_split_rows_partitions_rows_and_ratings(pairs, seed, share) -> None:
    whole = made(pairs)
    if not 0 < round(share * whole.size) < whole.size:
        with pytest.raises(DataError, match="too few"):
            split_rows(whole, share, seed)
        return
    train, test = split_rows(whole, share, seed)
    assert test.size == round(share * whole.size)
    assert not triples(train) & triples(test)
    assert triples(train) | triples(test) == triples(whole)
    assert triples(split_rows(whole, share, np.random.default_rng(seed))[1]) == triples(test)


def test_split_rows_ignores_users() -> None:
    whole = made([(user, item) for user in range(8) for item in range(12)])
    held = [split_rows(whole, 0.25, seed)[1].user_degrees() for seed in range(20)]
    assert all(counts.sum() == 24 for counts in held)
    assert np.ptp(np.concatenate(held)) > 2, "equal counts for all users would be a split by user"
    with pytest.raises(DataError, match="share"):
        split_rows(whole, 1.0)


def test_item_introduced_last_is_held_out() -> None:
    whole = made([(0, 5), (0, 9), (0, 3), (1, 11), (2, 4), (2, 0)])
    split = hold_out_introduced_last(whole)
    assert split.test_items.tolist() == [9, -1, 4, -1, -1, -1, -1, -1]
    assert split.train.positives(0).tolist() == [5, 3]
    assert leave_one_out(whole, order="file").test_items[0] == 3


@given(PAIRS, st.integers(1, 6))
def test_active_users_keep_their_interactions_when_renumbered(pairs, count) -> None:
    whole = made(pairs)
    active = [user for user in range(8) if whole.user_degrees()[user] >= count]
    if not active:
        with pytest.raises(DataError, match=f"{count} interactions"):
            users_with_at_least(whole, count)
        return
    kept = users_with_at_least(whole, count)
    assert kept.user_ids.tolist() == active
    assert kept.user_degrees().min() >= count
    assert kept.item_degrees().min() >= 1
    for number, user in enumerate(active):
        assert kept.item_ids[kept.positives(number)].tolist() == whole.positives(user).tolist()
    assert triples(whole) >= {(int(r) // 100, int(r) % 100, r) for r in kept.ratings.tolist()}
    assert (kept.timestamps - 1000).tolist() == kept.item_ids[kept.items].tolist()


def test_ids_are_kept_when_renumbered() -> None:
    whole = Interactions.from_ids(np.array(["b", "a", "b", "c"]), np.array([70, 60, 80, 60]))
    kept = users_with_at_least(whole, 2)
    assert (kept.user_ids.tolist(), kept.item_ids.tolist()) == (["b"], [70, 80])


def test_where_needs_one_entry_per_interaction() -> None:
    with pytest.raises(DataError, match="2 interactions"):
        made([(0, 1), (0, 2)]).where(np.array([True]))
