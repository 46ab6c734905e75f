"""A lying server against the members of a committee: each attack must fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.rounds.events import ClientsNamed, CommitteeRefused, Event, ShareSent
from tests.client_sdk.committee import lying_server
from tests.client_sdk.committee.lying_server import LyingServer, Person, oneshot_terms

CLIENTS = [Person.certified(f"c_{place}", "member") for place in range(6)]
NAMES = [person.name for person in CLIENTS]
VICTIM = NAMES[0]
OTHERS = NAMES[1:]


def vector_of(place: int) -> NDArray[np.float64]:
    """The same data of a client in every round: whole counts, and values between -0.5 and 0.5."""
    layout = oneshot_terms().sum_plan.layout
    drawn = np.random.default_rng(place).uniform(-0.5, 0.5, layout.length)
    return np.where(np.concatenate([block.integral_mask() for block in layout.blocks]), 1.0, drawn)


def server_in_round(number: int = 1, step: int = 1, server: LyingServer | None = None) -> LyingServer:
    """A server whose round has the contributions of all clients and is in the state confirming."""
    if server is None:
        server = LyingServer()
        server.publish_keys()
    server.open_round(number, step, len(CLIENTS))
    for place, person in enumerate(CLIENTS):
        server.upload(person, vector_of(place))
    server.view = server.view.model_copy(update={"state": "confirming"})
    return server


def unmask(server: LyingServer) -> list[Event]:
    server.view = server.view.model_copy(update={"state": "unmasking"})
    return server.attend()


def reasons(events: list[Event]) -> set[str]:
    return {event.reason for event in events if isinstance(event, CommitteeRefused)}


def recovered(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    return bool(np.allclose(first - second, vector_of(0), atol=1e-3))


def test_an_honest_round_gives_the_exact_sum_of_the_survivors() -> None:
    server = server_in_round()
    assert reasons(server.attend()) == set() and len(server.confirmations) == 5
    assert sum(isinstance(event, ShareSent) for event in unmask(server)) == 5
    expected = sum(vector_of(place) for place in range(6))
    assert np.allclose(server.opened(NAMES), expected, atol=1e-3)


# --- two survivor sets in one round ------------------------------------------------------------------------------


def ask_for_two_sets(server: LyingServer) -> tuple[list[Event], bool]:
    """Ask for the sum of all, then for the sum without the victim; whether the victim's vector was found."""
    server.attend()
    unmask(server)
    everybody = server.opened(NAMES)
    server.confirmations, server.shares = {}, {}
    server.proposals = {person.name: OTHERS for person in server.members}
    server.view = server.view.model_copy(update={"state": "confirming"})
    events = server.attend() + unmask(server)
    return events, len(server.shares) > 3 and recovered(everybody, server.opened(OTHERS))


def test_the_server_gets_no_second_set_in_a_round() -> None:
    events, found = ask_for_two_sets(server_in_round())
    assert not found
    assert len(reasons(events)) == 1 and "was deleted" in reasons(events).pop()


def test_a_member_that_has_signed_one_set_signs_no_other() -> None:
    server = server_in_round()
    server.attend()
    server.confirmations = {}
    server.proposals = {person.name: OTHERS for person in server.members}
    assert "signed another set" in reasons(server.attend()).pop()
    assert server.confirmations == {}


def test_two_sets_for_two_halves_of_the_committee_open_neither() -> None:
    server = server_in_round()
    server.proposals = {person.name: OTHERS for person in server.members[:2]}
    server.attend()
    assert len(server.confirmations) == 5
    events = unmask(server)
    assert server.shares == {} and len(reasons(events)) == 2


# --- too few clients ---------------------------------------------------------------------------------------------


def test_no_member_signs_a_set_of_one() -> None:
    server = server_in_round()
    server.proposals = {person.name: [VICTIM] for person in server.members}
    assert "requires at least 3" in reasons(server.attend()).pop()
    assert server.confirmations == {}


# --- the same step again -----------------------------------------------------------------------------------------


def sum_again_without_victim(server: LyingServer) -> tuple[list[Event], bool]:
    """Call round 1 failed after it was opened, and repeat the step without the victim."""
    server.attend()
    unmask(server)
    everybody = server.opened(NAMES)
    server.view = server.view.model_copy(update={"state": "failed"})
    server.attend()
    server_in_round(2, 1, server)
    server.proposals = {person.name: OTHERS for person in server.members}
    events = server.attend() + unmask(server)
    return events, len(server.shares) > 3 and recovered(everybody, server.opened(OTHERS))


def test_a_step_is_not_summed_again_with_one_client_fewer() -> None:
    events, found = sum_again_without_victim(server_in_round())
    assert not found and "too few clients" in " ".join(reasons(events))


