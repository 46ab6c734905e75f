"""The published files: the counts that the papers state."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.leaks import hold_out_introduced_last, users_with_at_least
from client_sdk.lab.data.published import load_interactions, load_train_test


@pytest.mark.parametrize(
    ("name", "users", "items", "rows", "merged", "scale"),
    [
        ("ml-100k", 943, 1682, 100_000, 0, (1, 5)),  # RFRec and PFedCLR, table of data sets
        ("ml-1m", 6040, 3706, 1_000_209, 0, (1, 5)),
        ("filmtrust", 1508, 2071, 35_494, 3, (0.5, 4)),
    ],
)
def test_ratings_are_read_with_their_values(published_data, name, users, items, rows, merged, scale) -> None:
    read = load_interactions(name, published_data)
    assert (read.n_users, read.n_items, read.size, read.merged) == (users, items, rows, merged)
    assert read.ratings is not None
    assert (read.ratings.min(), read.ratings.max()) == scale


def test_filmtrust_as_pfedclr_uses_it(published_data) -> None:
    whole = load_interactions("filmtrust", published_data)
    first = np.unique(whole.items, return_index=True)[1]
    assert np.all(np.diff(first) > 0), "the public file numbers items in the order of their first appearance"
    kept = users_with_at_least(whole, 10)
    # the paper's count, 33,372, includes the three repeated rows
    assert (kept.n_users, kept.n_items, kept.size + kept.merged) == (1002, 2042, 33_372)
    split = hold_out_introduced_last(kept)
    assert split.tested_users.size == 1002
    assert all(split.test_items[user] > split.train.positives(user).max() for user in range(1002))


def test_goodreads_as_fair_uses_it(published_data) -> None:
    train, test = load_train_test("goodreads-100", published_data)
    # Item tables have a row for every number up to the largest, as in the released code; 357,638 of them are used.
    assert (train.n_users, train.n_items) == (99, 359_014)
    assert (train.size, test.size) == (482_745, 206_869)
    assert np.count_nonzero(train.item_degrees() + test.item_degrees()) == 357_638
