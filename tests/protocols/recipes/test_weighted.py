"""The weighted mean as a sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from protocols.errors import ParameterError
from protocols.recipes.weighted import WeightedParameters, weigh, weighted_block, weighted_mean, with_weight

VALUES = st.floats(-8, 8, width=32)
EQUAL = WeightedParameters()


def capped(most: int) -> WeightedParameters:
    return WeightedParameters(max_interactions=most, reveal_weights=True)


@given(
    st.lists(st.tuples(arrays(np.float64, 5, elements=VALUES), st.integers(1, 1000)), min_size=1, max_size=8),
    st.one_of(st.none(), st.integers(1, 1000)),
)
def test_the_sum_gives_the_mean_of_all_or_the_one_weighted_by_capped_interactions(clients, most):
    p = EQUAL if most is None else capped(most)
    total = np.sum([weigh(p, vector, size) for vector, size in clients], axis=0)
    weights = [min(size, most or 1) for _, size in clients]
    expected = np.average([vector for vector, _ in clients], axis=0, weights=weights)
    np.testing.assert_allclose(weighted_mean(with_weight(p, total, len(clients))), expected, atol=1e-9)


@given(arrays(np.float64, 4, elements=VALUES), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_contribution_keeps_the_bounds_of_its_block(vector, size, most):
    for p in (EQUAL, capped(most)):
        block, sent = weighted_block(p, "factors", 4, 8.0), weigh(p, vector, size)
        assert sent.shape == (block.length,)
        assert (np.abs(sent) <= block.bounds()).all()
    assert sent[-1] > 0


def test_without_consent_nothing_that_is_sent_depends_on_the_number_of_interactions():
    assert weigh(EQUAL, np.ones(3), 7).tolist() == weigh(EQUAL, np.ones(3), 900).tolist() == [1.0] * 3
    for wrong, problem in (({"max_interactions": 5}, "reveal_weights=true"), ({"reveal_weights": True}, "no weights")):
        with pytest.raises(ValidationError, match=problem):
            WeightedParameters(**wrong)
    assert not EQUAL.weight_warnings()
    assert "number of examples" in capped(3).weight_warnings()[0]


def test_weights_of_many_rounds_are_equations_in_the_clients_numbers_of_examples():
    """24 clients, 30 sums over 12 of them: why weights need consent."""
    rng, p = np.random.default_rng(1), capped(1000)
    sizes = rng.integers(1, 500, 24)
    cohorts = [rng.choice(24, 12, replace=False) for _ in range(30)]
    who = np.array([np.isin(np.arange(24), cohort) for cohort in cohorts], float)
    totals = [sum(weigh(p, np.zeros(1), sizes[client])[-1] for client in cohort) for cohort in cohorts]
    found = np.linalg.lstsq(who, np.array(totals) * 1000, rcond=None)[0]
    assert np.rint(found).tolist() == sizes.tolist()


def test_a_client_without_interactions_takes_no_part():
    for p in (EQUAL, capped(9)):
        with pytest.raises(ParameterError, match="at least 1"):
            weigh(p, np.ones(2), 0)


@pytest.mark.parametrize("total", [np.zeros(3), np.array([1.0, 1.0, -1e-9]), np.array([1.0]), np.full(3, np.nan)])
def test_a_sum_without_weight_has_no_mean(total):
    with pytest.raises(ParameterError, match="positive sum of weights"):
        weighted_mean(total)