def test_renamed_clients_count_as_the_same() -> None:
    """The server chooses the ids: a client that enrols again under another one must not look like another client."""
    server = server_in_round()
    server.attend()
    unmask(server)
    server.open_round(2, 1, len(CLIENTS))
    for place, person in enumerate(CLIENTS[1:], 1):
        server.upload(replace(person, name=f"c_new{place}"), vector_of(place))
    server.view = server.view.model_copy(update={"state": "confirming"})
    assert "too few clients" in reasons(server.attend()).pop()


def opened_twice(server: LyingServer) -> NDArray[np.float64]:
    """Let the members open sums 1 and 2, in rounds 1 and 2; return sum 1."""
    server.attend()
    unmask(server)
    everybody = server.opened(NAMES)
    server_in_round(2, 2, server)
    server.attend()
    unmask(server)
    return everybody


def test_no_member_goes_back_to_an_earlier_round() -> None:
    server = server_in_round(number=2, step=2)
    server.attend()
    server_in_round(1, 1, server)
    assert "repeats round 1" in reasons(server.attend()).pop() or "was deleted" in reasons(server.attend()).pop()


def test_a_sum_is_not_opened_again_without_one_client_after_another_sum() -> None:
    server = server_in_round()
    everybody = opened_twice(server)
    server_in_round(3, 1, server)
    server.proposals = {person.name: OTHERS for person in server.members}
    events = server.attend() + unmask(server)
    assert "too few clients" in reasons(events).pop()
    assert len(server.shares) <= 3 or not recovered(everybody, server.opened(OTHERS))


def test_a_server_that_says_it_was_restored_opens_nothing_more() -> None:
    """It asks for round 1 and sum 1 again: the members make new keys for the round, and compare the sums as ever."""
    server = server_in_round()
    everybody = opened_twice(server)
    old = dict(server.keys[1])
    server.keys = {2: server.keys[2]}  # of a round that its members have closed, with the keys that they published
    for person in server.members:
        server.service(person).on_restored(0)
    server.publish_keys()
    assert not set(server.keys[1].values()) & set(old.values()), "no key is used twice"
    server_in_round(1, 1, server)
    server.proposals = {person.name: OTHERS for person in server.members}
    events = server.attend() + unmask(server)
    assert "too few clients" in reasons(events).pop()
    assert len(server.shares) <= 3 or not recovered(everybody, server.opened(OTHERS))
    server_in_round(2, 1, server)
    assert "keys that are not its own" in reasons(server.attend()).pop(), "the key of round 2 was deleted"


# --- shares that are not the client's ----------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ["replayed", "for another member"])
def test_a_share_that_the_client_did_not_seal_for_this_member_now_is_not_summed(
    attack: str,
) -> None:
    server = server_in_round(1)
    earlier = {name: sent.sealed for name, sent in server.uploads.items()}
    server_in_round(2, 2, server)

    def wrong(member_id: str, client_id: str, share: bytes) -> bytes:
        if client_id != VICTIM:
            return share
        place = server.open_committee.place(member_id)
        now = server.uploads[VICTIM].sealed
        return earlier[VICTIM][place] if attack == "replayed" else now[(place + 1) % len(now)]

    server.share_of = wrong
    events = server.attend(server.members[0])
    assert events == [ClientsNamed(2, (VICTIM,))] and server.confirmations == {}


# --- what the server adds ----------------------------------------------------------------------------------------


def with_own_clients(server: LyingServer) -> None:
    """Propose the victim beside two clients that the server made up."""
    own = [Person("c_8"), Person("c_9")]
    for person in own:
        server.upload(person, np.zeros(vector_of(0).size))
    server.proposals = {person.name: [VICTIM, "c_8", "c_9"] for person in server.members}


def test_clients_that_the_server_made_up_are_named_and_nothing_is_signed() -> None:
    server = server_in_round()
    with_own_clients(server)
    assert server.attend(server.members[0]) == [ClientsNamed(1, ("c_8", "c_9"))]
    assert "requires at least 3" in reasons(server.attend()).pop()
    assert server.confirmations == {}


def test_a_contribution_is_not_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_in_round()
    server.proposals = {person.name: [VICTIM, VICTIM, NAMES[1]] for person in server.members}
    assert "twice" in reasons(server.attend()).pop() and server.confirmations == {}
    # behind the members' backs: the sum over all clients, with the victim's contribution folded twice
    server.proposals = {}
    server.attend()
    unmask(server)
    signed = lying_server.survivors_digest(server.statements("m_0"))
    monkeypatch.setattr(lying_server, "survivors_digest", lambda _: signed)
    with pytest.raises(ValueError, match="masks do not come off"):
        server.opened([*NAMES, VICTIM])
    assert server.opened(NAMES).size
