"""A server that gives members of an encrypted task different aggregates: they find out, and can prove it.

Rounds 1 to 3 are complete, and one real member is asked in round 4. The attestations of round 3 state what the other
members absorbed in rounds 1 and 2. Each attack is run with the defence and without it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import Identity, MemoryStore, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.errors import AggregateMismatch, Equivocation, NotAttested
from client_sdk.history import History
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.loop import run_round
from client_sdk.rounds.member import Member
from client_sdk.rounds.part import Part
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.states import FollowedState
from client_sdk.training import client_half
from protocols.codec import b64decode, b64encode
from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, stated_chain
from protocols.crypto.certificates import certify
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request
from protocols.crypto.keys import Keyring
from protocols.messages import Attestation, AttestationPage, OrganiserPin, RoundPage, RoundView, UploadReceipt
from tests.client_sdk.rounds.test_reaction_attacks import terms_of
from tests.support.programs import ProgramRunner, problem
from tests.support.views import SEED, round_view

NOW, FLOOR, LAST = 1_790_000_000, 3, 3
ORGANISER = Ed25519PrivateKey.generate()
PIN = OrganiserPin(key=b64encode(ORGANISER.public_key().public_bytes_raw()), scope="s")


@cache
def task() -> tuple[TaskTerms, Keyring]:
    terms = terms_of("ckks")
    return terms, terms.mechanism.generate_keyring(terms.sum_plan)


@cache
def aggregates() -> dict[int, bytes]:
    """Aggregates that do not open: what is in them does not matter here."""
    return {number: os.urandom(task()[0].sum_plan.aggregate_bytes) for number in range(1, LAST + 1)}


def chain_of(released: dict[int, bytes], upto: int) -> AggregateChain:
    chain = AggregateChain.first("t_1")
    for number in sorted(released):
        chain = chain.extended(number, released[number]) if number <= upto else chain
    return chain


@dataclass
class Person:
    """A member that signs what it absorbed."""

    client_id: str
    organiser: Ed25519PrivateKey = ORGANISER
    identity: Identity = field(default_factory=Identity.generate)

    @property
    def certificate(self) -> bytes:
        keys = self.identity.public_key, self.identity.mailbox_key
        return certify(self.organiser, "s", *keys, role="member", serial=1, not_after=NOW + 3600).encode()

    def attest(
        self, chain: bytes, number: int = LAST, task_id: str = "t_1", client_id: str | None = None
    ) -> Attestation:
        name = client_id or self.client_id
        path = f"/v1/tasks/{task_id}/rounds/{number}/contributions/{name}"
        fields = {"aggregate-chain": chain.hex(), "content-digest": content_digest(b"its contribution")}
        request = SignedRequest("PUT", "server.example", path, "", fields)
        signed = sign_request(self.identity.signing_key, name, request, NOW)
        return Attestation(
            client_id=name,
            identity_key=b64encode(self.identity.public_key),
            mailbox_key=b64encode(self.identity.mailbox_key),
            certificate=b64encode(self.certificate),
            method="PUT",
            authority="server.example",
            fields=fields,
            signature_input=signed[SIGNATURE_INPUT],
            signature=signed[SIGNATURE],
        )


OTHERS = [Person(f"c_{number:020x}") for number in range(12)]


@dataclass
class Server:
    """What the server gives the victim. attest: the attestations of round 3."""

    released: dict[int, bytes] = field(default_factory=lambda: dict(aggregates()))
    attest: list[Attestation] = field(default_factory=list)
    refuses: bool = False

    def view(self, number: int) -> RoundView:
        seed = task()[0].recipe.round_spec(SEED, number).seed
        return round_view(
            number, "complete" if number <= LAST else "collecting", seed, 4, self.released.get(number, b"")
        )

    def answer(self, request: Request) -> Response:
        url = urlsplit(request.url)
        path, query = url.path.removeprefix("/v1/tasks/t_1/"), parse_qs(url.query, keep_blank_values=True)
        if path == "rounds":
            return Response(
                200, {}, RoundPage(rounds=[self.view(one) for one in self.released]).model_dump_json().encode()
            )
        if path.endswith("/aggregate"):
            body = self.released[int(path.split("/")[1])]
            return Response(200, {"content-digest": content_digest(body)}, body)
        if path == f"rounds/{LAST}/attestations":
            after, limit = query["after"][0], int(query["limit"][0])
            left = sorted((one for one in self.attest if one.client_id > after), key=lambda one: one.client_id)
            page = AttestationPage(attestations=left[:limit], more=len(left) > limit)
            return Response(200, {}, page.model_dump_json().encode())
        if path.startswith("rounds/4/contributions/"):
            if self.refuses:
                return problem("aggregate-mismatch")
            digest = hashlib.sha256(request.body).hexdigest()
            receipt = UploadReceipt(round=4, client_id="c_me", bytes=len(request.body), digest=digest)
            return Response(201, {}, receipt.model_dump_json().encode())
        return problem("not-found")


class Victim:
    """A real member that takes part in round 4."""

    def __init__(self, server: Server) -> None:
        terms, keyring = task()
        me = Person("c_me")
        self.store = ClientStore(MemoryStore(), "me")
        calls = ApiCalls("https://server.example", "hrc_token")
        membership = Membership(calls.url, "t_1", "movies", "c_me", "member", "hrc_token", me.certificate, PIN)
        check = MembershipCheck(PIN, clock=lambda: float(NOW))
        self.part = Part(
            Member(calls, terms, membership, me.identity, self.store, Policy(snapshot_every=0), check),
            ModelFollower(calls, terms, self.store, keyring),
            client_half(terms.recipe, None, None),
            np.random.default_rng(1),
        )
        self.server, self.runner = server, ProgramRunner(server.answer)

    def take_part(self) -> str | None:
        """Take part in round 4; return the chain that it stated, None when it did not contribute."""
        self.runner.run(run_round(self.part, self.server.view(4), History.of([0, 2, 3], 6)))
        sent = [one for one in self.runner.requests if "/contributions/" in one.url]
        return sent[-1].headers.get("aggregate-chain") if sent else None

    def requests(self, name: str) -> int:
        return sum(name in request.url for request in self.runner.requests)


def honest() -> Server:
    chain = chain_of(aggregates(), LAST).before
    return Server(attest=[person.attest(chain) for person in OTHERS])


def test_an_honest_server() -> None:
    """The member states all three aggregates, although none of them opened, and looks at a sample of attestations."""
    victim = Victim(honest())
    assert victim.take_part() == chain_of(aggregates(), LAST).digest.hex()
    assert 1 <= victim.requests("/attestations") <= 2  # it may start near the end
    assert victim.store.equivocation("t_1") is None


LIES: dict[str, Callable[[dict[int, bytes]], dict[int, bytes]]] = {
    "another aggregate": lambda good: good | {2: os.urandom(len(good[2]))},
    "an aggregate again": lambda good: good | {2: good[1]},
    "a round left out": lambda good: {number: body for number, body in good.items() if number != 2},
}


@pytest.mark.parametrize("lie", LIES)
def test_two_aggregates_for_two_groups(lie: str) -> None:
    """The victim gets other aggregates than those whose attestations it sees: it stops, and keeps a proof."""
    server = replace(honest(), released=LIES[lie](aggregates()))
    victim = Victim(server)
    with pytest.raises(Equivocation) as caught:
        victim.take_part()
    check_proof(caught.value.proof, victim)
    asked = len(victim.runner.requests)
    with pytest.raises(Equivocation):
        victim.take_part()
    assert (len(victim.runner.requests), victim.requests("/contributions/")) == (asked, 0)


def check_proof(proof: bytes, victim: Victim) -> None:
    """Two certified members signed different chains before the same round of the same task."""
    assert victim.store.equivocation("t_1") == proof
    shown = json.loads(proof)
    statements = [Attestation.model_validate(one) for one in shown["statements"]]
    chains, check = [], MembershipCheck(PIN, clock=lambda: float(NOW))
    for one in statements:
        key = b64decode(one.identity_key, 32)
        fields = {name: getattr(one, name) for name in ("client_id", "method", "authority", "fields")}
        stated = StatedChain(**fields, signature_input=one.signature_input, signature=one.signature)
        chains.append(stated_chain(stated, key, shown["task_id"], shown["round"])[0])
        check.require_at(NOW, key, b64decode(one.mailbox_key, 32), b64decode(one.certificate or ""), ("member",))
    assert len(set(chains)) == len({one.identity_key for one in statements}) == 2


def few() -> list[Attestation]:
    """Attestations of fewer members than the task needs, all with the victim's own chain."""
    chain = chain_of(aggregates(), LAST).before
    return [person.attest(chain) for person in OTHERS[: FLOOR - 1]]


