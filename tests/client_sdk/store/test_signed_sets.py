"""The record of the survivor sets that a client signed: what it refuses, its bounds, and how it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_sdk.errors import LocalFileError
from client_sdk.store.client_store import ClientStore
from client_sdk.store.signed_sets import SignedSets, member_tag, member_tags
from client_sdk.store.stores import DirectoryStore
from protocols.errors import RefusalError


def tags(*numbers: int) -> frozenset[bytes]:
    return frozenset(member_tag(bytes([number]) * 32) for number in numbers)


@pytest.mark.parametrize("members", [range(9), range(7), range(5), range(11), range(1, 11), range(20, 30)])
def test_one_set_for_one_sum(members: range) -> None:
    """Not a smaller or larger one, and not one that is far away: three of these can isolate one member."""
    record = SignedSets().with_set(4, tags(*range(10)), 3)
    assert record.with_set(4, tags(*range(10)), 3) == record
    with pytest.raises(RefusalError, match="requires the same survivors:"):
        record.with_set(4, tags(*members), 3)
    assert record.with_set(5, tags(*members), 3).members == tags(*members)


@pytest.mark.parametrize(
    ("members", "accepted"),
    [
        (range(10), True),
        (range(9), False),
        (range(8), False),
        (range(7), True),
        (range(13), False),
        (range(6), True),
        (range(5), True),
        (range(1, 8), True),
        (range(3, 11), False),
    ],
)
@pytest.mark.parametrize("sum_index", [4, 5])
def test_a_frozen_cohort_only_shrinks(members: range, accepted: bool, sum_index: int) -> None:
    """With a smallest difference of 3, in the same sum and in the next one."""
    record = SignedSets().with_set(4, tags(*range(10)), 3, same_data=True)
    if accepted:
        assert record.with_set(sum_index, tags(*members), 3, True) == SignedSets(sum_index, tags(*members))
    else:
        with pytest.raises(RefusalError, match="requires the same survivors, or at least 3 fewer of them:"):
            record.with_set(sum_index, tags(*members), 3, same_data=True)


def test_the_first_roster_is_kept() -> None:
    """Later rosters have no other members, and a signed set does not change it."""
    record = SignedSets().with_roster(tags(*range(10)))
    assert record.with_roster(tags(*range(7))) == record
    assert record.with_set(1, tags(*range(9)), 3, same_data=True).universe == tags(*range(10))
    with pytest.raises(RefusalError, match="with 2 members that were not in the first roster"):
        record.with_roster(tags(*range(2, 12)))


@pytest.mark.parametrize("same_data", [False, True])
def test_an_earlier_sum_is_refused(same_data: bool) -> None:
    record = SignedSets().with_set(3, tags(1, 2, 3), 3, same_data)
    with pytest.raises(RefusalError, match="repeats sum 2 after"):
        record.with_set(2, tags(1, 2, 3), 3, same_data)


def test_the_record_is_stored_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    client_store = ClientStore(store, "me")
    assert client_store.signed_sets("t_1") == SignedSets()
    record = SignedSets().with_set(7, member_tags((bytes(32), bytes([1]) * 32), frozenset({1})), 3)
    record = record.with_roster(tags(1, 2))
    client_store.keep_signed_sets("t_1", record)
    assert ClientStore(DirectoryStore(tmp_path), "me").signed_sets("t_1") == record
    for body in (
        b"{",
        b"[]",
        b'{"sum_index": 1}',
        b'{"sum_index": 1, "members": "AAAA"}',
        b'{"sum_index": 1, "members": 3}',
        b'{"sum_index": 1, "members": ""}',
    ):
        store.write("me", "t_1", "signed_sets.json", body)
        with pytest.raises(LocalFileError, match="survivor sets of task t_1"):
            client_store.signed_sets("t_1")
