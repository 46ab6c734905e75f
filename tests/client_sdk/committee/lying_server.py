"""A server of one-shot rounds that speaks the real messages and proposes what a test tells it to, without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from client_sdk import Identity, MemoryStore, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import Request, Response, content_digest
from client_sdk.committee import CommitteeMember
from client_sdk.rounds.events import Event, Progress, ignore_event
from client_sdk.rounds.member import Member, MembershipCheck, request_for
from client_sdk.store import Store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Membership
from protocols.codec import b64decode, b64encode
from protocols.crypto.certificates import CertifiedRole
from protocols.layout import whole_route
from protocols.messages import BadShares, RoundView
from protocols.sums.oneshot import client, server
from protocols.sums.oneshot.committee import Committee, make_committee
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy
from protocols.sums.oneshot.wire import CommitteeKey, Statement, body_digest, survivors_digest
from protocols.task_terms import broadcast_digest
from tests.support.programs import ProgramRunner, problem, round_view, task_view
from tests.support.tasks import TRIAL

URL = "https://server.example"
COMMITTEE = 5


def oneshot_terms(certified: bool = True) -> TaskTerms:
    """A task of 20 items with one-shot sums: a committee of 5, of which one may be corrupt, so t = 4."""
    parameters, schedule = {"items": 20, "dim": 2, "clip": 0.5}, {"cohort_size": 8, "min_clients": 3, "rounds": 5}
    organiser = TRIAL.pin.model_dump() if certified else None
    view = task_view("fedmf", parameters, "oneshot", schedule=schedule, seed="A" * 43, organiser=organiser)
    return TaskTerms.of(view)


@dataclass
class Person:
    """A client or a member of the committee: its identity, and its certificate for a role; None for no certificate."""

    name: str
    identity: Identity = field(default_factory=Identity.generate)
    certificate: bytes = bytes(81)
    role: CertifiedRole = "member"

    @classmethod
    def certified(cls, name: str, role: CertifiedRole) -> Person:
        """A person that the tests' organiser has certified."""
        identity = Identity.generate()
        issued = TRIAL.issue(request_for(identity, TRIAL.scope, role), role)
        return cls(name, identity, b64decode(issued.certificate), role)


@dataclass
class Sent:
    """One client's upload as the server stores it."""

    statement: Statement
    sealed: tuple[bytes, ...]
    contribution: bytes


