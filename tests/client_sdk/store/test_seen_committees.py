"""Which committees a client accepts for data that it has sent before."""

from __future__ import annotations

from itertools import combinations

import pytest

from client_sdk import MemoryStore
from client_sdk.errors import LocalFileError
from client_sdk.store.client_store import ClientStore
from client_sdk.store.committees import SeenCommittees, load_seen
from protocols.errors import RefusalError
from protocols.sums.oneshot.parameters import OneshotParameters

FIRST = frozenset("abcde")


def test_one_new_member_of_five_is_accepted_for_the_same_data_and_two_are_not() -> None:
    seen = SeenCommittees().with_committee(1, FIRST, 1, same_data=False)
    seen = seen.with_committee(1, FIRST, 1, same_data=False)
    assert seen.committees == (FIRST,)
    seen = seen.with_committee(1, frozenset("abcdf"), 1, same_data=False)
    with pytest.raises(RefusalError, match="2 members of the committee were not in it"):
        seen.with_committee(1, frozenset("abcfg"), 1, same_data=False)


def test_new_data_may_go_to_any_committee_unless_all_sums_are_over_the_same_data() -> None:
    seen = SeenCommittees().with_committee(1, FIRST, 1, same_data=False)
    assert seen.with_committee(2, frozenset("vwxyz"), 1, same_data=False).committees == (frozenset("vwxyz"),)
    with pytest.raises(RefusalError, match="5 members"):
        seen.with_committee(2, frozenset("vwxyz"), 1, same_data=True)
    with pytest.raises(RefusalError, match="repeats sum 1"):
        SeenCommittees(2, (FIRST,)).with_committee(1, FIRST, 1, same_data=False)


@pytest.mark.parametrize(("committee", "corrupt"), [(3, 1), (5, 1), (5, 2), (7, 1), (6, 2), (8, 3)])
def test_two_groups_that_open_sums_have_an_honest_member_in_common(committee: int, corrupt: int) -> None:
    """Exhaustively, for the number of new members that clients accept; with one more there are groups without."""
    parameters = OneshotParameters(committee=committee, corrupt=corrupt)
    threshold = parameters.threshold
    most_new = 2 * threshold - committee - corrupt - 1
    old = set(range(committee))

    def fewest_in_common(new: int) -> int:
        other = set(range(new, committee + new))
        return min(
            len(set(one) & set(two)) for one in combinations(old, threshold) for two in combinations(other, threshold)
        )

    assert fewest_in_common(most_new) > corrupt
    assert fewest_in_common(most_new + 1) <= corrupt


def test_a_record_survives_its_encoding_and_damage_is_noticed() -> None:
    seen = SeenCommittees(3, (FIRST, frozenset("vwxyz")))
    assert SeenCommittees.decode(seen.encode()) == seen
    store = ClientStore(MemoryStore(), "me")
    assert load_seen(store, "t_1") == SeenCommittees()
    store.write("t_1", "committees.json", b"{}")
    with pytest.raises(LocalFileError, match="damaged"):
        load_seen(store, "t_1")
