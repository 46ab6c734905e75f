"""Groups of a cohort: which are kept, and the bound on what those that lie can do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import REPEATED_ROWS, TRAINED, Block, Segment, VectorLayout
from protocols.sums.group_sums import used_sums
from protocols.sums.groups import (
    FEWEST_IN_DEGREES,
    NO_RULE,
    TAU,
    KeptGroups,
    advised_groups_of_degrees,
    default_groups_of_degrees,
    require_groups,
    sum_of_kept,
    trust_of_groups,
    use_groups,
)


def kept_of(means: Sequence[NDArray[np.floating]], tau: float) -> KeptGroups:
    """Which means are kept, of groups of one client, whose values are one row."""
    return use_groups(means, [1] * len(means), tau, len(means[0])).groups


@given(st.integers(0, 2**32), st.integers(3, 12), st.floats(1.0, 4.0), st.integers(1, 200))
def test_liars_move_the_mean_of_the_kept_by_at_most_the_bound(seed: int, groups: int, tau: float, length: int) -> None:
    """Whatever less than half of the groups hold; also where the liars agree, or are near."""
    rng = np.random.default_rng(seed)
    means = list(rng.standard_normal((groups, length)) * rng.choice([1e-3, 1.0, 1e3]))
    lying = int(rng.integers(0, (groups + 1) // 2))
    push = rng.standard_normal(length) * rng.choice([0.1, 1.0, 1e6])
    for group in range(lying):
        means[group] = means[group] + push * (1.0 if seed % 2 else rng.standard_normal())
    found = kept_of(means, tau)
    assert len(found.kept) >= groups / 2
    honest = [group for group in found.kept if group >= lying]
    if not honest:
        return
    clients = rng.integers(1, 9, groups)
    sums = [mean * count for mean, count in zip(means, clients, strict=True)]
    all_kept, honest_kept = (sum_of_kept(sums, clients, kept) / clients.sum() for kept in (found.kept, honest))
    share = 1.0 - clients[honest].sum() / clients[list(found.kept)].sum()
    assert np.linalg.norm(all_kept - honest_kept) <= found.deviation(share, tau) * (1 + 1e-6) + 1e-6


def test_far_groups_are_dropped_whatever_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.sums.groups._PIECE", 7)
    rng = np.random.default_rng(1)
    means = [rng.standard_normal(100).astype(np.float32) for _ in range(9)]
    means[4][:] += 9.0
    found = kept_of(means, 2.0)
    assert found.kept == (0, 1, 2, 3, 5, 6, 7, 8)
    whole = np.linalg.norm(np.array(means, float) - np.median(np.array(means, float), axis=0), axis=1)
    np.testing.assert_allclose(found.distances, whole)
    sums = [mean * count for mean, count in zip(means, range(1, 10), strict=True)]
    expected = np.sum([sums[group] for group in found.kept], axis=0) * 45 / 40
    np.testing.assert_allclose(sum_of_kept(sums, range(1, 10), found.kept), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(sum_of_kept(sums, range(1, 10), range(9)), np.sum(sums, axis=0, dtype=float))


def test_values_that_are_no_numbers_are_refused() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(ParameterError, match="not finite"):
            kept_of([np.zeros(2), np.zeros(2), np.array([0.0, value])], 2.0)
    for tau in (np.nan, np.inf, 0.99):
        with pytest.raises(ParameterError, match="tau"):
            kept_of([np.zeros(2)] * 3, tau)
    with pytest.raises(ParameterError, match="one length"):
        kept_of([np.zeros((2, 2))] * 3, 1.0)


@given(st.integers(0, 2**32), st.integers(3, 12), st.floats(1.0, 4.0), st.integers(1, 40), st.integers(1, 5))
def test_liars_move_each_row_by_at_most_its_limit(seed: int, groups: int, tau: float, rows: int, row: int) -> None:
    """Also where all they do is in one row, and within what the whole segment allows."""
    rng = np.random.default_rng(seed)
    means = list(rng.standard_normal((groups, rows * row)) * rng.choice([1e-3, 1.0, 1e3]))
    lying = int(rng.integers(0, (groups + 1) // 2))
    for group in range(lying):
        means[group] = means[group].copy()
        means[group][:row] += rng.choice([0.1, 1.0, np.sqrt(rows), 1e6])
    clients = rng.integers(1, 9, groups)
    found = use_groups([mean * count for mean, count in zip(means, clients, strict=True)], clients.tolist(), tau, row)
    honest = [group for group in found.groups.kept if group >= lying]
    if not honest:
        return
    centre = np.median(means, axis=0).reshape(rows, row)
    inside = []
    for group in honest:
        off = means[group].reshape(rows, row) - centre
        far = np.linalg.norm(off, axis=1)
        inside.append(centre + off * np.minimum(1.0, found.limits / np.maximum(far, 1e-300))[:, None])
    of_honest = np.average(inside, axis=0, weights=clients[honest])
    moved = np.linalg.norm((found.total / clients.sum()).reshape(rows, row) - of_honest, axis=1)
    share = 1.0 - clients[honest].sum() / clients[list(found.groups.kept)].sum()
    assert (moved <= share * 2.0 * found.limits * (1 + 1e-6) + 1e-6 * (1 + np.abs(centre).max())).all()


def test_what_a_liar_puts_into_one_row_is_limited_and_the_rest_is_the_exact_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group is within the distance that the whole segment allows: without rows nothing would stop it."""
    monkeypatch.setattr("protocols.sums.groups._PIECE", 12)  # several pieces
    rng = np.random.default_rng(2)
    sums = list(rng.integers(-8, 9, (5, 200)).astype(float))
    honest = np.sum(sums, axis=0)
    lied = [*sums[:4], sums[4].copy()]
    lied[4][100:104] += 40.0
    whole, by_row = use_groups(lied, [4] * 5, 2.0, 200), use_groups(lied, [4] * 5, 2.0, 4)
    assert whole.groups.kept == by_row.groups.kept == (0, 1, 2, 3, 4)
    assert np.array_equal(whole.total, np.sum(lied, axis=0))
    assert by_row.limited[4] >= 0.02 and max(by_row.limited) < 0.2
    untouched = np.flatnonzero(by_row.total == honest)
    assert untouched.size > 150
    moved = np.linalg.norm(by_row.total[100:104] - honest[100:104])
    assert moved < 0.4 * np.linalg.norm(whole.total[100:104] - honest[100:104])
    lax = use_groups(lied, [4] * 5, 50.0, 4)
    assert lax.limited == (0.0,) * 5 and np.array_equal(lax.total, np.sum(lied, axis=0))


