"""Levels in use, and the routes that few clients of a sum have."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError, RefusalError
from protocols.patterns import check_levels, levels_in_use, lowered, refuse_short_routes, short_routes


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


def test_a_client_without_levels_keeps_its_own() -> None:
    assert (lowered(5, ()), lowered(5, (1, 4, 6))) == (5, 4)


@pytest.mark.parametrize("used", [(), (2, 3), (1, 3, 2), (1, 1), (1, 5)])
def test_levels_that_no_round_has(used: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="were expected, ascending"):
        check_levels(used, 4)


def test_sums_without_levels_have_none_in_use() -> None:
    check_levels((), 0)
    with pytest.raises(ParameterError, match="levels in use are 1"):
        check_levels((1,), 0)


def test_routes_of_few_clients() -> None:
    routes = {"a": ((0,),), "b": ((0,),), "c": ((0,), (1,)), "d": ((0,),)}
    assert short_routes(routes.values(), 3) == [1]
    refuse_short_routes("abd", routes.__getitem__, 3, "the roster")
    with pytest.raises(RefusalError, match="the roster has 1 clients that contribute to the same blocks"):
        refuse_short_routes(routes, routes.__getitem__, 3, "the roster")
