"""A lying server against the members of a committee and the clients of one-shot rounds: each attack must fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk import Identity, Membership, MemoryStore, Policy, PolicyRefused
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import RoundLost
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.events import ClientsNamed, CommitteeRefused, Event, ShareSent
from client_sdk.rounds.member import Member
from client_sdk.rounds.oneshot import committee_of, oneshot_context, remember_committee
from client_sdk.store.client_store import ClientStore
from protocols.errors import RefusalError
from protocols.messages import RoundView
from protocols.sums.oneshot.committee import Committee, join_keys, make_committee_key
from tests.client_sdk.committee import lying_server
from tests.client_sdk.committee.lying_server import URL, LyingServer, Person, oneshot_terms
from tests.support.programs import ProgramRunner, problem
from tests.support.tasks import TRIAL

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


# --- what a client of a one-shot round accepts as the committee ------------------------------------------------------


def fetched(answer: Response, terms: TaskTerms, view: RoundView) -> Committee:
    """The committee that a client accepts when the server answers with `answer`."""

    def serve(request: Request) -> Response:
        assert request.url.endswith("/rounds/1/committee")
        return answer

    membership, who = Membership(URL, "t_1", "movies", "c_me", "member", "hrc_token"), Identity.generate()
    store, check = ClientStore(MemoryStore(), "me"), MembershipCheck(TRIAL.pin)
    member = Member(ApiCalls(URL, "hrc_token"), terms, membership, who, store, Policy(), check)
    context = oneshot_context(terms, view, bytes(32))
    found: Committee = ProgramRunner(serve).run(committee_of(member, context))
    return found


def body_of(keys: list[bytes]) -> Response:
    body = join_keys(keys)
    return Response(200, {"content-digest": content_digest(body)}, body)


def test_a_committee_that_the_server_made_up_is_refused() -> None:
    terms = oneshot_terms()
    view = LyingServer(terms).round_view(1, 1, 8)
    people = [Person(f"m_{place}") for place in range(5)]
    made = [make_committee_key(each.identity.signing_key, "t_1", 1, each.name) for each in people]
    answer = body_of([key.encode() for _, key in made])
    with pytest.raises(RefusalError, match="no valid proof of membership"):
        fetched(answer, terms, view)


def test_a_committee_with_certified_clients_instead_of_members_is_refused() -> None:
    terms = oneshot_terms()
    people = [Person.certified(f"m_{place}", "member" if place == 3 else "committee") for place in range(5)]
    keys = [
        make_committee_key(each.identity.signing_key, "t_1", 1, each.name, each.identity.mailbox_key, each.certificate)[
            1
        ].encode()
        for each in people
    ]
    view = LyingServer(terms).round_view(1, 1, 8)
    with pytest.raises(RefusalError, match="member 3 .* no valid proof"):
        fetched(body_of(keys), terms, view)
    with pytest.raises(RefusalError, match="the server names 4"):
        fetched(body_of(keys[:4]), terms, view)
    with pytest.raises(RefusalError, match="no valid committee"):
        fetched(body_of([keys[0][:-1]]), terms, view)
    with pytest.raises(RoundLost, match="cannot be fetched"):
        fetched(problem("not-found"), terms, view)


def test_a_round_of_more_clients_than_the_task_allows_is_refused() -> None:
    terms = oneshot_terms()
    view = LyingServer(terms).round_view(1, 1, 9)
    with pytest.raises(RefusalError, match="asks 3 to 8 clients"):
        oneshot_context(terms, view, bytes(32))


def test_a_client_sends_the_same_data_to_no_committee_of_strangers() -> None:
    lying, store = LyingServer(), ClientStore(MemoryStore(), "me")
    lying.publish_keys()
    lying.open_round(1, 1, 6)
    remember_committee(store, lying.open_committee)
    old = lying.members
    lying.members = [*old[:3], *(Person.certified(f"n_{place}", "committee") for place in range(2))]
    lying.stores |= {member.name: MemoryStore() for member in lying.members[3:]}
    lying.keys.pop(2)
    lying.publish_keys()
    lying.open_round(2, 1, 6)
    with pytest.raises(RefusalError, match="2 members of the committee were not in it"):
        remember_committee(store, lying.open_committee)
    lying.open_round(2, 2, 6)
    remember_committee(store, lying.open_committee)


def test_a_policy_refuses_a_weak_committee_before_anything_is_sent() -> None:
    terms = oneshot_terms()
    Policy().check_task(terms)
    for policy, what in ((Policy(min_committee=6), "committee is 5"), (Policy(min_corrupt_members=2), "corrupt is 1")):
        with pytest.raises(PolicyRefused, match=what):
            policy.check_task(terms)
