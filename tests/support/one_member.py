"""One member of an encrypted task and the server that asks it, without a network: what it sends and is told."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk import Identity, MemoryStore, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.wire import Program, Request, Response, content_digest
from client_sdk.history import History
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.events import Event, Progress
from client_sdk.rounds.loop import _Contributor
from client_sdk.rounds.member import Member, MembershipCheck
from client_sdk.rounds.part import Part
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Membership
from client_sdk.training import client_side
from protocols.codec import b64encode
from protocols.crypto.certificates import certify
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, sign_request
from protocols.crypto.keys import Keyring
from protocols.layout import whole_route
from protocols.messages import Attestation, AttestationPage, OrganiserPin, RoundPage, RoundView, UploadReceipt
from tests.support.programs import SEED, ProgramRunner, problem, round_view, task_view

SURVIVORS = 4
HISTORY = History.of([0, 2, 3], 6)


def terms_of(mechanism: str) -> TaskTerms:
    """A task of FedMF over six items."""
    parameters = {"items": 6, "dim": 4, "clip": 1.0}
    how = {"set": "compact"} if mechanism == "ckks" else {}
    return TaskTerms.of(task_view("fedmf", parameters, mechanism, how, completed_rounds=1))


def aggregate_of(terms: TaskTerms, keyring: Keyring | None, clients: int = SURVIVORS, value: float = 0.01) -> bytes:
    """The aggregate of `clients` contributions to sum 1 of which each value is `value`."""
    plan, mechanism = terms.sum_plan_at(1), terms.mechanism
    route = whole_route(plan.layout)
    vectors = [np.where(block.integral_mask(), 1.0, value) for block in plan.layout.blocks]
    bodies = [(route, mechanism.seal(plan, route, vectors, keyring)) for _ in range(clients)]
    return mechanism.release(plan, mechanism.fold(plan, None, bodies))


def attempt(part: Part, view: RoundView, progress: Progress) -> Program[None]:
    """Take part in a round as `take_part` does, with its outcome as an event."""
    yield from _Contributor(part, HISTORY, progress).on_round(
        RoundChanged(view.model_copy(update={"in_cohort": True}), None)
    )


NOW = 1_790_000_000
ORGANISER = Ed25519PrivateKey.generate()
PIN = OrganiserPin(key=b64encode(ORGANISER.public_key().public_bytes_raw()), scope="s")


@dataclass
class Contributor:
    """A member that contributed to a round."""

    client_id: str
    organiser: Ed25519PrivateKey = ORGANISER
    identity: Identity = field(default_factory=Identity.generate)

    @property
    def certificate(self) -> bytes:
        keys = self.identity.public_key, self.identity.mailbox_key
        return certify(self.organiser, "s", *keys, role="member", serial=1, not_after=NOW + 3600).encode()

    def state(self, chain: bytes, number: int, task_id: str = "t_1", client_id: str | None = None) -> Attestation:
        """Its statement of the chain before round `number`, as the server shows it."""
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


@dataclass
class OneMember:
    """A member that is asked in the round after those of `released`, the aggregates by round."""

    terms: TaskTerms
    keyring: Keyring | None
    released: dict[int, bytes]
    attest: list[Attestation] = field(default_factory=list)
    """The attestations of the last one."""
    refuses: bool = False
    """Whether the server finds that the contribution states another chain than its own."""
    identity: Identity = field(default_factory=Identity.generate)
    pin: OrganiserPin | None = None
    """The organiser, of which `certificate` is."""
    certificate: bytes | None = None
    now: float = 0.0
    """The member's clock."""
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        calls, self.store = ApiCalls("https://server.example", "hrc_token"), ClientStore(MemoryStore(), "me")
        membership = Membership(calls.url, "t_1", "movies", "c_me", "member", "hrc_token", self.certificate, self.pin)
        policy, check = Policy(snapshot_every=0), MembershipCheck(self.pin, lambda: self.now)
        self.part = Part(
            Member(calls, self.terms, membership, self.identity, self.store, policy, check),
            ModelFollower(calls, self.terms, self.store, self.keyring),
            client_side(self.terms.recipe, None, None),
            np.random.default_rng(1),
        )
        self.last = max(self.released)
        self.runner = ProgramRunner(self._answer)

    @property
    def asked(self) -> RoundView:
        """The round that asks the member."""
        return self.view(self.last + 1)

    def view(self, number: int) -> RoundView:
        """A round as the server shows it."""
        state = "complete" if number <= self.last else "collecting"
        seed = self.terms.recipe.round_spec(SEED, number).seed
        return round_view(number, state, seed, SURVIVORS, self.released.get(number, b""))

    def attempt(self) -> list[tuple[str, str, int]]:
        """Let it take part; return all that the server sees of it: methods, addresses and lengths."""
        self.runner.run(attempt(self.part, self.asked, self.events.append))
        return [(request.method, request.url, len(request.body)) for request in self.runner.requests]

    def requests(self, name: str) -> list[Request]:
        """What the member has asked for at addresses with `name` in them."""
        return [request for request in self.runner.requests if name in request.url]

    def stated(self) -> str | None:
        """The chain that its newest contribution stated; None without a contribution."""
        sent = self.requests("/contributions/")
        return sent[-1].headers.get("aggregate-chain") if sent else None

    def _answer(self, request: Request) -> Response:
        url = urlsplit(request.url)
        path, query = url.path.removeprefix("/v1/tasks/t_1/"), parse_qs(url.query, keep_blank_values=True)
        if path == "rounds":
            rounds = [self.view(number) for number in self.released]
            return Response(200, {}, RoundPage(rounds=rounds).model_dump_json().encode())
        if path.endswith("/aggregate"):
            body = self.released[int(path.split("/")[1])]
            return Response(200, {"content-digest": content_digest(body)}, body)
        if path == f"rounds/{self.last}/attestations":
            after, limit = query["after"][0], int(query["limit"][0])
            left = sorted((one for one in self.attest if one.client_id > after), key=lambda one: one.client_id)
            page = AttestationPage(attestations=left[:limit], more=len(left) > limit)
            return Response(200, {}, page.model_dump_json().encode())
        if path == f"rounds/{self.last + 1}/contributions/c_me":
            if self.refuses:
                return problem("aggregate-mismatch")
            digest = hashlib.sha256(request.body).hexdigest()
            receipt = UploadReceipt(round=self.last + 1, client_id="c_me", bytes=len(request.body), digest=digest)
            return Response(201, {}, receipt.model_dump_json().encode())
        return problem("not-found")
