"""What a client gave of its data, in all tasks of a data set: counted once, and no combination isolates a few."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_sdk.store.client_store import ClientStore
from client_sdk.store.signed_sets import member_tag
from client_sdk.store.states import GivenData
from client_sdk.store.stores import DirectoryStore
from protocols.errors import RefusalError


def people(*numbers: int) -> frozenset[bytes]:
    return frozenset(member_tag(bytes([number] * 32)) for number in numbers)


def test_tasks_with_one_label_have_one_record_and_other_tasks_their_own(tmp_path: Path) -> None:
    store = ClientStore(DirectoryStore(tmp_path), "me", "https://server.example")
    counted = GivenData().with_counted("t_1", 1).with_confirmed("t_1 once", people(1, 2, 3))
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
    five = GivenData().with_confirmed("t_1 once", people(*range(5)))
    both = five.with_confirmed("t_2 repeated", people(*range(5)))
    assert both.with_confirmed("t_1 once", people(*range(5))) == both
    for others in (people(*range(6)), people(*range(20))):
        for series in ("t_2 repeated", "t_1 repeated"):
            with pytest.raises(RefusalError, match="over other clients"):
                five.with_confirmed(series, others)
    assert five.with_confirmed("t_1 once", people(*range(4))) != five, "sets of one series are those of SignedSets"
