"""The parties: real clients of the SDK, and members whose keys the server has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_sdk import Identity, Policy
from client_sdk.api.wire import Program, Work
from client_sdk.history import History
from client_sdk.rounds.contribution import require_data, train
from client_sdk.rounds.masked import MaskedRound
from client_sdk.rounds.member import Member, MembershipCheck
from client_sdk.rounds.part import Part
from client_sdk.store import MemoryStore
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Membership
from client_sdk.store.states import FollowedState
from client_sdk.training.base import ClientSide, LocalResult
from protocols.codec import b64encode
from protocols.contribution import Made
from protocols.crypto.certificates import NO_CERTIFICATE, certify
from protocols.crypto.sealing import SealingKey
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import OrganiserPin
from protocols.messages import Schedule as TaskSchedule
from protocols.recipes.base import Contribution, ModelState, RoundSpec
from protocols.recipes.registry import recipe
from protocols.sums.masked.neighbourhood import Neighbourhood
from protocols.sums.masked.parameters import MaskedParameters
from protocols.sums.masked.plan import MaskedPlan, RoundContext, model_digest
from protocols.sums.masked.roster import RosterEntry, sign_advertisement
from tests.simulation.lying_server.schedule import SUMS, Attempt, Invention, Task
from tests.support.masked import SHOWN

LAYOUT: Final = VectorLayout((Block("a", (Segment("v", 4, 1.0),)),), sum_class=TRAINED)
_SCOPE: Final = "lies"
_ORGANISER: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_STRANGER: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
_PIN: Final = OrganiserPin(key=b64encode(_ORGANISER.public_key().public_bytes_raw()), scope=_SCOPE)
Elements = NDArray[np.uint32]


class _CompletePlan(MaskedPlan):
    """A plan with complete graphs and the smallest threshold that the rule 2t > k + corrupt neighbours allows.

    With groups all that are corrupt may be in one.
    """

    def neighbourhood(self, clients: int) -> Neighbourhood:
        own = self.parameters
        degree, corrupt = clients // self.groups - 1, int(own.corrupt * clients)
        threshold = max(2, (degree + corrupt) // 2 + 1)
        bounds = (own.corrupt, own.dropout, own.mode, own.sigma, own.eta, 0.0, 0.0, 0.0)
        return Neighbourhood(degree + 1, degree, threshold, *bounds)


def plan_of(task: Task, attempt: Attempt) -> MaskedPlan:
    parameters = MaskedParameters(corrupt=task.corrupt, dropout=task.dropout, sigma=task.sigma, groups=task.groups)
    sum_class = SUMS[attempt.summed_in(task)]
    again = sum_class.repeated and sum_class.data == "rows" and task.groups > 1
    layout = replace(LAYOUT, sum_class=sum_class, in_groups=attempt.sum_index == 1 if again else None)
    most = task.cohort_size if layout.sum_class.repeated else 64
    return (_CompletePlan if task.complete else MaskedPlan)(parameters, layout, most)


def name_of(index: int) -> str:
    return f"c_{index:03d}"


@cache
def identity_of(index: int) -> Identity:
    secret = bytes([index + 1] * 32)
    return Identity(Ed25519PrivateKey.from_private_bytes(secret), SealingKey(secret))


@cache
def certificate_of(index: int) -> bytes:
    own = identity_of(index)
    made = certify(_ORGANISER, _SCOPE, own.public_key, own.mailbox_key, role="member", serial=index, not_after=1)
    return made.encode()


@cache
def _membership_check(index: int) -> MembershipCheck:
    """Return the check of member `index`, which remembers the certificates that it found valid."""
    del index
    return MembershipCheck(_PIN, clock=lambda: 0.0)


def context_of(task: Task, number: int, attempt: Attempt, crafted: bool) -> RoundContext:
    """Return what a client that got the true model, or a crafted one, takes the round to be."""
    digest = model_digest(b"terms", b"crafted" if crafted else b"model")
    seed, plan = bytes([number]) * 32, plan_of(task, attempt)
    return RoundContext(f"t_{attempt.task}", number, seed, plan, digest, task.cohort_size)


TERMS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "touched": ("fedmf", {"items": 9, "dim": 2, "item_bias": "counts", "normalise": "touched"}),
    "weighted": ("pfedclr", {"items": 9, "dim": 2, "max_interactions": 100}),
}
"""Recipe and parameters of tasks whose sums would show constants of a client, without the parameter that consents."""


class _Rows(ClientSide):
    """The client's half of a recipe that sends its data as they are, which `Honest.asked` is given as elements."""

    def contribute(self, *_: Any) -> LocalResult:
        return LocalResult(Contribution([]), {}, 0.0, 1)


_ROW: Final = History(np.zeros(1, np.int32))


@dataclass
class _GivenElements(MaskedRound):
    """A round that has begun."""

    spec: RoundSpec = field(kw_only=True)
    elements: Elements = field(kw_only=True)
    """What the client contributes."""

    def contribution(self, *_: object) -> Program[tuple[LocalResult, Made]]:
        yield from ()
        return train(self.part, self.spec, ModelState(0), _ROW), Made(Contribution([]), self.elements)