def added(name: str) -> list[Attestation]:
    """What the server adds to the attestations of too few members."""
    chain, person = chain_of(aggregates(), LAST).before, OTHERS[5]
    if name == "nothing":
        return []
    if name == "a forged signature":
        return [replace_signature(person.attest(chain), OTHERS[6].attest(chain).signature)]
    if name == "invented members":
        return [Person(f"c_f{number:019x}", Ed25519PrivateKey.generate()).attest(chain) for number in range(5)]
    if name == "of another round":
        return [one.attest(chain, number=2) for one in OTHERS[5:]]
    if name == "of another task":
        return [one.attest(chain, task_id="t_2") for one in OTHERS[5:]]
    return [OTHERS[0].attest(chain, client_id=f"c_f{number:019x}") for number in range(5)]  # one member many times


def replace_signature(one: Attestation, signature: str) -> Attestation:
    return one.model_copy(update={"signature": signature})


@pytest.mark.parametrize(
    "name",
    [
        *("nothing", "a forged signature", "invented members", "of another round", "of another task"),
        "one member many times",
    ],
)
def test_attestations_of_too_few_members(name: str) -> None:
    """A group smaller than `min_clients` is not trusted, whatever else the server shows."""
    victim = Victim(Server(attest=[*few(), *added(name)]))
    with pytest.raises(NotAttested, match="2 members have stated"):
        victim.take_part()
    assert victim.requests("/contributions/") == 0
    assert victim.store.equivocation("t_1") is None


