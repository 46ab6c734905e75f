from __future__ import annotations

import struct
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocols.errors import BudgetError, CodecError, ContributionError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum
from tests.protocols.sums.conformance import MechanismConformance

LAYOUT = VectorLayout((Block("b", (Segment("v", 3, 0.1), Segment("n", 2, 1.0, integral=True))),), sum_class=TRAINED)
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


@given(st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=100), st.randoms(use_true_random=False))
def test_neither_order_nor_batches_show_in_the_last_bit(values: list[float], random: Random) -> None:
    """Sums of floats usually do show it: 0.1 + 1e-9 - 0.1 is not 1e-9."""
    pieces = [(ROUTE, PLAIN.seal(PLAN, ROUTE, [np.array([value, -value, value / 3, 1, 0])], None)) for value in values]
    forward = PLAIN.fold(PLAN, None, pieces)
    cut = random.randint(0, len(pieces))
    random.shuffle(pieces)
    assert PLAIN.fold(PLAN, None, pieces) == forward
    halves = [PLAIN.fold(PLAN, None, pieces[:cut]), PLAIN.fold(PLAN, None, pieces[cut:])]
    assert PLAIN.merge(PLAN, halves) == forward


@pytest.mark.parametrize("contributions", [1, 2, 3, 4, 5, 1000])
def test_the_grain_costs_no_more_than_it_says(contributions: int) -> None:
    """Against exact sums of the float32 values, to the largest values and the smallest cohort."""
    plan = PLAIN.plan({}, LAYOUT, contributions)
    rng = np.random.default_rng(contributions)
    rows = (rng.uniform(-0.1, 0.1, (contributions, 5)) * 10.0 ** -rng.integers(0, 12, (contributions, 5))).astype("<f4")
    rows[0, :3], rows[:, 3:] = np.float32(0.1), 1.0
    partial = PLAIN.fold(plan, None, [(ROUTE, row.tobytes()) for row in rows])
    sums = np.frombuffer(partial, "<f8", offset=8)
    exact = [float(sum(Fraction(float(value)) for value in column)) for column in rows.T]
    assert np.abs(sums - exact).max() <= 0.1 * contributions**2 * 2.0**-52
    assert sums[3:].tolist() == [contributions, contributions]


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


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.1, 1.0])), min_size=1, max_size=40),
    st.integers(0, 200),
    st.sampled_from([0.1, -0.1, 0.2, 1.0, -1.1, np.nan, np.inf, -np.inf]),
)
@example([(1, 0.1), (2, 1.0)] * 20, 31, 0.2)
@example([(1, 0.1), (2, 1.0)] * 20, 33, 0.2)
@example([(1, 0.1), (2, 1.0)] * 20, 33, np.nan)
def test_each_value_is_held_against_the_clip_of_its_segment(
    segments: list[tuple[int, float]], place: int, value: float
) -> None:
    """Whether the maxima of a few runs are compared, or, with many, all values."""
    blocks = (Block("b", tuple(Segment(f"s{n}", length, clip) for n, (length, clip) in enumerate(segments))),)
    plan = PLAIN.plan({}, VectorLayout(blocks, sum_class=TRAINED), 10)
    route = whole_route(plan.layout)
    bounds = plan.layout.contribution_bounds(route)
    values = np.zeros(bounds.size, "<f4")
    values[place % bounds.size] = value
    body, first = values.tobytes(), 4 * (bounds.size // 2)
    parts = ((0, body[:first]), (first, body[first:]))
    if abs(value) <= bounds[place % bounds.size]:
        PLAIN.check(plan, route, body)
        for start, part in parts:
            PLAIN.check_part(plan, route, start, part)
        return
    fault = f"value {place % bounds.size} is not finite or exceeds its clip"
    with pytest.raises(ContributionError, match=fault):
        PLAIN.check(plan, route, body)
    with pytest.raises(ContributionError, match=fault):
        for start, part in parts:
            PLAIN.check_part(plan, route, start, part)


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


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_a_partial_sum_that_no_sum_can_have_is_refused(value: float) -> None:
    with pytest.raises(CodecError, match="not finite or exceeds float32"):
        PLAIN.release(PLAN, struct.pack("<Q5d", 1, 0, 0, value, 0, 0))
