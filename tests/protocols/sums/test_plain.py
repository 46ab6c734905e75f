from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import BudgetError, CodecError, ContributionError
from protocols.layout import Block, Segment, VectorLayout, whole_route
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum
from tests.protocols.sums.conformance import MechanismConformance

LAYOUT = VectorLayout((Block("b", (Segment("v", 3, 0.1), Segment("n", 2, 1.0, integral=True))),))
ROUTE = whole_route(LAYOUT)
PLAN = PLAIN.plan({}, LAYOUT, 100)


class TestConformance(MechanismConformance):
    mechanism = PLAIN


@given(st.lists(st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=3), min_size=1, max_size=20))
def test_sums_are_those_of_the_values(rows: list[list[float]]) -> None:
    vectors = [np.array([*row, 1.0, 0.0]) for row in rows]
    total = run_sum(PLAIN, PLAN, vectors).total
    assert np.abs(total - np.sum(vectors, axis=0)).max() <= PLAN.predicted_error
    assert total[3:].tolist() == [len(rows), 0]


def test_a_clip_done_in_float32_is_forgiven() -> None:
    edge = np.array([np.float32(0.1), -np.float32(0.1), 0.0, 1.0, 0.0], dtype=np.float64)
    assert edge[0] > 0.1
    PLAIN.check(PLAN, ROUTE, PLAIN.seal(PLAN, ROUTE, [edge], None))


@pytest.mark.parametrize(("index", "value"), [(0, np.nan), (1, np.inf), (2, 0.1001), (2, -0.1001), (4, 1.001)])
def test_values_that_must_not_enter_a_sum(index: int, value: float) -> None:
    values = np.zeros(5, "<f4")
    values[index] = value
    with pytest.raises(ContributionError, match=f"value {index} "):
        PLAIN.check(PLAN, ROUTE, values.tobytes())


def test_the_partial_carries_the_count() -> None:
    body = PLAIN.seal(PLAN, ROUTE, [np.array([0.1, 0, 0, 1, 1])], None)
    partial = PLAIN.fold(PLAN, PLAIN.fold(PLAN, None, [(ROUTE, body)] * 2), [(ROUTE, body)])
    assert struct.unpack_from("<Q", partial) == (3,)


def test_counts_are_exact_to_the_last_contribution() -> None:
    plan = PLAIN.plan({}, LAYOUT, 2**24)
    partial = struct.pack("<Q5d", 2**24 - 1, 0, 0, 0, 2**24 - 1, 1)
    body = PLAIN.seal(plan, ROUTE, [np.array([0, 0, 0, 1.0, 1.0])], None)
    total = PLAIN.open(plan, PLAIN.release(plan, PLAIN.fold(plan, partial, [(ROUTE, body)])), 2**24, None)
    assert total[3:].tolist() == [2**24, 2]
    with pytest.raises(BudgetError, match="at most 16777216 contributions"):
        PLAIN.plan({}, LAYOUT, 2**24 + 1)


def test_an_aggregate_that_is_not_finite_is_refused() -> None:
    with pytest.raises(CodecError, match="not finite"):
        PLAIN.open(PLAN, np.full(5, np.nan, "<f4").tobytes(), 1, None)
