from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError, RoutingError
from protocols.layout import TRAINED, Block, Segment, VectorLayout, clip_to_bounds, whole_route

VALUES = Segment("values", 3, 0.5)
COUNTS = Segment("counts", 2, 1.0, integral=True)
LAYOUT = VectorLayout((Block("a", (VALUES,)), Block("b", (VALUES,)), Block("c", (VALUES, COUNTS))), sum_class=TRAINED)


@pytest.mark.parametrize(("length", "clip"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, np.inf), (1, np.nan)])
def test_a_segment_needs_a_length_and_a_bound(length: int, clip: float) -> None:
    with pytest.raises(ParameterError, match="'s'"):
        Segment("s", length, clip)


@pytest.mark.parametrize("sum_bound", [0.0, -1.0, np.inf, np.nan])
def test_a_bound_on_the_sum_is_finite_and_positive(sum_bound: float) -> None:
    with pytest.raises(ParameterError, match="'s': sum_bound"):
        Segment("s", 1, 1.0, sum_bound=sum_bound)


def test_a_sum_is_bounded_by_its_contributions_or_by_the_segments_own_bound() -> None:
    assert VALUES.bound_on_sum(4) == 2.0
    assert [Segment("s", 1, 0.5, sum_bound=1.5).bound_on_sum(count) for count in (2, 4)] == [1.0, 1.5]


def test_a_contribution_is_scattered_to_every_block_it_feeds() -> None:
    whole = LAYOUT.scatter(((2,), (1, 0)), [np.arange(5.0), np.array([7.0, 8.0, 9.0])])
    assert whole.tolist() == [7, 8, 9, 7, 8, 9, 0, 1, 2, 3, 4]
    assert LAYOUT.scatter((), []).tolist() == [0.0] * 11
    with pytest.raises(ParameterError, match=r"block 'c' needs 5 values, got shape \(4,\)"):
        LAYOUT.scatter(((2,),), [np.zeros(4)])


def test_nothing_is_empty() -> None:
    with pytest.raises(ParameterError):
        Block("b", ())
    with pytest.raises(ParameterError):
        VectorLayout((), sum_class=TRAINED)


def test_lengths_bounds_and_masks() -> None:
    block = LAYOUT.blocks[2]
    assert (block.length, LAYOUT.length) == (5, 11)
    assert block.bounds().tolist() == [0.5, 0.5, 0.5, 1.0, 1.0]
    assert block.integral_mask().tolist() == [False, False, False, True, True]


def test_split_and_join() -> None:
    parts = LAYOUT.split(np.arange(11.0))
    assert [p.tolist() for p in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]
    named = LAYOUT.blocks[2].split(parts[2])
    assert LAYOUT.blocks[2].join(named).tolist() == parts[2].tolist()
    with pytest.raises(ParameterError, match="11 values"):
        LAYOUT.split(np.zeros(10))
    with pytest.raises(ParameterError, match="'counts' needs 2 values, got 3"):
        LAYOUT.blocks[2].join({"values": np.zeros(3), "counts": np.zeros(3)})
    with pytest.raises(ParameterError, match="needs"):
        LAYOUT.blocks[2].join({"values": np.zeros(3)})


@pytest.mark.parametrize("route", [((),), ((3,),), ((-1,),), ((0,), (0,)), ((0, 0),), ((0, 2),)], ids=str)
def test_routes_that_are_refused(route: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(RoutingError):
        LAYOUT.check_route(route)


def test_routes_that_are_taken() -> None:
    assert whole_route(LAYOUT) == ((0,), (1,), (2,))
    assert LAYOUT.contribution_blocks(((2,), (1, 0))) == (LAYOUT.blocks[2], LAYOUT.blocks[1])
    assert LAYOUT.contribution_blocks(()) == ()


@given(st.lists(st.floats(-2, 2), min_size=5, max_size=5))
def test_clipping_counts_what_it_moves(values: list[float]) -> None:
    block, vector = LAYOUT.blocks[2], np.array(values)
    clipped, moved = clip_to_bounds(block, vector)
    assert (np.abs(clipped) <= block.bounds()).all()
    assert moved == np.count_nonzero(clipped != vector)


def test_clipping_refuses_what_is_not_finite() -> None:
    with pytest.raises(ParameterError, match="training diverged"):
        clip_to_bounds(LAYOUT.blocks[0], np.array([0.0, np.nan, 0.0]))