class LyingServer:
    """One task. A test opens rounds, changes what is proposed to whom, and lets the members attend.

    proposals: member name -> names of clients; of members that are missing here, all uploads. statement_of, share_of:
    replace what a member is given. confirmations, shares: what members have sent in the newest round.
    """

    def __init__(self, terms: TaskTerms | None = None) -> None:
        self.terms = terms or oneshot_terms()
        self.members = [Person.certified(f"m_{place}", "committee") for place in range(COMMITTEE)]
        self.keys: dict[int, dict[str, bytes]] = {}
        self.view = self.round_view(0, 0, 3)
        self.uploads: dict[str, Sent] = {}
        self.proposals: dict[str, list[str]] = {}
        self.share_of: Callable[[str, str, bytes], bytes] = lambda _member, _client, share: share
        self.confirmations: dict[str, bytes] = {}
        self.shares: dict[str, bytes] = {}
        self.named: list[str] = []
        self.before_put: Callable[[str, str], None] = lambda _member, _stage: None
        self.committee: Committee
        self.stores: dict[str, Store] = {}

    # --- the task ------------------------------------------------------------------------------------------------

    def plan(self, step: int) -> OneshotPlan:
        return self.terms.sum_plan_at(step)

    def round_view(self, number: int, step: int, cohort: int) -> RoundView:
        spec = self.terms.recipe.round_spec(self.terms.seed, max(1, number), max(1, step))
        return round_view(max(1, number), seed=spec.seed, survivors=0, step=max(1, step), cohort=cohort)

    def open_round(self, number: int, step: int, cohort: int) -> None:
        """Open a round with the keys that the members have published for it."""
        self.view = self.round_view(number, step, cohort)
        self.uploads, self.proposals, self.confirmations, self.shares, self.named = {}, {}, {}, {}, []
        digest = broadcast_digest(self.terms.view, step, None, ())
        context = OneshotContext("t_1", number, step, self.plan(step), digest, cohort)
        keys = [CommitteeKey.decode(key) for key in self.keys[number].values()]
        self.committee = make_committee(context, keys, lambda _: True)

    def upload(self, person: Person, vector: NDArray[np.float64]) -> None:
        committee, plan = self.committee, self.committee.context.plan
        steps, policy = plan.encode(whole_route(plan.layout), plan.layout.split(vector)), OneshotPolicy(min_cohort=2)
        made = client.contribute(committee, person.name, person.identity.signing_key, policy, steps)
        own = (person.identity.public_key, person.identity.mailbox_key, person.certificate)
        digest = body_digest(made.contribution)
        statement = server.check_upload(committee, person.name, *own, made.ticket.encode(), digest)
        self.uploads[person.name] = Sent(statement, made.ticket.sealed, made.contribution)

    def proposed(self, member: str) -> list[str]:
        """Names of the clients that are proposed to a member."""
        names = self.proposals.get(member, list(self.uploads))
        return [name for name in names if name not in self.named]

    def statements(self, member: str) -> list[Statement]:
        return [self.uploads[name].statement for name in self.proposed(member)]

    # --- the members ---------------------------------------------------------------------------------------------

    def member(self, person: Person, policy: Policy | None = None) -> Member:
        """What a person's device has of the task, with what it has stored."""
        membership = Membership(URL, "t_1", "movies", person.name, person.role, "hrc_token", person.certificate)
        calls = ApiCalls(URL, "hrc_token", RetryPolicy(attempts=1))
        store = ClientStore(self.stores.setdefault(person.name, MemoryStore()), person.name, URL)
        check = MembershipCheck(TRIAL.pin if self.terms.view.organiser else None)
        return Member(calls, self.terms, membership, person.identity, store, policy or Policy(), check)

    def service(
        self, person: Person, policy: Policy | None = None, progress: Progress | None = None
    ) -> CommitteeMember:
        return CommitteeMember(self.member(person, policy), progress or ignore_event)

    def attend(self, *members: Person) -> list[Event]:
        """Let members attend the newest round, each in a new process; return what they reported."""
        events: list[Event] = []
        for member in members or self.members:
            self.runner(member).run(self.service(member, progress=events.append).attend_newest())
        return events

    def publish_keys(self) -> None:
        for member in self.members:
            self.runner(member).run(self.service(member).attend(None))

    def runner(self, member: Person) -> ProgramRunner:
        return ProgramRunner(lambda request: self.answer(member.name, request))

    def opened(self, clients: Sequence[str]) -> NDArray[np.float64]:
        """The sum over `clients` from the summed shares, as the server opens it. Raises what `unmask` raises."""
        committee, plan = self.committee, self.committee.context.plan
        digest = survivors_digest([self.uploads[name].statement for name in clients])
        checked = {
            name: server.check_summed_share(committee, name, digest, share) for name, share in self.shares.items()
        }
        route = whole_route(plan.layout)
        partial = ONESHOT.fold(plan, None, [(route, self.uploads[name].contribution) for name in clients])
        done = server.unmask(committee, partial, len(clients), checked)
        return ONESHOT.open(plan, done.aggregate, len(clients), None)

    # --- HTTP ----------------------------------------------------------------------------------------------------

    def seen_by(self, member: str) -> RoundView:
        """The newest round as a member sees it."""
        state = self.view.state
        sent = self.confirmations if state == "confirming" else self.shares
        awaited = state == "confirming" or (state == "unmasking" and member in self.confirmations)
        proposed = self.statements(member) if self.uploads else []
        keys = [key.encode() for key in self.committee.members] if awaited else []
        return self.view.model_copy(
            update={
                "in_committee": member in self.keys.get(self.view.number, {}),
                "expected": awaited,
                "delivered": member in sent,
                "confirmations": self.joined_confirmations() if awaited and state == "unmasking" else None,
                "survivors_digest": survivors_digest(proposed).hex() if proposed else None,
                "committee_keys": b64encode(b"".join(len(key).to_bytes(2, "little") + key for key in keys)) or None,
            }
        )

    def joined_confirmations(self) -> str:
        members = (each.member_id for each in self.committee.members)
        return b64encode(b"".join(self.confirmations.get(name, bytes(64)) for name in members))

    def answer(self, member: str, request: Request) -> Response:
        path = urlsplit(request.url).path.removeprefix("/v1/tasks/t_1")
        if request.method == "PUT":
            return self._store(member, path, bytes(request.body))
        if request.method == "POST":
            self.named += BadShares.model_validate_json(bytes(request.body)).clients
            return _json(self.seen_by(member))
        base = f"/rounds/{self.view.number}"
        if path in ("/rounds/current", base):
            return _json(self.seen_by(member))
        if path == f"{base}/statements":
            return _bytes(b"".join(statement.encode() for statement in self.statements(member)))
        if path == f"{base}/shares/{member}":
            place = self.committee.place(member)
            names = self.proposed(member)
            return _bytes(b"".join(self.share_of(member, name, self.uploads[name].sealed[place]) for name in names))
        return problem("not-found")

    def _store(self, member: str, path: str, body: bytes) -> Response:
        if path.startswith(f"/committee/{member}/keys/"):
            known = self.keys.setdefault(int(path.rsplit("/", 1)[1]), {}).setdefault(member, body)
            return Response(200, {}) if known == body else problem("conflict")
        stage = path.split("/")[-2]
        self.before_put(member, stage)
        {"confirm": self.confirmations, "unmask": self.shares}[stage][member] = body
        return Response(201, {})


def _json(view: RoundView) -> Response:
    return Response(200, {"content-type": "application/json", "etag": "1"}, view.model_dump_json().encode())


def _bytes(body: bytes) -> Response:
    return Response(200, {"content-digest": content_digest(body)}, body)
