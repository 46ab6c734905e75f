"""A member of a masked task computes the model itself: which models of a server it takes, and whose word it needs.

Rounds 1 to `LAST` are complete. The contributions to a round state the chain before it, which covers the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from client_sdk import Identity, MemoryStore, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import FalseModel, NotAttested
from client_sdk.model.follow import CaughtUp, ModelFollower
from client_sdk.model.sync import absorb_aggregate
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import Event, RoundMissed
from client_sdk.rounds.member import Member, MembershipCheck
from client_sdk.rounds.part import Part
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Membership
from client_sdk.training import client_side
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.errors import CodecError
from protocols.layout import whole_route
from protocols.messages import Attestation, AttestationPage, RoundPage, RoundView, SnapshotView
from protocols.recipes.base import ModelState
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.wire import pack
from tests.support.one_member import HISTORY, NOW, PIN, Contributor, attempt
from tests.support.programs import SEED, ProgramRunner, problem, round_view, task_view

SURVIVORS, FLOOR = 4, 3
TERMS = TaskTerms.of(task_view("fedmf", {"items": 6, "dim": 4, "clip": 1.0}, "masked"))
OTHERS = [Contributor(f"c_{number:020x}") for number in range(12)]

Change = Callable[[bytes], bytes]


def aggregate(value: float, beyond: bool = False) -> bytes:
    """The sum of contributions whose values are `value` together; or of values that no contributions have."""
    plan = MaskedPlan.of(TERMS.sum_plan)
    vectors = [np.full(block.length, value) for block in plan.layout.blocks]
    elements = plan.encode(whole_route(plan.layout), vectors)
    if beyond:
        elements[0] = 1 << (plan.bits - 2)
    return pack(elements, plan.bits)


@dataclass
class Server:
    """A server of a masked task."""

    last: int
    lies: dict[int, Change] = field(default_factory=dict)
    """What it makes of the encoded model after a round; the digest is of that."""
    sums: dict[int, bytes] = field(default_factory=dict)
    attest: list[Attestation] | None = None
    """The attestations of the last round; by default all others state what an honest server has given them."""

    def __post_init__(self) -> None:
        state: ModelState = TERMS.recipe.initial_state(SEED)
        chain = AggregateChain.first("t_1")
        self.views: list[RoundView] = []
        self.states: dict[int, bytes] = {}
        self.chains = {0: chain}
        for number in range(1, self.last + 1):
            spec, honest = TERMS.recipe.round_spec(SEED, number), aggregate(number / 100)
            self.sums.setdefault(number, honest)
            total = TERMS.mechanism.open(TERMS.sum_plan, honest, SURVIVORS, None)
            body = TERMS.recipe.encode_state(TERMS.recipe.absorb(state, spec, total, SURVIVORS))
            self.states[number] = self.lies.get(number, bytes)(body)
            if number < self.last:
                state = TERMS.recipe.decode_state(number, self.states[number])
            digest = hashlib.sha256(self.states[number]).digest()
            stated = {"state_digest": digest.hex(), "aggregate_chain": chain.digest.hex()}
            self.views.append(round_view(number, "complete", spec.seed, SURVIVORS, self.sums[number], **stated))
            chain = self.chains[number] = chain.extended(number, self.sums[number], digest)

    def statements(self, people: list[Contributor] = OTHERS) -> list[Attestation]:
        return [person.state(self.chains[self.last].before, self.last) for person in people]

    def __call__(self, request: Request) -> Response:
        url = urlsplit(request.url)
        path, query = url.path.removeprefix("/v1/tasks/t_1/"), parse_qs(url.query, keep_blank_values=True)
        place = path.split("/")
        if path == "rounds":
            left = [view for view in self.views if view.number > int(query["after"][0])]
            return answered(RoundPage(rounds=left).model_dump_json().encode())
        if place[-1] == "aggregate":
            return answered(self.sums[int(place[1])])
        if path == "snapshots/latest":
            before = int(query.get("before", ["100"])[0])
            number = max((one for one in self.kept if one < before), default=None)
            return problem("not-found") if number is None else answered(self.named(number).model_dump_json().encode())
        if place[0] == "snapshots" and int(place[1]) in self.kept:
            return answered(self.states[int(place[1])])
        if path == f"rounds/{self.last}/attestations":
            shown = self.statements() if self.attest is None else self.attest
            left = sorted((one for one in shown if one.client_id > query["after"][0]), key=lambda one: one.client_id)
            return answered(AttestationPage(attestations=left).model_dump_json().encode())
        return problem("not-found")

    @property
    def kept(self) -> list[int]:
        """The rounds of the newest two snapshots."""
        return list(self.states)[-2:]

    def named(self, number: int) -> SnapshotView:
        body = self.states[number]
        return SnapshotView(round=number, bytes=len(body), digest=hashlib.sha256(body).hexdigest(), author="server")


def answered(body: bytes) -> Response:
    return Response(200, {"content-digest": content_digest(body)}, body)


class Someone:
    """A member that knows the server's rounds up to where it has followed it."""

    def __init__(self) -> None:
        calls, identity, self.store = ApiCalls("https://server.example", "t"), Identity.generate(), MemoryStore()
        membership = Membership(calls.url, "t_1", "movies", "c_me", "member", "t", None, PIN)
        store, check = ClientStore(self.store, "me"), MembershipCheck(PIN, lambda: float(NOW))
        member = Member(calls, TERMS, membership, identity, store, Policy(min_cohort=3), check)
        side = client_side(TERMS.recipe, None, None)
        self.part = Part(member, ModelFollower(calls, TERMS, store), side, np.random.default_rng(1))
        self.requests: list[str] = []

    def asked(self, server: Server) -> RoundView:
        number = server.last + 1
        return round_view(number, "advertising", TERMS.recipe.round_spec(SEED, number).seed)

    def run(self, server: Server, program: Any) -> Any:
        runner = ProgramRunner(server)
        try:
            return runner.run(program)
        finally:
            urls = [urlsplit(request.url) for request in runner.requests]
            self.requests = [url.path.removeprefix("/v1/tasks/t_1/") for url in urls]

    def catch_up(self, server: Server) -> CaughtUp:
        """Do what a round begins with."""
        found = self.run(server, OwnRound(self.part, self.asked(server), HISTORY).catch_up())
        assert isinstance(found, CaughtUp)
        return found

    def is_attested(self) -> bool:
        followed = ModelFollower(self.part.follower.calls, TERMS, self.part.member.store).current()
        assert followed is not None
        return not followed.unattested


