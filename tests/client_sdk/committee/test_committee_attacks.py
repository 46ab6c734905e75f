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


def assert_hidden(server: LyingServer, everybody: NDArray[np.float64]) -> None:
    """The sum without the victim is not opened, or does not give its vector away."""
    if len(server.shares) > 3:
        assert not np.allclose(everybody - server.opened(OTHERS), vector_of(0), atol=1e-3)


def propose(server: LyingServer, names: list[str]) -> None:
    server.proposals = {person.name: names for person in server.members}


def opened(server: LyingServer) -> NDArray[np.float64]:
    """Let the members open the sum of the newest round."""
    server.attend()
    unmask(server)
    return server.opened(NAMES)


def test_an_honest_round_gives_the_exact_sum_of_the_survivors() -> None:
    server = server_in_round()
    assert reasons(server.attend()) == set() and len(server.confirmations) == 5
    assert sum(isinstance(event, ShareSent) for event in unmask(server)) == 5
    expected = sum(vector_of(place) for place in range(6))
    assert np.allclose(server.opened(NAMES), expected, atol=1e-3)


# --- two survivor sets in one round ------------------------------------------------------------------------------


def test_the_server_gets_no_second_set_in_a_round() -> None:
    server = server_in_round()
    everybody = opened(server)
    server.confirmations, server.shares = {}, {}
    propose(server, OTHERS)
    server.view = server.view.model_copy(update={"state": "confirming"})
    (reason,) = reasons(server.attend() + unmask(server))
    assert "was deleted" in reason
    assert_hidden(server, everybody)


def test_a_member_that_has_signed_one_set_signs_no_other() -> None:
    server = server_in_round()
    server.attend()
    server.confirmations = {}
    propose(server, OTHERS)
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
    propose(server, [VICTIM])
    assert "requires at least 3" in reasons(server.attend()).pop()
    assert server.confirmations == {}


# --- the same step again -----------------------------------------------------------------------------------------


def test_a_step_is_not_summed_again_with_one_client_fewer() -> None:
    """The server calls round 1 failed after it was opened, and repeats the step without the victim."""
    server = server_in_round()
    everybody = opened(server)
    server.view = server.view.model_copy(update={"state": "failed"})
    server.attend()
    server_in_round(2, 1, server)
    propose(server, OTHERS)
    assert "too few clients" in " ".join(reasons(server.attend() + unmask(server)))
    assert_hidden(server, everybody)


def test_renamed_clients_count_as_the_same() -> None:
    """The server chooses the ids: a client that enrols again under another one must not look like another client."""
    server = server_in_round()
    opened(server)
    server.open_round(2, 1, len(CLIENTS))
    for place, person in enumerate(CLIENTS[1:], 1):
        server.upload(replace(person, name=f"c_new{place}"), vector_of(place))
    server.view = server.view.model_copy(update={"state": "confirming"})
    assert "too few clients" in reasons(server.attend()).pop()


def test_no_member_goes_back_to_an_earlier_round() -> None:
    server = server_in_round(number=2, step=2)
    server.attend()
    server_in_round(1, 1, server)
    assert "repeats round 1" in reasons(server.attend()).pop() or "was deleted" in reasons(server.attend()).pop()


def test_a_sum_is_not_opened_again_without_one_client_after_another_sum() -> None:
    server = server_in_round()
    everybody = opened(server)
    opened(server_in_round(2, 2, server))
    server_in_round(3, 1, server)
    propose(server, OTHERS)
    assert "too few clients" in reasons(server.attend() + unmask(server)).pop()
    assert_hidden(server, everybody)


def test_a_server_that_says_it_was_restored_opens_nothing_more() -> None:
    """It asks for round 1 and sum 1 again: the members make new keys for the round, and compare the sums as ever."""
    server = server_in_round()
    everybody = opened(server)
    opened(server_in_round(2, 2, server))
    old = dict(server.keys[1])
    server.keys = {2: server.keys[2]}  # of a round that its members have closed, with the keys that they published
    for person in server.members:
        server.service(person).on_restored(0)
    server.publish_keys()
    assert not set(server.keys[1].values()) & set(old.values()), "no key is used twice"
    server_in_round(1, 1, server)
    propose(server, OTHERS)
    assert "too few clients" in reasons(server.attend() + unmask(server)).pop()
    assert_hidden(server, everybody)
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


def test_clients_that_the_server_made_up_are_named_and_nothing_is_signed() -> None:
    """The victim beside two clients that the server made up."""
    server = server_in_round()
    for name in ("c_8", "c_9"):
        server.upload(Person(name), np.zeros(vector_of(0).size))
    propose(server, [VICTIM, "c_8", "c_9"])
    assert server.attend(server.members[0]) == [ClientsNamed(1, ("c_8", "c_9"))]
    assert "requires at least 3" in reasons(server.attend()).pop()
    assert server.confirmations == {}


def test_a_contribution_is_not_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_in_round()
    propose(server, [VICTIM, VICTIM, NAMES[1]])
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
