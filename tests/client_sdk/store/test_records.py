"""What a client remembers: the sets that it signed, the data that it gave, and the committees that it saw."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk import MemoryStore
from client_sdk.committee.record import CommitteeRecord, load_sets
from client_sdk.errors import LocalFileError
from client_sdk.rounds.oneshot import SeenCommittees, close_seen, load_seen
from client_sdk.store import DirectoryStore
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import GivenData, SignedSets, Spending, member_tag, member_tags
from protocols.errors import AlreadySummed, RefusalError
from protocols.privacy.isolation import newly_isolated
from protocols.privacy.noise import ORDERS


def tags(*numbers: int) -> frozenset[bytes]:
    return frozenset(member_tag(bytes([number]) * 32) for number in numbers)


def test_one_set_for_one_sum() -> None:
    """Not a smaller or larger one, and not one that is far away: three of these can isolate one member."""
    record = SignedSets().with_set(4, tags(*range(10)), 3)
    assert record.with_set(4, tags(*range(10)), 3) == record
    for members in (range(9), range(7), range(5), range(11), range(1, 11), range(20, 30)):
        with pytest.raises(RefusalError, match="requires the same survivors:"):
            record.with_set(4, tags(*members), 3)
        assert record.with_set(5, tags(*members), 3).members == tags(*members)


@pytest.mark.parametrize("sum_index", [4, 5])
def test_a_frozen_cohort_only_shrinks(sum_index: int) -> None:
    """With a smallest difference of 3, in the same sum and in the next one."""
    record = SignedSets().with_set(4, tags(*range(10)), 3, same_data=True)
    for members in (range(10), range(7), range(6), range(5), range(1, 8)):
        assert record.with_set(sum_index, tags(*members), 3, True) == SignedSets(sum_index, tags(*members))
    for members in (range(9), range(8), range(13), range(3, 11)):
        with pytest.raises(RefusalError, match="requires the same survivors, or at least 3 fewer of them:"):
            record.with_set(sum_index, tags(*members), 3, same_data=True)


def test_the_first_roster_is_kept() -> None:
    """Later rosters have no other members, and a signed set does not change it."""
    record = SignedSets().with_roster(tags(*range(10)))
    assert record.with_roster(tags(*range(7))) == record
    assert record.with_set(1, tags(*range(9)), 3, same_data=True).universe == tags(*range(10))
    with pytest.raises(RefusalError, match="with 2 members that were not in the first roster"):
        record.with_roster(tags(*range(2, 12)))


def test_one_set_is_signed_for_each_sum_in_whatever_order_the_server_asks() -> None:
    """A server that was restored from a backup asks for sums before the newest one."""
    record = SignedSets().with_set(2, tags(1, 2, 3), 3).with_set(5, tags(1, 2, 3, 4), 3)
    record = record.with_set(3, tags(4, 5, 6), 3)
    assert record.with_set(3, tags(4, 5, 6), 3) == record
    for taken in (2, 5):
        record.require_open(3)
        with pytest.raises(AlreadySummed, match=f"repeats sum {taken}, and this client took part in it"):
            record.require_open(taken)
        with pytest.raises(AlreadySummed):
            record.with_set(taken, tags(1, 2, 3), 3)
    with pytest.raises(AlreadySummed, match="repeats sum 3"):
        record.closed().require_open(3)
    assert SignedSets.decode(record.closed().encode()) == record.closed()
    assert SignedSets().closed() == SignedSets()


def test_sets_over_the_same_data_only_shrink_in_whatever_order_the_server_asks() -> None:
    record = SignedSets().with_set(5, tags(*range(10)), 3, same_data=True)
    record = record.with_set(2, tags(*range(7)), 3, same_data=True)
    with pytest.raises(RefusalError, match="sums the same data again"):
        record.with_set(5, tags(*range(10)), 3, same_data=True)
    assert record.with_set(5, tags(*range(7)), 3, same_data=True).members == tags(*range(7))


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
        b'{"sum_index": 1, "members": "", "universe": "", "earlier": 3}',
    ):
        store.write("me", "t_1", "signed_sets.json", body)
        with pytest.raises(LocalFileError, match="survivor sets of task t_1"):
            client_store.signed_sets("t_1")


def test_tasks_with_one_label_have_one_record_and_other_tasks_their_own(tmp_path: Path) -> None:
    store = ClientStore(DirectoryStore(tmp_path), "me", "https://server.example")
    counted = GivenData().with_counted("t_1", 1).with_confirmed("t_1 once", tags(1, 2, 3))
    store.keep_given("t_1", "ratings", "rows", counted)
    restarted = ClientStore(DirectoryStore(tmp_path), "me", "https://server.example")
    assert restarted.given("t_2", "ratings", "rows") == counted
    assert restarted.given("t_1", "ratings", "held-out") == restarted.given("t_1", None, "rows") == GivenData()
    elsewhere = ClientStore(DirectoryStore(tmp_path), "me", "https://other.example")
    assert elsewhere.given("t_1", "ratings", "rows") == GivenData()
    assert restarted.memberships() == []


def test_data_are_counted_in_one_sum() -> None:
    given = GivenData().with_counted("t_1", 1)
    assert given.with_counted("t_1", 1) == given, "the sum failed and is repeated"
    for task, index in (("t_1", 2), ("t_2", 1)):
        with pytest.raises(RefusalError, match="counted once"):
            given.with_counted(task, index)


def test_data_enter_sums_of_two_tasks_only_over_the_same_clients() -> None:
    """Also where the sets differ by many: other sums, which this client is not in, could make up the difference."""
    five = GivenData().with_confirmed("t_1 once", tags(*range(5)))
    both = five.with_confirmed("t_2 repeated", tags(*range(5)))
    assert both.with_confirmed("t_1 once", tags(*range(5))) == both
    for others in (tags(*range(6)), tags(*range(20))):
        for series in ("t_2 repeated", "t_1 repeated"):
            with pytest.raises(RefusalError, match="over other clients"):
                five.with_confirmed(series, others)
    assert five.with_confirmed("t_1 once", tags(*range(4))) != five, "sets of one series are those of SignedSets"


def test_a_curve_with_infinite_divergences_is_stored() -> None:
    spending = Spending("films", 3, np.full(len(ORDERS), np.inf))
    again = Spending.decode(spending.encode())
    assert np.isinf(again.reserved).all() and not again.spent.any()
    for damaged in (b"Infinity", b"2,"):
        with pytest.raises(ValueError):
            Spending.decode(spending.encode().replace(damaged, b"-1" if damaged == b"Infinity" else b"3,", 1))


FIRST = frozenset("abcde")


def test_one_new_member_of_five_is_accepted_for_the_same_data_and_two_are_not() -> None:
    """New data may go to any committee, unless all sums are over the same data."""
    seen = SeenCommittees().with_committee(1, FIRST, 1, same_data=False)
    assert seen.with_committee(1, FIRST, 1, same_data=False).committees == (FIRST,)
    twice = seen.with_committee(1, frozenset("abcdf"), 1, same_data=False)
    with pytest.raises(RefusalError, match="2 members of the committee were not in it"):
        twice.with_committee(1, frozenset("abcfg"), 1, same_data=False)
    assert seen.with_committee(2, frozenset("vwxyz"), 1, same_data=False).committees == (frozenset("vwxyz"),)
    with pytest.raises(RefusalError, match="5 members"):
        seen.with_committee(2, frozenset("vwxyz"), 1, same_data=True)
    assert seen.with_committee(2, FIRST, 1, same_data=True).with_committee(1, FIRST, 1, same_data=True).earlier == set()


def test_data_are_sent_to_no_sum_again_after_another_one() -> None:
    """A server that was restored from a backup asks for sums before the newest one."""
    seen = SeenCommittees().with_committee(2, FIRST, 1, same_data=False).with_committee(5, FIRST, 1, same_data=False)
    seen = seen.with_committee(3, frozenset("vwxyz"), 1, same_data=False)
    assert seen.with_committee(3, frozenset("vwxyz"), 1, same_data=False) == seen
    for taken in (2, 5):
        with pytest.raises(AlreadySummed, match=f"repeats sum {taken}"):
            seen.with_committee(taken, FIRST, 1, same_data=False)
    assert SeenCommittees.decode(seen.encode()) == seen
    store = ClientStore(MemoryStore(), "me")
    close_seen(store, "t_1")
    assert load_seen(store, "t_1") == SeenCommittees()
    store.write("t_1", "committees.json", seen.encode())
    close_seen(store, "t_1")
    with pytest.raises(AlreadySummed, match="repeats sum 3"):
        load_seen(store, "t_1").with_committee(3, frozenset("vwxyz"), 1, same_data=False)
    store.write("t_1", "committees.json", b"{}")
    with pytest.raises(LocalFileError, match="damaged"):
        load_seen(store, "t_1")


@pytest.mark.parametrize(
    "record", [SignedSets(), CommitteeRecord(7, 3), GivenData()], ids=["signed sets", "committee record", "given data"]
)
def test_a_record_without_one_of_its_fields_is_damaged(record: Any) -> None:
    """No field has a value that is assumed: a sum that the record does not list might be given the data again.

    Those aside that records of earlier versions lack, whose sums had nothing of them.
    """
    whole = json.loads(record.encode())
    assert type(record).decode(json.dumps(whole).encode()) == record
    old = json.dumps({name: value for name, value in whole.items() if name not in record.added}).encode()
    assert type(record).decode(old) == record
    for name in whole.keys() - record.added:
        without = json.dumps({other: value for other, value in whole.items() if other != name}).encode()
        with pytest.raises(ValueError, match="the record has other fields"):
            type(record).decode(without)


def test_seen_committees_without_the_earlier_sums_are_damaged() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        SeenCommittees.decode(b"[3, []]")


def test_sets_of_a_sum_that_a_record_keeps_and_that_are_missing_are_damaged() -> None:
    record = CommitteeRecord(7, 3, kept=frozenset({1, 2}))
    with pytest.raises(LocalFileError, match="committee record of sum 2"):
        load_sets(ClientStore(MemoryStore(), "owner", "https://example.org"), "t1", record, 2)


def test_a_sum_in_groups_is_the_first_over_its_data_and_later_ones_leave_enough_of_each_group() -> None:
    parts = tags(*range(5)), tags(*range(5, 10)), tags(*range(10, 15))
    everyone = tags(*range(15))
    record = SignedSets().with_set(1, everyone, 3, same_data=True, groups=parts)
    assert record.groups == parts and SignedSets.decode(record.encode()) == record
    for members in (everyone, tags(*range(12))):
        with pytest.raises(AlreadySummed):
            record.with_set(1, members, 3, same_data=True, groups=parts)
    with pytest.raises(AlreadySummed):
        record.require_open(1, in_groups=True)
    with pytest.raises(AlreadySummed):
        SignedSets().with_set(2, everyone, 3, same_data=True).with_set(1, everyone, 3, same_data=True, groups=parts)
    later = record.with_set(2, everyone, 3, same_data=True, least=3).with_set(2, tags(*range(3, 15)), 3, True, least=2)
    assert later.groups == parts
    with pytest.raises(RefusalError, match="of a group of the first sum over these data 2 clients are left"):
        record.with_set(2, tags(*range(3, 15)), 3, same_data=True, least=3)
    with pytest.raises(RefusalError, match="0 clients are left"):
        record.with_set(2, tags(*range(5, 15)), 3, same_data=True)


@given(st.data())
def test_no_combination_of_sums_of_groups_and_of_a_chain_is_over_few_clients(draw: st.DataObject) -> None:
    """What a client signs, by an exact search for the smallest set of clients that a combination is over."""
    sizes = draw.draw(st.lists(st.integers(4, 7), min_size=2, max_size=4))
    ends = np.cumsum([0, *sizes]).tolist()
    parts = tuple(tags(*range(*span)) for span in pairwise(ends))
    people, least, difference = list(range(ends[-1])), 3, 2
    record = SignedSets().with_set(1, tags(*people), difference, True, parts, least)
    released: list[frozenset[bytes]] = [*parts]
    for index in range(2, 5):
        left = tags(*draw.draw(st.sets(st.sampled_from(people), min_size=1)))
        try:
            record = record.with_set(index, left, difference, True, least=least)
        except RefusalError:
            continue
        names = [{tag.hex() for tag in one} for one in released]
        assert newly_isolated(names, {tag.hex() for tag in left}, min(least, difference)) is None
        released.append(left)
