"""The differencing guard: no two released sums of a task are over sets that differ by a few clients."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.privacy import combinations as released_combinations
from protocols.privacy import differencing
from protocols.privacy.combinations import newly_isolated
from protocols.privacy.differencing import Allowed, Isolating, TooComplex, TooSimilar, judge

SEED = bytes(32)
EVERYBODY = [f"c_{index:02}" for index in range(14)]


def test_the_first_sum_and_the_same_set_again_are_allowed() -> None:
    assert judge([], set(EVERYBODY), 5, SEED) == Allowed()
    assert judge([EVERYBODY, EVERYBODY], set(EVERYBODY), 5, SEED) == Allowed()


def test_enough_dropouts_are_allowed_and_a_few_are_not() -> None:
    assert judge([EVERYBODY], set(EVERYBODY[5:]), 5, SEED) == Allowed()
    verdict = judge([EVERYBODY], set(EVERYBODY[1:]), 5, SEED)
    assert isinstance(verdict, TooSimilar)
    assert verdict.difference == 1
    assert len(verdict.leave_out) == 4
    assert verdict.leave_out < set(EVERYBODY[1:])


def test_who_must_leave_is_drawn() -> None:
    found = {judge([EVERYBODY], set(EVERYBODY[1:]), 5, bytes([seed] * 32)) for seed in range(20)}
    assert len(found) > 10


def test_one_who_comes_in_addition_is_left_out() -> None:
    verdict = judge([EVERYBODY[1:]], set(EVERYBODY), 5, SEED)
    assert verdict == TooSimilar(1, frozenset(EVERYBODY[:1]))


def test_every_earlier_sum_counts_not_only_the_last() -> None:
    earlier = [EVERYBODY[:7], EVERYBODY]
    verdict = judge(earlier, set(EVERYBODY[:8]), 5, SEED)
    assert verdict == TooSimilar(1, frozenset(EVERYBODY[7:8]))


P, Q = ({f"{name}{index}" for index in range(10)} for name in "pq")


def test_two_released_sums_and_their_union_with_one_more_client_are_refused() -> None:
    """Any two of the three sets differ by ten clients or more; S3 - S1 - S2 is one client's vector."""
    verdict = judge([P, Q], P | Q | {"u"}, 5, SEED)
    assert verdict == Isolating(1, frozenset({"u"}))
    assert judge([P, Q], P | Q, 5, SEED) == Allowed()  # this sum is known already
    assert judge([P, Q], P | Q | {f"u{index}" for index in range(5)}, 5, SEED) == Allowed()


def test_an_isolated_client_who_is_not_a_survivor_makes_others_leave() -> None:
    verdict = judge([P | {"u"}, Q], P | Q, 5, SEED)
    assert isinstance(verdict, Isolating)
    assert verdict.clients == 1
    left = (P | Q) - verdict.leave_out
    assert left
    assert judge([P | {"u"}, Q], left, 5, SEED) == Allowed()


def test_after_the_last_draw_a_released_set_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differencing, "_MOST_DRAWS", 0)
    assert judge([P | {"u"}, Q], P | Q, 5, SEED) == Isolating(1, P)


def test_sums_that_are_too_complex_to_judge_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released_combinations, "MOST_SETS", 2)
    verdict = judge([P, Q], P | Q | {"u"}, 5, SEED)
    assert isinstance(verdict, TooComplex)
    assert "at most 2 are judged together" in verdict.reason
    assert judge([P, Q], P, 5, SEED) == Allowed()


def test_a_threshold_of_one_forbids_nothing_and_less_is_refused() -> None:
    assert judge([EVERYBODY], set(EVERYBODY[1:]), 1, SEED) == Allowed()
    with pytest.raises(ParameterError, match="threshold"):
        judge([], set(EVERYBODY), 0, SEED)


sets = st.sets(st.sampled_from(EVERYBODY), min_size=1)
seeds = st.binary(min_size=32, max_size=32)


@given(st.lists(sets, max_size=5), sets, st.integers(1, 16), seeds)
def test_what_is_left_may_be_released(
    earlier: list[set[str]], survivors: set[str], threshold: int, seed: bytes
) -> None:
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


@given(
    st.integers(2, 6),
    st.lists(st.sets(st.sampled_from(EVERYBODY)), min_size=1, max_size=12),
    st.integers(2, 6),
    seeds,
)
def test_a_job_over_random_dropouts(threshold: int, dropouts: list[set[str]], floor: int, seed: bytes) -> None:
    """In a frozen cohort that loses its dropouts, every two released sets are equal or differ by the threshold."""
    released: list[set[str]] = []
    cohort = set(EVERYBODY)
    for missing in dropouts:
        survivors = cohort - missing
        if len(survivors) < floor:
            break
        verdict = judge(released, survivors, threshold, seed)
        if isinstance(verdict, Allowed):
            released.append(survivors)
            cohort = survivors
        else:
            cohort = survivors - verdict.leave_out
    for one, other in combinations(released, 2):
        assert len(one ^ other) == 0 or len(one ^ other) >= threshold