def test_rows_that_one_group_alone_has_trained_are_not_taken_from_it() -> None:
    """The median group has nothing there: the limit is that of a middling row."""
    rng = np.random.default_rng(3)
    sums = list(rng.standard_normal((5, 40)))
    for group, one in enumerate(sums):
        one[:4] = 1.0 if group == 2 else 0.0
    found = use_groups(sums, [1] * 5, 2.0, 4)
    assert found.limits[0] == pytest.approx(2.0 * found.groups.median / np.sqrt(10))
    assert np.array_equal(found.total[:4], np.ones(4))


def test_lengths_that_are_no_rows_are_refused() -> None:
    with pytest.raises(ParameterError, match="no rows of 3"):
        use_groups([np.zeros(4)] * 3, [1] * 3, 2.0, 3)
    for row in (3, 0):
        with pytest.raises(ParameterError, match=f"4 values are no rows of {row}"):
            Segment("v", 4, 1.0, row=row)


COUNTS = Block("degrees", (Segment("degrees", 4, 1.0, integral=True, row=1),))
DEGREES = VectorLayout((COUNTS,), sum_class=REPEATED_ROWS, in_groups=True)


def test_only_where_counts_are_a_floor_is_no_value_above_what_all_groups_have() -> None:
    """The first group has few of one item and is limited upwards; then the last has a sum that is not possible."""
    floor = VectorLayout((COUNTS,), sum_class=REPEATED_ROWS, in_groups=True, is_floor=True)
    sums, sizes = [np.array(one, float) for one in ([0, 30, 9, 5], [20, 28, 8, 4], [21, 31, 9, 5])], [40, 40, 40]
    free, held = (used_sums(layout, sums, sizes, TAU).total() for layout in (DEGREES, floor))
    assert free[0] > 41 and held[0] == 41 and (held <= np.sum(sums, axis=0)).all()
    free, held = (used_sums(layout, [*sums[:2], None], sizes, TAU).total() for layout in (DEGREES, floor))
    np.testing.assert_array_equal(free, np.rint(1.5 * (sums[0] + sums[1])))
    np.testing.assert_array_equal(held, sums[0] + sums[1])


def test_degrees_are_split_by_themselves_into_three_large_groups() -> None:
    def works(clients: int, groups: int) -> bool:
        return clients >= 100 * groups

    fewest = 3 * FEWEST_IN_DEGREES
    assert default_groups_of_degrees(50, fewest, 100, works) == 3
    assert default_groups_of_degrees(FEWEST_IN_DEGREES + 1, fewest, 100, works) == 1, "fewer clients than items"
    assert default_groups_of_degrees(50, fewest - 3, 100, works) == default_groups_of_degrees(
        50, fewest + 1, 100, works
    )
    assert default_groups_of_degrees(50, fewest, FEWEST_IN_DEGREES // 2 + 1, works) == 1, "half of a group at most"
    assert default_groups_of_degrees(50, fewest, 99, works) == 1, "rounds of the fewest clients do not work"


def test_splitting_degrees_is_advised_where_items_have_owners_enough_in_every_group() -> None:
    def works(clients: int, groups: int) -> bool:
        return clients >= 60 * groups

    assert advised_groups_of_degrees(100, 400, 4500, works) == (3, 399, 67)
    assert advised_groups_of_degrees(100, 400, 4499, works) is None, "fewer than fifteen owners an item in each group"
    assert advised_groups_of_degrees(10, 299, 4500, works) is None, "groups of 99"
    assert advised_groups_of_degrees(100, 400, 4500, lambda *_: False) is None, "no round works in groups"


def test_members_are_told_which_sums_are_split() -> None:
    whole = VectorLayout((COUNTS,), sum_class=TRAINED)
    assert trust_of_groups(1, TAU, DEGREES) == []
    (first,), (all_sums,) = trust_of_groups(3, TAU, DEGREES), trust_of_groups(3, NO_RULE, whole)
    assert first.startswith("The first sum is split into 3 groups") and "What is used of it is made of those" in first
    assert all_sums.startswith("A cohort is split into 3 groups") and "their total, which one member" in all_sums
    require_groups(DEGREES, 30, 3)
    with pytest.raises(ParameterError, match="Only a sum of item degrees is split"):
        require_groups(VectorLayout((COUNTS,), sum_class=REPEATED_ROWS), 30, 3)
