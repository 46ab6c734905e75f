"""Combinations of released sums: the small groups that they isolate are found, exactly, against brute force."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.privacy import combinations
from protocols.privacy.combinations import TooComplexError, newly_isolated, smallest_isolated

P = frozenset(f"p{index}" for index in range(10))
Q = frozenset(f"q{index}" for index in range(10))


def rank(rows: list[list[Fraction]]) -> int:
    rows = [row[:] for row in rows]
    found = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((index for index in range(found, len(rows)) if rows[index][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for index in range(found + 1, len(rows)):
            factor = rows[index][column] / rows[found][column]
            rows[index] = [a - factor * b for a, b in zip(rows[index], rows[found], strict=True)]
        found += 1
    return found


def isolates(sets: list[frozenset[str]], clients: frozenset[str]) -> bool:
    """Whether some combination that is not 0 involves none but `clients`: the others' columns have a smaller rank."""
    everyone = sorted(frozenset().union(*sets))
    whole = [[Fraction(client in chosen) for client in everyone] for chosen in sets]
    others = [[Fraction(client in chosen) for client in everyone if client not in clients] for chosen in sets]
    return rank(others) < rank(whole)


def brute_force(sets: list[frozenset[str]], threshold: int) -> int | None:
    """The fewest clients that a combination isolates, by trying every group of clients."""
    everyone = sorted(frozenset().union(*sets))
    for size in range(1, min(threshold, len(everyone) + 1)):
        if any(isolates(sets, frozenset(group)) for group in itertools.combinations(everyone, size)):
            return size
    return None


def test_two_sets_and_their_union_with_one_more_reveal_that_one() -> None:
    assert smallest_isolated([P, Q, P | Q | {"u"}], 5) == {"u"}
    assert smallest_isolated([P, Q, P | Q], 5) is None
    assert smallest_isolated([P, P | Q | {"u"}], 5) is None  # the difference is of eleven


def test_a_pair_that_differs_by_a_few_reveals_them() -> None:
    assert smallest_isolated([P, P | {"u", "v"}], 5) == {"u", "v"}
    assert smallest_isolated([P, P | {"u", "v"}], 2) is None


def test_sets_that_shrink_by_enough_at_a_time_reveal_nobody() -> None:
    everyone = sorted(P | Q | {f"r{index}" for index in range(30)})
    assert smallest_isolated([everyone[start:] for start in range(0, 50, 5)], 5) is None
    assert smallest_isolated([everyone[start:] for start in range(0, 50, 5)], 6) is not None


def test_factors_other_than_one_are_found() -> None:
    """S(ab) + S(bc) + S(ca) - 2 S(abc u ..) has coefficients that no sum or difference of two has."""
    a, b, c = (frozenset(f"{name}{index}" for index in range(6)) for name in "abc")
    sets = [a | b, b | c, c | a, a | b | c | {"u"}]
    assert smallest_isolated(sets, 4) == {"u"}
    assert all(len(left ^ right) >= 6 for left, right in itertools.combinations(sets, 2))


def test_a_large_group_whose_column_others_make_up_changes_nothing() -> None:
    a, b, c = (frozenset(f"{name}{index}" for index in range(6)) for name in "abc")
    sets = [a | c | {"u"}, a | c, b | c, b | c | {"v", "w"}]  # the column of c is the sum of those of a and b
    assert smallest_isolated(sets, 4) == {"u"}


def test_a_small_set_is_a_small_group() -> None:
    assert smallest_isolated([frozenset("ab")], 3) == {"a", "b"}
    assert smallest_isolated([], 3) is None
    assert smallest_isolated([P, P, P], 5) is None


@settings(max_examples=300)
@given(st.data())
def test_it_finds_what_brute_force_finds(data: st.DataObject) -> None:
    clients = [f"c{index}" for index in range(data.draw(st.integers(1, 7)))]
    sets = data.draw(st.lists(st.frozensets(st.sampled_from(clients), min_size=1), min_size=1, max_size=5))
    threshold = data.draw(st.integers(1, 8))
    found, fewest = smallest_isolated(sets, threshold), brute_force(sets, threshold)
    assert (None if found is None else len(found)) == fewest
    if found is not None:
        assert isolates(sets, found)