def nudged(share: float) -> Change:
    """Another first value, by a share of the largest value."""

    def change(body: bytes) -> bytes:
        values = np.frombuffer(body, "<f4").copy()
        values[0] += share * np.abs(values).max()
        return values.tobytes()

    return change


def test_a_member_downloads_the_last_sum_and_no_model() -> None:
    someone, server = Someone(), Server(1)
    assert someone.catch_up(server).state.round_number == 1
    server = Server(2)
    caught_up = someone.catch_up(server)
    assert someone.requests == ["rounds", "rounds/2/aggregate"]
    assert TERMS.recipe.encode_state(caught_up.state) == server.states[2]
    assert caught_up.followed.chain == server.chains[2]
    assert someone.is_attested()
    assert someone.catch_up(server).plan.kind == "nothing"
    assert someone.requests == []


def test_a_model_that_differs_in_rounding_is_taken_from_the_server() -> None:
    someone, server = Someone(), Server(2, lies={2: nudged(5e-6)})
    someone.catch_up(Server(1))
    caught_up = someone.catch_up(server)
    assert someone.requests == ["rounds", "rounds/2/aggregate", "snapshots/2"]
    assert TERMS.recipe.encode_state(caught_up.state) == server.states[2]
    assert caught_up.followed.chain == server.chains[2]


