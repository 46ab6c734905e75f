"""Rating errors compared with values computed by hand, and controls that predict means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.evaluation.controls import rating_controls, rating_errors
from protocols.errors import ParameterError

VALUES = st.lists(st.tuples(st.floats(-10, 10, width=32), st.floats(-10, 10, width=32)), min_size=1, max_size=50)


@given(VALUES)
def test_errors_equal_those_of_a_simple_loop(pairs) -> None:
    predicted, truth = np.array(pairs, dtype=np.float32).T
    found = rating_errors(predicted, truth)
    assert found.mae == pytest.approx(sum(abs(a - b) for a, b in pairs) / len(pairs))
    assert found.rmse == pytest.approx((sum((a - b) ** 2 for a, b in pairs) / len(pairs)) ** 0.5)
    assert found.count == len(pairs)
    assert found.mae <= found.rmse * (1 + 1e-9)


@pytest.mark.parametrize(
    ("predicted", "truth", "what"),
    [
        ([1.0], [1.0, 2.0], "do not match"),
        ([], [], "nothing to evaluate"),
        ([np.nan, 1.0], [1.0, 1.0], "1 predictions"),
    ],
)
def test_invalid_predictions_are_refused(predicted, truth, what) -> None:
    with pytest.raises(ParameterError, match=what):
        rating_errors(np.array(predicted), np.array(truth))


def rated(rows, **more) -> Interactions:
    users, items, ratings = zip(*rows, strict=True)
    return Interactions.from_pairs(users, items, ratings=ratings, n_users=3, n_items=3, **more)


def test_controls_by_hand() -> None:
    train = rated([(0, 0, 5), (0, 1, 3), (1, 0, 3), (1, 1, 1)])  # mean 3; users 4, 2; items 4, 2
    found = rating_controls(train, rated([(0, 2, 4), (1, 2, 1), (2, 0, 5), (2, 2, 3)])).figures()
    assert found["mean.mae"] == pytest.approx((1 + 2 + 2 + 0) / 4)
    assert found["item_mean.mae"] == pytest.approx((1 + 2 + 1 + 0) / 4)
    assert found["user_and_item_mean.mae"] == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert found["user_and_item_mean.rmse"] == pytest.approx(np.sqrt(2 / 4))


def test_controls_need_ratings() -> None:
    plain = Interactions.from_pairs([0], [1], n_users=3, n_items=3)
    with pytest.raises(ParameterError, match="ratings"):
        rating_controls(plain, plain)
    with pytest.raises(ParameterError, match="same users"):
        rating_controls(Interactions.from_pairs([0], [1]), plain)
