"""Scores of new and rare items from the labels of the catalogue."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.training.labels import ItemLabels
from protocols.catalogue import MOST_LABELS

ITEMS = [["tea", "green"], ["tea", "black"], ["coffee"], ["coffee", "black"], ["tea"], ["coffee"], [], ["once"]]
KNOWN = np.array([True] * 4 + [False] * 4)
SCORES = np.array([[3.0, 2.5, -2.0, -1.0, 0, 0, 0.25, 0.5], [-1.0, -1.5, 2.0, 1.0, 0, 0, 0.25, 0.5]], np.float32)


def test_a_new_item_is_scored_as_the_users_scores_of_items_with_its_labels_say() -> None:
    found = ItemLabels.of(ITEMS).completed(SCORES, KNOWN)
    assert found[0, 4] > found[0, 5]
    assert found[1, 5] > found[1, 4]
    np.testing.assert_array_equal(found[:, KNOWN], SCORES[:, KNOWN])
    np.testing.assert_array_equal(found[:, 6:], SCORES[:, 6:])  # without a label that others have


def test_a_prediction_is_the_ridge_regression_on_the_labels_with_a_free_mean() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((40, 6)) < 0.4).astype(float)
    known, scores = rng.random(40) < 0.8, rng.normal(size=(3, 40)).astype(np.float32)
    names = [[f"label {label}" for label in np.flatnonzero(row)] for row in rows]
    found = ItemLabels.of(names).completed(scores, known)
    design = np.hstack([rows, np.ones((40, 1))])
    penalty = 10.0 * np.eye(7) * np.r_[np.ones(6), 0.0]
    weights = np.linalg.solve(design[known].T @ design[known] + penalty, design[known].T @ scores[:, known].T)
    labelled = ~known & (rows.sum(axis=1) > 0)
    np.testing.assert_allclose(found[:, labelled], (design @ weights).T[:, labelled], atol=1e-5)


@pytest.mark.parametrize("known", [np.ones(8, bool), np.zeros(8, bool)])
def test_scores_stay_as_they_are_where_all_items_or_none_are_known(known: np.ndarray) -> None:
    np.testing.assert_array_equal(ItemLabels.of(ITEMS).completed(SCORES, known), SCORES)


def test_the_most_frequent_labels_count_where_there_are_more_than_the_limit() -> None:
    names = [[f"{label:05}" for label in range(MOST_LABELS + 5)]] * 2 + [["00001"]]
    found = ItemLabels.of(names)
    assert found.count == MOST_LABELS
    assert [own.size for own in found.of_items] == [MOST_LABELS, MOST_LABELS, 1]
