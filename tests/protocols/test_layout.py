"""Layouts of sums, levels in use, and the routes that few clients of a sum have."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError, RefusalError, RoutingError
from protocols.layout import (
    TRAINED,
    Block,
    Segment,
    VectorLayout,
    check_levels,
    clip_to_bounds,
    levels_in_use,
    lowered,
    refuse_short_routes,
    short_routes,
)

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


@given(st.lists(st.floats(-2, 2), min_size=5, max_size=5))
def test_clipping_counts_what_it_moves(values: list[float]) -> None:
    block, vector = LAYOUT.blocks[2], np.array(values)
    clipped, moved = clip_to_bounds(block, vector)
    assert (np.abs(clipped) <= block.bounds()).all()
    assert moved == np.count_nonzero(clipped != vector)


def test_clipping_refuses_what_is_not_finite() -> None:
    with pytest.raises(ParameterError, match="training diverged"):
        clip_to_bounds(LAYOUT.blocks[0], np.array([0.0, np.nan, 0.0]))


@given(st.lists(st.integers(1, 12), max_size=120), st.integers(1, 20))
def test_each_level_in_use_has_enough_clients_with_room_for_dropouts(drawn: list[int], min_clients: int) -> None:
    used = levels_in_use(drawn, min_clients)
    check_levels(used, 12)
    groups = Counter(lowered(level, used) for level in drawn)
    assert all(lowered(level, used) <= level for level in drawn)
    assert set(groups) <= set(used)
    least = min_clients + min_clients // 4 + 1
    if len(drawn) >= least:
        assert min(groups.values()) >= least
        assert not short_routes([((level,),) for level in groups.elements()], min_clients)
        enough = {level for level, count in Counter(drawn).items() if count >= least}
        assert enough <= {1} or len(used) > 1 or Counter(drawn)[1] < least  # a level is not given up for nothing
    else:
        assert used == (1,)


@pytest.mark.parametrize(
    ("drawn", "used"),
    [
        ([4] * 6 + [3] * 6 + [1] * 6, (1, 3, 4)),
        ([4] * 3 + [3] * 3 + [1] * 6, (1, 3)),  # those of level 4 fall to 3
        ([4] * 6 + [3] * 6 + [1] * 2, (1, 4)),  # too few are left for level 1, so those of level 3 join them
        ([4] * 6 + [2] * 3, (1,)),
        ([], (1,)),
    ],
)
def test_levels_fall_from_the_top(drawn: list[int], used: tuple[int, ...]) -> None:
    assert levels_in_use(drawn, 4) == used


@pytest.mark.parametrize("used", [(), (2, 3), (1, 3, 2), (1, 1), (1, 5)])
def test_levels_that_no_round_has(used: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="were expected, ascending"):
        check_levels(used, 4)


def test_routes_of_few_clients() -> None:
    routes = {"a": ((0,),), "b": ((0,),), "c": ((0,), (1,)), "d": ((0,),)}
    assert short_routes(routes.values(), 3) == [1]
    refuse_short_routes("abd", routes.__getitem__, 3, "the roster")
    with pytest.raises(RefusalError, match="the roster has 1 clients that contribute to the same blocks"):
        refuse_short_routes(routes, routes.__getitem__, 3, "the roster")