@settings(max_examples=60)
@given(st.data())
def test_groups_of_many_clients_count_as_many(data: st.DataObject) -> None:
    """Each client of a small example stands for one to four that are always together."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    groups = [frozenset(f"g{index}.{copy}" for copy in range(size)) for index, size in enumerate(sizes)]
    chosen = data.draw(st.lists(st.frozensets(st.sampled_from(range(len(groups))), min_size=1), min_size=1, max_size=4))
    sets = [frozenset().union(*(groups[index] for index in some)) for some in chosen]
    threshold = data.draw(st.integers(2, 6))
    found, fewest = smallest_isolated(sets, threshold), brute_force(sets, threshold)
    assert (None if found is None else len(found)) == fewest


def newly_possible(released: list[frozenset[str]], candidate: frozenset[str], clients: frozenset[str]) -> bool:
    """Whether combinations with `candidate` involve none but `clients`, in ways that those of `released` do not."""

    def freedom(sets: list[frozenset[str]]) -> int:
        whole = [[Fraction(client in chosen) for client in everyone] for chosen in sets]
        others = [[Fraction(client in chosen) for client in everyone if client not in clients] for chosen in sets]
        return rank(whole) - rank(others)

    everyone = sorted(candidate.union(*released))
    return freedom([*released, candidate]) > freedom(released)


@settings(max_examples=300)
@given(st.data())
def test_what_a_candidate_adds_is_what_brute_force_finds(data: st.DataObject) -> None:
    clients = [f"c{index}" for index in range(data.draw(st.integers(1, 7)))]
    some = st.frozensets(st.sampled_from(clients), min_size=1)
    released, candidate = data.draw(st.lists(some, max_size=4)), data.draw(some)
    threshold = data.draw(st.integers(1, 8))
    everyone = sorted(candidate.union(*released))
    fewest = next(
        (
            size
            for size in range(1, min(threshold, len(everyone) + 1))
            if any(
                newly_possible(released, candidate, frozenset(few)) for few in itertools.combinations(everyone, size)
            )
        ),
        None,
    )
    found = newly_isolated(released, candidate, threshold)
    assert (None if found is None else len(found)) == fewest
    assert found is None or newly_possible(released, candidate, found)


def test_a_candidate_is_not_blamed_for_what_earlier_sums_isolate() -> None:
    released = [P, P | {"u"}, Q]
    assert smallest_isolated(released, 5) == {"u"}
    assert newly_isolated(released, P | Q, 5) is None  # a combination of released sums
    assert newly_isolated(released, [f"r{index}" for index in range(10)], 5) is None
    assert newly_isolated(released, Q | {"v"}, 5) == {"v"}


def test_any_number_of_sums_that_shrink_or_have_nobody_in_common_is_judged() -> None:
    everyone = [f"c{index:04}" for index in range(5 * 2 * combinations.MOST_SETS)]
    shrinking = [everyone[start:] for start in range(0, len(everyone), 5)]
    assert smallest_isolated(shrinking, 5) is None
    assert smallest_isolated([everyone[start : start + 5] for start in range(0, len(everyone), 5)], 5) is None


def test_many_overlapping_random_cohorts_are_judged() -> None:
    choose = random.Random(1)
    people = [f"c{index:04}" for index in range(1000)]
    cohorts = [choose.sample(people, 100) for _ in range(60)]
    assert newly_isolated(cohorts[:-1], cohorts[-1], 10) is None


def test_what_is_too_complex_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [P | {f"u{index}"} for index in range(combinations.MOST_SETS + 1)]
    with pytest.raises(TooComplexError, match="at most 64"):
        smallest_isolated(many, 5)
    monkeypatch.setattr(combinations, "MOST_CHOICES", 3)
    with pytest.raises(TooComplexError, match="at most 3"):
        smallest_isolated([frozenset(f"{a}{b}" for b in range(2)) for a in range(5)], 3)


def test_a_threshold_below_one_is_refused() -> None:
    with pytest.raises(ParameterError, match="at least 1"):
        smallest_isolated([P], 0)


def test_the_kernel_of_columns() -> None:
    """Of none, of dependent columns, and of as many independent ones as there are rows, after which nothing is left."""
    assert combinations._left_kernel([], 2) == [[1, 0], [0, 1]]
    assert combinations._left_kernel([[1, 1], [2, 2], [0, 0]], 2) in ([[-1, 1]], [[1, -1]])
    assert combinations._left_kernel([[1, 1], [1, 0], [0, 1]], 2) == []


def test_eliminated_vectors_have_no_common_factor() -> None:
    assert combinations._eliminate([4, 6], 0, [1, 1], 1) == [4, 6]
    assert combinations._eliminate([4, 2], 2, [2, 4], 2) == [1, -1]


def test_three_sets_that_overlap_in_large_groups_have_no_combination() -> None:
    """The groups of two are large, and every coefficient but 0 involves one of them."""
    first, second, third = frozenset("abcd"), frozenset("abef"), frozenset("cdef")
    assert newly_isolated([first, second], third, 2) is None
    assert newly_isolated([first, second], third, 3) is not None
