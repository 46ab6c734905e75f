"""What a client of a one-shot round accepts as the committee: a lying server, with the defence and with it out."""

from __future__ import annotations

import pytest

from client_sdk import Identity, Membership, MemoryStore, Policy, PolicyRefused
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import RoundLost
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.member import Member
from client_sdk.rounds.oneshot import committee_of, oneshot_context, remember_committee
from client_sdk.store.client_store import ClientStore
from protocols.errors import RefusalError
from protocols.messages import RoundView
from protocols.sums.oneshot.committee import Committee, join_keys, make_committee_key
from tests.client_sdk.committee.lying_server import URL, LyingServer, Person, oneshot_terms
from tests.support.organiser import TRIAL
from tests.support.programs import ProgramRunner, problem

CHECK = MembershipCheck(TRIAL.pin)


def party(check: MembershipCheck, policy: Policy | None = None) -> Member:
    """A client of the task, as far as the checks of its committee need one."""
    terms, calls, identity = oneshot_terms(), ApiCalls(URL, "hrc_token"), Identity.generate()
    membership = Membership(URL, "t_1", "movies", "c_me", "member", "hrc_token")
    return Member(calls, terms, membership, identity, ClientStore(MemoryStore(), "me"), policy or Policy(), check)


def fetched(answer: Response, terms: TaskTerms, view: RoundView, check: MembershipCheck = CHECK) -> Committee:
    """The committee that a client accepts when the server answers with `answer`."""

    def serve(request: Request) -> Response:
        assert request.url.endswith("/rounds/1/committee")
        return answer

    context = oneshot_context(terms, view, bytes(32))
    found: Committee = ProgramRunner(serve).run(committee_of(party(check), context))
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