def test_a_member_uses_no_sum_that_so_many_contributions_cannot_have() -> None:
    """Each value is one that they can have; all of them together are not."""
    terms = TaskTerms.of(task_view("fedmf", {"items": 6, "dim": 4, "clip": 1.0, "row_clip": 0.5}, "masked"))
    state, view, plan = terms.recipe.initial_state(SEED), Server(1).views[0], MaskedPlan.of(terms.sum_plan)

    def absorbed(value: float) -> int:
        vectors = [np.full(block.length, value) for block in plan.layout.blocks]
        elements = plan.encode(whole_route(plan.layout), vectors) * np.uint32(SURVIVORS)
        return absorb_aggregate(terms, None, state, view, pack(elements, plan.bits))[0].round_number

    assert absorbed(0.24) == 1
    with pytest.raises(CodecError, match="items/update of the opened sum holds values of a norm that no sum of 4"):
        absorbed(0.26)


FALSE: dict[str, Server] = {
    "another value": Server(2, lies={2: nudged(3e-5)}),
    "rows of -1e6": Server(2, lies={2: lambda body: np.full(len(body) // 4, -1e6, "<f4").tobytes()}),
    "one row of 3e38": Server(2, lies={2: lambda body: np.full(4, 3e38, "<f4").tobytes() + body[16:]}),
    "a value that is not finite": Server(2, lies={2: lambda body: np.full(1, np.nan, "<f4").tobytes() + body[4:]}),
    "the model before": Server(2, lies={2: lambda _: Server(1).states[1]}),
    "a sum of nobody": Server(2, sums={2: aggregate(0.02, beyond=True)}),
}


@pytest.mark.parametrize("lie", FALSE)
def test_attack_a_model_that_does_not_follow_from_the_sums(lie: str) -> None:
    """The round ends for the member, and so do no others: it tells its owner, and sends nothing to the server."""
    someone, events = Someone(), list[Event]()
    someone.catch_up(Server(1))
    with pytest.raises(FalseModel, match="round 2"):
        someone.catch_up(FALSE[lie])
    someone.run(FALSE[lie], attempt(someone.part, someone.asked(FALSE[lie]), events.append))
    (missed,) = events
    assert isinstance(missed, RoundMissed)
    assert "lies about the model or is broken" in missed.reason
    assert not [path for path in someone.requests if "refusals" in path or "stages" in path]
    assert someone.part.follower.known == 1
    assert someone.catch_up(Server(2)).state.round_number == 2


def test_a_member_that_missed_rounds_asks_who_holds_the_same() -> None:
    """A newcomer takes the model before the last sum: nobody can have stated the one after it."""
    newcomer, late = Someone(), Someone()
    late.catch_up(Server(3))
    server = Server(5)
    for someone, expected in (
        (newcomer, ["snapshots/latest", "snapshots/latest", "rounds", "snapshots/4", "rounds/5/aggregate"]),
        (late, ["rounds", "rounds/4/aggregate", "rounds/5/aggregate"]),
    ):
        caught_up = someone.catch_up(server)
        assert someone.requests[: len(expected)] == expected
        assert set(someone.requests[len(expected) :]) == {"rounds/5/attestations"}
        assert caught_up.followed.chain == server.chains[5]
        assert TERMS.recipe.encode_state(caught_up.state) == server.states[5]
        assert someone.is_attested()
        someone.catch_up(server)
        assert someone.requests == []  # once


def strangers() -> list[Contributor]:
    return [Contributor(f"c_f{number:019x}", Contributor("").identity.signing_key) for number in range(5)]


TOO_FEW: dict[str, Callable[[Server], list[Attestation]]] = {
    "nobody": lambda server: [],
    "too few": lambda server: server.statements(OTHERS[: FLOOR - 1]),
    "people whom the organiser did not certify": lambda server: server.statements([*OTHERS[:2], *strangers()]),
    "statements of another model": lambda server: Server(5).statements(),
}


@pytest.mark.parametrize("who", TOO_FEW)
def test_attack_a_newcomer_gets_a_model_of_its_own(who: str) -> None:
    server = Server(5, lies={4: nudged(0.5)})
    server.attest = TOO_FEW[who](server)
    someone = Someone()
    for _ in range(2):  # it does not keep what was not attested
        with pytest.raises(NotAttested):
            someone.catch_up(server)
        assert "snapshots/4" in someone.requests
    honest = Server(5)
    assert TERMS.recipe.encode_state(someone.catch_up(honest).state) == honest.states[5]
