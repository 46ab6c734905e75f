"""Which clients a sum asks, where cohorts take turns."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from protocols.cohorts import places_after, places_in_turn

MEMBERS, MOST = st.integers(1, 3_000), st.integers(3, 500)


def asked(ranges: Sequence[range]) -> list[int]:
    return [place for some in ranges for place in some]


@given(MEMBERS, MOST)
def test_a_turn_has_as_few_batches_as_can_be_of_nearly_one_size(members: int, most: int) -> None:
    count = -(-members // most)
    batches = [asked(places_in_turn(members, turn, most)) for turn in range(count)]
    sizes = [len(batch) for batch in batches]
    assert sum(batches, []) == list(range(members))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1 and sizes[0] <= most
    assert [asked(places_in_turn(members, turn, most)) for turn in range(count, 2 * count)] == batches


@given(MEMBERS, MOST, st.integers(0, 50), st.data())
def test_a_batch_allows_half_the_share_of_dropouts_of_a_full_cohort_or_is_one(
    members: int, most: int, turn: int, data: st.DataObject
) -> None:
    least = data.draw(st.integers(1, most))
    batch = asked(places_in_turn(members, turn, most, least))
    assert len(set(batch)) == len(batch) <= min(members, most) and set(batch) <= set(range(members))
    allowed, of_most = 1 - least / len(batch), 1 - least / most
    assert len(batch) == min(members, most) or allowed >= of_most / 2 - 1e-12


@given(MEMBERS, MOST)
def test_cohorts_never_overlap_where_a_sum_needs_at_most_a_third_of_one(members: int, most: int) -> None:
    least = most // 3
    batches = [asked(places_in_turn(members, turn, most, least)) for turn in range(-(-members // most))]
    assert sorted(sum(batches, [])) == list(range(members))


@given(st.integers(1, 300), st.integers(2, 60))
def test_cohorts_that_follow_each_other_ask_everybody_equally_often(members: int, most: int) -> None:
    turns = [asked(places_after(members, turn, most)) for turn in range(members)]
    assert all(len(set(turn)) == len(turn) == min(most, members) for turn in turns)
    assert {sum(turns, []).count(place) for place in (0, members - 1)} == {min(most, members)}
    assert members <= most or turns[1][0] == turns[0][-1] + 1 == most % members


def test_members_that_make_small_batches_are_asked_in_cohorts_that_overlap() -> None:
    assert places_in_turn(1_000, 1, 600, 300) == (range(500, 1_000),)
    assert places_in_turn(1_000, 1, 600, 480) == (range(600, 1_000), range(200))
    assert places_in_turn(10, 2, 4, 3) == (range(8, 10), range(2))  # 3 of 3 could not stay away
    assert places_in_turn(10, 2, 4, 2) == (range(7, 10),)
    assert places_in_turn(3, 5, 4, 3) == (range(3),)
