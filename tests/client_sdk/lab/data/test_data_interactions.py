"""Interactions: order, validation, and the split into training interactions and one held-out item per user."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out

PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11)), max_size=60, unique=True)


def made(pairs, **more) -> Interactions:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Interactions.from_pairs(users, items, n_users=8, n_items=12, **more)


@given(PAIRS)
@settings(deadline=None)
def test_items_of_a_user_keep_their_order(pairs) -> None:
    interactions = made(pairs)
    for user in range(8):
        assert interactions.positives(user).tolist() == [item for who, item in pairs if who == user]
    assert interactions.item_degrees().tolist() == [sum(what == item for _, what in pairs) for item in range(12)]
    assert (interactions.items.dtype, interactions.indptr.dtype) == (np.int32, np.int64)


@given(PAIRS, st.integers(0, 2**31), st.booleans())
@settings(deadline=None)
def test_split_partitions_the_interactions(pairs, seed, timed) -> None:
    times = np.random.default_rng(seed).integers(0, 3, len(pairs)) if timed else None
    interactions = made(pairs, timestamps=times)
    split = leave_one_out(interactions, seed)
    for user in range(8):
        before, after, held = interactions.positives(user), split.train.positives(user), int(split.test_items[user])
        if before.size < 2:
            assert held == -1
            assert after.tolist() == before.tolist()
        else:
            assert held in before
            assert after.tolist() == [item for item in before if item != held]
            if times is not None:
                mine = [int(times[at]) for at, (who, _) in enumerate(pairs) if who == user]
                last = max(range(len(mine)), key=lambda at: (mine[at], at))
                assert held == before[last]


def test_latest_is_held_out_and_of_equal_times_the_last() -> None:
    interactions = made(
        [(0, 5), (0, 3), (0, 9), (1, 1), (1, 2)], timestamps=[30, 30, 10, 8, 7], ratings=[1, 2, 3, 4, 5]
    )
    split = leave_one_out(interactions)
    assert split.test_items.tolist() == [3, 1, -1, -1, -1, -1, -1, -1]
    assert split.train.timestamps.tolist() == [30, 10, 7]
    assert split.train.ratings.tolist() == [1, 3, 5]


def test_without_timestamps_the_seed_selects_the_held_out_items() -> None:
    interactions = made([(user, item) for user in range(8) for item in range(12)])
    first, again, other = (leave_one_out(interactions, seed).test_items for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_repeated_pair_is_refused_or_merged_and_counted() -> None:
    pairs = [(0, 4), (1, 4), (0, 4), (0, 2)]
    with pytest.raises(DataError, match="user 0 has item 4 more than once"):
        made(pairs)
    merged = made(pairs, duplicates="last", ratings=[1, 2, 3, 4])
    assert merged.merged == 1
    assert merged.positives(0).tolist() == [4, 2]
    assert merged.ratings.tolist() == [3, 4, 2]


@pytest.mark.parametrize(
    ("users", "items", "more", "what"),
    [
        ([0, 1], [0], {}, "one length"),
        ([0, 8], [0, 0], {"n_users": 8}, "user numbers must lie in 0..7"),
        ([0, -1], [0, 0], {}, "user numbers"),
        ([0], [-3], {}, "item numbers"),
        ([0], [2**31], {}, "do not fit in 32 bits"),
        ([0], [0], {"ratings": [1.0, 2.0]}, "ratings needs 1"),
        ([0], [0], {"item_ids": np.array([7, 8])}, "item_ids needs 1"),
    ],
)
def test_arrays_that_do_not_match_are_refused(users, items, more, what) -> None:
    with pytest.raises(DataError, match=what):
        Interactions.from_pairs(users, items, **more)


def test_unknown_user_is_refused() -> None:
    interactions = made([(0, 1)])
    for user in (-1, 8):
        with pytest.raises(DataError, match="outside"):
            interactions.positives(user)


def test_held_out_item_in_the_training_set_is_refused() -> None:
    train = made([(0, 1), (3, 2)])
    held = np.full(8, -1, dtype=np.int32)
    held[3] = 2
    with pytest.raises(DataError, match="user 3"):
        LeaveOneOut(train, held)
    with pytest.raises(DataError, match="shape"):
        LeaveOneOut(train, held[:4])
    held[3] = 12
    with pytest.raises(DataError, match="outside 0..11"):
        LeaveOneOut(train, held)
