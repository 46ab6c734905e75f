"""A lying server against the members of a committee and the clients of one-shot rounds: each attack must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk import MemoryStore, Policy, PolicyRefused
from client_sdk.errors import RoundLost
from client_sdk.rounds.events import ClientsNamed, CommitteeRefused, Event, ShareSent
from client_sdk.rounds.oneshot import committee_of, oneshot_context, remember_committee
from client_sdk.store.client_store import ClientStore
from protocols.codec import b64encode
from protocols.crypto.certificates import CertifiedRole
from protocols.errors import RefusalError
from protocols.sums.oneshot.committee import join_keys, make_committee_key
from tests.client_sdk.committee.lying_server import LyingServer, Person, oneshot_terms
from tests.support.programs import ProgramRunner, problem

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
    server.proposals = dict.fromkeys((person.name for person in server.members), names)


def opened(server: LyingServer) -> NDArray[np.float64]:
    server.attend()
    unmask(server)
    return server.opened(NAMES)


def test_an_honest_round_gives_the_exact_sum_of_the_survivors() -> None:
    server = server_in_round()
    assert reasons(server.attend()) == set() and len(server.confirmations) == 5
    assert sum(isinstance(event, ShareSent) for event in unmask(server)) == 5
    expected = sum(vector_of(place) for place in range(6))
    assert np.allclose(server.opened(NAMES), expected, atol=1e-3)


# --- two survivor sets in one round, too few clients, the same step again ----------------------------------------


def another_set(server: LyingServer) -> None:
    server.attend()
    server.confirmations = {}
    propose(server, OTHERS)


REFUSED_SETS: dict[str, tuple[Callable[[LyingServer], None], str]] = {
    "a second one": (another_set, "signed another set"),
    "of one client": (lambda server: propose(server, [VICTIM]), "requires at least 3"),
    "of one client twice": (lambda server: propose(server, [VICTIM, VICTIM, NAMES[1]]), "twice"),
}


@pytest.mark.parametrize("what", REFUSED_SETS)
def test_no_member_signs_such_a_set(what: str) -> None:
    server, (lie, why) = server_in_round(), REFUSED_SETS[what]
    lie(server)
    assert why in reasons(server.attend()).pop()
    assert server.confirmations == {}


def test_two_sets_for_two_halves_of_the_committee_open_neither() -> None:
    server = server_in_round()
    server.proposals = {person.name: OTHERS for person in server.members[:2]}
    server.attend()
    assert len(server.confirmations) == 5
    assert server.shares == {} and len(reasons(unmask(server))) == 2


def in_this_round(server: LyingServer) -> None:
    server.confirmations, server.shares = {}, {}
    server.view = server.view.model_copy(update={"state": "confirming"})


def in_the_next_round(server: LyingServer) -> None:
    """The server calls round 1 failed after it was opened, and repeats the step."""
    server.view = server.view.model_copy(update={"state": "failed"})
    server.attend()
    server_in_round(2, 1, server)


def after_another_sum(server: LyingServer) -> None:
    opened(server_in_round(2, 2, server))
    server_in_round(3, 1, server)


def under_new_ids(server: LyingServer) -> None:
    """The server chooses the ids: a client that enrols again under another one must not look like another client."""
    server_in_round(2, 1, server)
    server.uploads = {}
    for place, person in enumerate(CLIENTS[1:], 1):
        server.upload(replace(person, name=f"c_new{place}"), vector_of(place))


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (in_this_round, "was deleted"),
        (in_the_next_round, "too few clients"),
        (after_another_sum, "too few clients"),
        (under_new_ids, "too few clients"),
    ],
)
def test_a_sum_is_not_opened_again_without_one_client(again: Callable[[LyingServer], None], why: str) -> None:
    server = server_in_round()
    everybody = opened(server)
    again(server)
    propose(server, [name for name in server.uploads if name != VICTIM])
    assert why in " ".join(reasons(server.attend() + unmask(server)))
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


# --- what a client of a one-shot round accepts as the committee ------------------------------------------------------


def keys_of(people: list[Person]) -> list[bytes]:
    owned = ((each.identity.signing_key, each.name, each.identity.mailbox_key, each.certificate) for each in people)
    return [make_committee_key(key, "t_1", 1, *rest)[1].encode() for key, *rest in owned]


def text_of(people: list[Person]) -> str:
    return b64encode(join_keys(keys_of(people)))


def certified(*roles: CertifiedRole) -> list[Person]:
    return [Person.certified(f"m_{place}", role) for place, role in enumerate(roles)]


COMMITTEES: dict[str, tuple[Callable[[], str], str]] = {
    "made up": (lambda: text_of([Person(f"m_{n}") for n in range(5)]), "no valid proof of membership"),
    "a client among them": (
        lambda: text_of(certified("committee", "member", *["committee"] * 3)), "member 1 .* no valid",
    ),
    "too few": (lambda: text_of(certified(*["committee"] * 4)), "the server names 4"),
    "cut short": (lambda: b64encode(join_keys([keys_of(certified("committee"))[0][:-1]])), "no valid committee"),
    "no text of bytes": (lambda: text_of(certified(*["committee"] * 5)) + "=", "no valid committee"),
}  # fmt: skip


@pytest.mark.parametrize("what", COMMITTEES)
def test_a_client_refuses_a_committee(what: str) -> None:
    make, why = COMMITTEES[what]
    server = LyingServer()
    member, view = server.member(Person("c_me")), server.round_view(1, 1, 8)
    context = oneshot_context(server.terms, view, bytes(32))
    named = view.model_copy(update={"committee_keys": make()})
    with pytest.raises(RefusalError, match=why):
        ProgramRunner(lambda _: problem("not-found")).run(committee_of(member, context, named))
    with pytest.raises(RefusalError, match="asks 3 to 8 clients"):
        oneshot_context(server.terms, server.round_view(1, 1, 9), bytes(32))


def test_a_round_whose_committee_the_server_does_not_name_is_lost() -> None:
    """Its policy has nothing against the round, so no refusal is recorded: a server may be older than this."""
    server = LyingServer()
    member, view = server.member(Person("c_me")), server.round_view(1, 1, 8)
    assert view.committee_keys is None
    with pytest.raises(RoundLost, match="names no committee"):
        ProgramRunner(lambda _: problem("not-found")).run(
            committee_of(member, oneshot_context(server.terms, view, bytes(32)), view)
        )


def test_a_client_sends_the_same_data_to_no_committee_of_strangers() -> None:
    lying, store = LyingServer(), ClientStore(MemoryStore(), "me")
    lying.publish_keys()
    lying.open_round(1, 1, 6)
    remember_committee(store, lying.committee)
    old = lying.members
    lying.members = [*old[:3], *(Person.certified(f"n_{place}", "committee") for place in range(2))]
    lying.keys.pop(2)
    lying.publish_keys()
    lying.open_round(2, 1, 6)
    with pytest.raises(RefusalError, match="2 members of the committee were not in it"):
        remember_committee(store, lying.committee)
    lying.open_round(2, 2, 6)
    remember_committee(store, lying.committee)


def test_a_policy_refuses_a_weak_committee_before_anything_is_sent() -> None:
    terms = oneshot_terms()
    Policy(trust_models=True).check_task(terms)
    for policy, what in ((Policy(min_committee=6), "committee is 5"), (Policy(min_corrupt_members=2), "corrupt is 1")):
        with pytest.raises(PolicyRefused, match=what):
            policy.check_task(terms)
