"""Combinations of released sums that isolate a few clients are found exactly, and the guard refuses them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.privacy import differencing, isolation
from protocols.privacy.differencing import Allowed, Isolating, TooComplex, TooSimilar, judge
from protocols.privacy.isolation import TooComplexError, newly_isolated

P = frozenset(f"p{index}" for index in range(10))
Q = frozenset(f"q{index}" for index in range(10))


def smallest_isolated(sets: Iterable[Collection[str]], threshold: int) -> frozenset[str] | None:
    """The smallest group that a combination isolates: one needs its last set, and no combination of those before."""
    released = list(sets)
    found = [newly_isolated(released[:last], released[last], threshold) for last in range(len(released))]
    return min((group for group in found if group is not None), key=len, default=None)


def rank(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix)) if matrix.size else 0


def freedom(sets: list[frozenset[str]], clients: frozenset[str]) -> int:
    """Combinations that involve none but `clients`, of a basis: so much smaller is the rank of the others' columns."""
    everyone = sorted(frozenset().union(*sets))
    whole = np.array([[client in chosen for client in everyone] for chosen in sets], float)
    others = np.array([[client in chosen for client in everyone if client not in clients] for chosen in sets], float)
    return rank(whole) - rank(others)


def brute_force(sets: list[frozenset[str]], threshold: int, released: int = 0) -> int | None:
    """The fewest clients that a combination isolates which the first `released` sets alone do not, of all groups."""
    everyone = sorted(frozenset().union(*sets))
    for size in range(1, min(threshold, len(everyone) + 1)):
        for group in map(frozenset, itertools.combinations(everyone, size)):
            if freedom(sets, group) > freedom(sets[:released], group):
                return size
    return None


def test_sets_that_shrink_by_enough_at_a_time_reveal_nobody() -> None:
    everyone = sorted(P | Q | {f"r{index}" for index in range(30)})
    assert smallest_isolated([everyone[start:] for start in range(0, 50, 5)], 5) is None
    assert smallest_isolated([everyone[start:] for start in range(0, 50, 5)], 6) is not None


def test_a_large_group_whose_column_others_make_up_changes_nothing() -> None:
    a, b, c = (frozenset(f"{name}{index}" for index in range(6)) for name in "abc")
    sets = [a | c | {"u"}, a | c, b | c, b | c | {"v", "w"}]  # the column of c is the sum of those of a and b
    assert smallest_isolated(sets, 4) == {"u"}


@settings(max_examples=60)
@given(st.data())
def test_it_finds_what_brute_force_finds(data: st.DataObject) -> None:
    clients = [f"c{index}" for index in range(data.draw(st.integers(1, 7)))]
    sets = data.draw(st.lists(st.frozensets(st.sampled_from(clients), min_size=1), min_size=1, max_size=5))
    threshold = data.draw(st.integers(1, 8))
    found, fewest = smallest_isolated(sets, threshold), brute_force(sets, threshold)
    assert (None if found is None else len(found)) == fewest
    assert found is None or freedom(sets, found)