@dataclass
class Honest:
    """A member that follows the protocol: `Part` and `MaskedRound`, started again in each round, and what they store.

    It is its own `ApiCalls`: what it fetches is in `answers`, what it sends in `sent`.
    """

    index: int
    task: Task
    store: MemoryStore = field(default_factory=MemoryStore)
    answers: Mapping[str, bytes] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    context: RoundContext = field(init=False)
    _part: _GivenElements = field(init=False)
    _summed: str = ""

    def enter(self, number: int, attempt: Attempt, crafted: bool) -> None:
        """Begin a round. crafted: whether the server sends the model for which the contribution is zero."""
        task, identity = self.task, identity_of(self.index)
        self.context, self._summed = context_of(task, number, attempt, crafted), attempt.summed_in(task)
        task_id, url, name = self.context.task_id, "https://server.example", name_of(self.index)
        member = Membership(url, task_id, "lies", name, "member", "token", certificate_of(self.index), _PIN)
        layout, broad = self.context.plan.layout, {name_of(index) for index in task.broad}
        recipe = SimpleNamespace(
            layout=lambda sum_index: layout, route=lambda spec, client: 2 if client in broad else 1, parameters=None
        )
        schedule = TaskSchedule(
            cohort_size=task.cohort_size, min_clients=task.min_clients, min_difference=task.min_difference
        )
        terms: Any = SimpleNamespace(
            task_id=task_id, view=SimpleNamespace(data_set="rows", receipt_key=None), recipe=recipe, schedule=schedule
        )
        store, check = ClientStore(self.store, "me"), _membership_check(self.index)
        own = Member(self, terms, member, identity, store, Policy(), check)
        self._part = _GivenElements(
            Part(own, SimpleNamespace(view=lambda state: state), _Rows()),
            SimpleNamespace(number=number),
            None,
            spec=RoundSpec(number, bytes(32), attempt.sum_index),
            context=self.context,
            _caught_up=SimpleNamespace(followed=FollowedState(ModelState(0))),
            elements=None,
        )

    def asked(self, state: str, answers: Mapping[str, bytes], elements: Elements) -> dict[str, bytes]:
        part, spec = self._part.part, self._part.spec
        if state == "advertising":
            if self._summed in TERMS:
                recipe(*TERMS[self._summed])  # as when a client joins
            require_data(part, spec, ModelState(0), _ROW)
        self.answers, self.sent, self._part.elements = answers, {}, elements
        shown = {field: b64encode(answers.get(kind, b"")) or None for kind, field in SHOWN.items()}
        _run(self._part.advance(SimpleNamespace(state=state, **shown)))
        return self.sent

    # --- the calls of the client -----------------------------------------------------------------------------------

    def put_stage(self, _task: str, _number: int, stage: str, _client: str, body: bytes) -> Program[None]:
        self.sent[stage] = body
        yield from ()

    def contribute(self, task_id: str, number: int, client: str, body: bytes, _statements: object) -> Program[None]:
        return self.put_stage(task_id, number, "contribute", client, body)

    def name_bad_shares(self, *_: object) -> Program[Any]:
        yield from ()
        return SimpleNamespace(number=self.context.round_number, state="collecting")

    def stage_body(self, _task: str, _number: int, what: str, *_: object) -> Program[bytes]:
        yield from ()
        return self.answers[what]


def _run(program: Program[Any]) -> None:
    effect = next(program, None)
    while effect is not None:
        assert isinstance(effect, Work)
        try:
            effect = program.send(effect.call())
        except StopIteration:
            return


@dataclass(frozen=True, repr=False)
class Puppet:
    """A member of one roster whose round keys the server has."""

    entry: RosterEntry
    mask_secret: SealingKey
    sealing_secret: SealingKey
    signs: Ed25519PrivateKey | None
    """Its identity key, if the server has that too."""


def make_puppet(context: RoundContext, who: int | Invention, helps: bool, draw: Callable[[int], bytes]) -> Puppet:
    """Return a member of the roster whose round keys the server makes.

    who: a member, or how one is made up. helps: whether the member gives the server its identity key; if not, the
    server's keys stand under the identity of a member that did not sign them. draw: returns random bytes.
    """
    signs = Ed25519PrivateKey.from_private_bytes(draw(32))
    if isinstance(who, int):
        own = identity_of(who)
        signs = own.signing_key if helps else signs
        name, key, mailbox, certificate = name_of(who), own.public_key, own.mailbox_key, certificate_of(who)
    else:
        name, key, mailbox = f"d_{draw(2).hex()}", signs.public_key().public_bytes_raw(), identity_of(99).mailbox_key
        certificate = _invented_certificate(who, key, mailbox)
    mask_secret, sealing_secret, seed = SealingKey(draw(32)), SealingKey(draw(32)), draw(32)
    keys = (mask_secret.public, sealing_secret.public)
    body = sign_advertisement(signs, context, name, *keys, seed).encode()
    return Puppet(
        RosterEntry(name, key, mailbox, certificate, body),
        mask_secret,
        sealing_secret,
        signs if helps or not isinstance(who, int) else None,
    )


def _invented_certificate(how: Invention, key: bytes, mailbox: bytes) -> bytes:
    if how == "no certificate":
        return NO_CERTIFICATE
    if how == "copied certificate":
        return certificate_of(0)
    serial = int.from_bytes(key[:8], "big")
    return certify(_STRANGER, _SCOPE, key, mailbox, role="member", serial=serial, not_after=1).encode()
