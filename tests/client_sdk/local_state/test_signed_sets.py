"""The record of the survivor sets that a client signed: what it refuses, its bounds, and how it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_sdk.errors import LocalFileError
from client_sdk.local_state.signed_sets import MOST_SETS, SignedSets, member_tag, member_tags
from client_sdk.local_state.store import ClientStore, DirectoryStore
from protocols.errors import RefusalError


def tags(*numbers: int) -> frozenset[bytes]:
    return frozenset(member_tag(bytes([number]) * 32) for number in numbers)


@pytest.mark.parametrize(
    ("members", "accepted"),
    [(range(10), True), (range(9), False), (range(8), False), (range(7), True), (range(1, 11), False)],
)
def test_sets_of_one_sum_are_equal_or_far_apart(members: range, accepted: bool) -> None:
    """With a smallest difference of 3. Replacing one member by another is a difference of 2."""
    record = SignedSets().with_set(4, tags(*range(10)), 3)
    if accepted:
        assert tags(*members) in record.with_set(4, tags(*members), 3).sets
    else:
        with pytest.raises(RefusalError, match="requires at least 3"):
            record.with_set(4, tags(*members), 3)


def test_every_earlier_set_counts_and_not_only_the_last() -> None:
    record = SignedSets().with_set(1, tags(*range(10)), 3).with_set(1, tags(*range(20, 30)), 3)
    with pytest.raises(RefusalError, match="differ by 1"):
        record.with_set(1, tags(*range(9)), 3)


def test_the_record_is_bounded_and_refuses_what_it_no_longer_knows() -> None:
    record = SignedSets()
    for number in range(MOST_SETS):
        record = record.with_set(2, tags(*range(5 * number, 5 * number + 5)), 3)
    with pytest.raises(RefusalError, match="confirms no further one"):
        record.with_set(2, tags(*range(200, 205)), 3)
    assert record.with_set(2, tags(*range(5)), 3) == record
    later = record.with_set(3, tags(1, 2, 3), 3)
    assert later.sets == (tags(1, 2, 3),)
    with pytest.raises(RefusalError, match="repeats sum 2 after"):
        later.with_set(2, tags(*range(5)), 3)


def test_the_record_is_stored_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    client_store = ClientStore(store, "me")
    assert client_store.signed_sets("t_1") == SignedSets()
    record = SignedSets().with_set(7, member_tags((bytes(32), bytes([1]) * 32), frozenset({1})), 3)
    client_store.keep_signed_sets("t_1", record)
    assert ClientStore(DirectoryStore(tmp_path), "me").signed_sets("t_1") == record
    for body in (
        b"{",
        b"[]",
        b'{"sum_index": 1}',
        b'{"sum_index": 1, "sets": ["AAAA"]}',
        b'{"sum_index": 1, "sets": 3}',
    ):
        store.write("me", "t_1", "signed_sets.json", body)
        with pytest.raises(LocalFileError, match="survivor sets of task t_1"):
            client_store.signed_sets("t_1")