@settings(max_examples=25)
@given(st.data())
def test_groups_of_many_clients_count_as_many(data: st.DataObject) -> None:
    """Each client of a small example stands for one to four that are always together."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    groups = [frozenset(f"g{index}.{copy}" for copy in range(size)) for index, size in enumerate(sizes)]
    chosen = data.draw(st.lists(st.frozensets(st.sampled_from(range(len(groups))), min_size=1), min_size=1, max_size=4))
    sets = [frozenset().union(*(groups[index] for index in some)) for some in chosen]
    threshold = data.draw(st.integers(2, 6))
    found, fewest = smallest_isolated(sets, threshold), brute_force(sets, threshold)
    assert (None if found is None else len(found)) == fewest


@settings(max_examples=100)
@given(st.data())
def test_what_a_candidate_adds_is_what_brute_force_finds(data: st.DataObject) -> None:
    clients = [f"c{index}" for index in range(data.draw(st.integers(1, 7)))]
    some = st.frozensets(st.sampled_from(clients), min_size=1)
    released, candidate = data.draw(st.lists(some, max_size=4)), data.draw(some)
    threshold = data.draw(st.integers(1, 8))
    fewest = brute_force([*released, candidate], threshold, len(released))
    found = newly_isolated(released, candidate, threshold)
    assert (None if found is None else len(found)) == fewest
    assert found is None or freedom([*released, candidate], found) > freedom(released, found)


def test_a_candidate_is_not_blamed_for_what_earlier_sums_isolate() -> None:
    released = [P, P | {"u"}, Q]
    assert smallest_isolated(released, 5) == {"u"}
    assert newly_isolated(released, P | Q, 5) is None  # a combination of released sums
    assert newly_isolated(released, [f"r{index}" for index in range(10)], 5) is None
    assert newly_isolated(released, Q | {"v"}, 5) == {"v"}


def test_any_number_of_sums_that_shrink_or_have_nobody_in_common_is_judged() -> None:
    everyone = [f"c{index:04}" for index in range(5 * 2 * isolation.MOST_SETS)]
    starts = range(0, len(everyone), 5)
    for sets in ([everyone[start:] for start in starts], [everyone[start : start + 5] for start in starts]):
        assert newly_isolated(sets[:-1], sets[-1], 5) is newly_isolated(sets[1:], sets[0], 5) is None


def test_many_overlapping_random_cohorts_are_judged() -> None:
    choose = random.Random(1)
    people = [f"c{index:04}" for index in range(1000)]
    cohorts = [choose.sample(people, 100) for _ in range(60)]
    assert newly_isolated(cohorts[:-1], cohorts[-1], 10) is None


def test_what_is_too_complex_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [P | {f"u{index}"} for index in range(isolation.MOST_SETS + 1)]
    with pytest.raises(TooComplexError, match="at most 64"):
        newly_isolated(many[:-1], many[-1], 5)
    assert newly_isolated(many[:-2], many[-2], 5) is not None
    monkeypatch.setattr(isolation, "MOST_CHOICES", 3)
    with pytest.raises(TooComplexError, match="at most 3"):
        smallest_isolated([frozenset(f"{a}{b}" for b in range(2)) for a in range(5)], 3)


def test_three_sets_that_overlap_in_large_groups_have_no_combination() -> None:
    """The groups of two are large, and every coefficient but 0 involves one of them."""
    first, second, third = frozenset("abcd"), frozenset("abef"), frozenset("cdef")
    assert smallest_isolated([first, second, third], 2) is newly_isolated([first, second], third, 2) is None
    assert newly_isolated([first, second], third, 3) is not None


# --- the differencing guard: no two released sums of a task are over sets that differ by a few clients ----------------


SEED = bytes(32)
EVERYBODY = [f"c_{index:02}" for index in range(14)]


@pytest.mark.parametrize(
    ("earlier", "survivors", "threshold"),
    [
        ([], EVERYBODY, 5),
        ([EVERYBODY, EVERYBODY], EVERYBODY, 5),
        ([EVERYBODY], EVERYBODY[5:], 5),
        ([EVERYBODY], EVERYBODY[1:], 1),
        ([P, Q], P | Q, 5),  # a combination of released sums
        ([P, Q], P | Q | {f"u{index}" for index in range(5)}, 5),
    ],
)
def test_sums_that_are_allowed(earlier: list[Any], survivors: Any, threshold: int) -> None:
    assert judge(earlier, set(survivors), threshold, SEED) == Allowed()


def test_after_a_few_dropouts_more_are_left_out() -> None:
    verdict = judge([EVERYBODY], set(EVERYBODY[1:]), 5, SEED)
    assert isinstance(verdict, TooSimilar)
    assert verdict.difference == 1
    assert len(verdict.leave_out) == 4
    assert verdict.leave_out < set(EVERYBODY[1:])


def test_who_must_leave_is_drawn() -> None:
    found = {judge([EVERYBODY], set(EVERYBODY[1:]), 5, bytes([seed] * 32)) for seed in range(20)}
    assert len(found) > 10


@pytest.mark.parametrize(
    ("earlier", "survivors", "verdict"),
    [
        ([EVERYBODY[1:]], EVERYBODY, TooSimilar(1, frozenset(EVERYBODY[:1]))),  # comes in addition
        ([EVERYBODY[:7], EVERYBODY], EVERYBODY[:8], TooSimilar(1, frozenset(EVERYBODY[7:8]))),  # not only the last
        ([P, Q], P | Q | {"u"}, Isolating(1, frozenset({"u"}))),  # S3 - S1 - S2 is one client's vector
    ],
)
def test_a_client_who_would_be_isolated_is_left_out(earlier: list[Any], survivors: Any, verdict: object) -> None:
    assert judge(earlier, set(survivors), 5, SEED) == verdict


def test_an_isolated_client_who_is_not_a_survivor_makes_others_leave() -> None:
    verdict = judge([P | {"u"}, Q], P | Q, 5, SEED)
    assert isinstance(verdict, Isolating)
    assert verdict.clients == 1
    left = (P | Q) - verdict.leave_out
    assert left
    assert judge([P | {"u"}, Q], left, 5, SEED) == Allowed()


def test_after_the_last_draw_a_released_set_remains_or_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differencing, "_MOST_DRAWS", 0)
    assert judge([P | {"u"}, Q], P | Q, 5, SEED) == Isolating(1, P)
    assert judge([P | {"u"}, Q | {"v"}], P | Q, 5, SEED) == Isolating(2, P | Q)


def test_sums_that_are_too_complex_to_judge_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "MOST_SETS", 2)
    verdict = judge([P, Q], P | Q | {"u"}, 5, SEED)
    assert isinstance(verdict, TooComplex)
    assert "at most 2 are judged together" in verdict.reason
    assert judge([P, Q], P, 5, SEED) == Allowed()


def test_thresholds_below_1_are_refused() -> None:
    with pytest.raises(ParameterError, match="threshold"):
        judge([], set(EVERYBODY), 0, SEED)
    with pytest.raises(ParameterError, match="at least 1"):
        smallest_isolated([P], 0)


SETS = st.sets(st.sampled_from(EVERYBODY), min_size=1)


@given(st.lists(SETS, max_size=5), SETS, st.integers(1, 16), st.binary(min_size=32, max_size=32))
def test_the_rest_may_be_released(earlier: list[set[str]], survivors: set[str], threshold: int, seed: bytes) -> None:
    """Without the clients that the verdict names, the sum is allowed (or empty), for any earlier sums."""
    verdict = judge(earlier, survivors, threshold, seed)
    if isinstance(verdict, Allowed):
        assert all(len(survivors ^ other) == 0 or len(survivors ^ other) >= threshold for other in earlier)
        assert newly_isolated(earlier, survivors, min(threshold, len(survivors))) is None
        return
    assert not isinstance(verdict, TooComplex)
    assert verdict.leave_out <= survivors
    assert verdict.leave_out
    left = survivors - verdict.leave_out
    assert not left or judge(earlier, left, threshold, seed) == Allowed()