@pytest.mark.parametrize("from_snapshot", [True, False])
def test_a_snapshot_with_a_false_chain(from_snapshot: bool) -> None:
    """A member sealed it, so it proves nothing about the server: the client downloads all aggregates instead."""
    victim = Victim(honest())
    terms, _ = task()
    state = replace(terms.recipe.initial_state(SEED), round_number=LAST)
    false = AggregateChain(bytes(32), bytes(32))
    victim.store.keep_item_state("t_1", terms.recipe, FollowedState(state, false, from_snapshot=from_snapshot))
    if not from_snapshot:  # as if it came from aggregates: the server is accused
        with pytest.raises(Equivocation):
            victim.take_part()
        return
    with pytest.raises(NotAttested, match="snapshot"):
        victim.take_part()
    assert victim.take_part() == chain_of(aggregates(), LAST).digest.hex()
    assert victim.requests("/aggregate") == LAST


def test_a_server_that_refuses_the_chain_of_a_snapshot() -> None:
    victim = Victim(replace(honest(), refuses=True))
    terms, _ = task()
    state = replace(terms.recipe.initial_state(SEED), round_number=LAST)
    chain = AggregateChain(chain_of(aggregates(), LAST).before, bytes(32))
    victim.store.keep_item_state("t_1", terms.recipe, FollowedState(state, chain, from_snapshot=True))
    with pytest.raises(AggregateMismatch):
        victim.take_part()
    victim.server.refuses = False
    assert victim.take_part() == chain_of(aggregates(), LAST).digest.hex()


def test_former_members_count() -> None:
    """A certificate that has expired since does not make the attestation void: else a pause would end the task."""
    victim = Victim(honest())
    later = MembershipCheck(PIN, clock=lambda: NOW + 1e6)
    victim.part.member = replace(victim.part.member, check=later)
    assert victim.take_part() is not None
