"""A masked round run stage by stage, so that a test can inspect or change any stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import Certificate, certify, check_certificate
from protocols.errors import CertificateError
from protocols.layout import Block, Segment, VectorLayout
from protocols.sum_classes import TRAINED
from protocols.sums.masked import client, server
from protocols.sums.masked.context import RoundContext, model_digest
from protocols.sums.masked.packing import ring_dtype, unpack
from protocols.sums.masked.parameters import MaskedParameters, Mode, Neighbourhood
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.policy import ClientPolicy
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster

LAYOUT = VectorLayout(
    (Block("a", (Segment("v", 5, 1.0),)), Block("b", (Segment("n", 2, 1.0, integral=True),))), sum_class=TRAINED
)
ORGANISER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MAILBOX = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
ANY_MODE: frozenset[Mode] = frozenset({"curious", "semi-malicious"})


@dataclass(frozen=True)
class CompletePlan(MaskedPlan):
    """A plan with the complete graph and a threshold of just over half the cohort, 2t > k in both modes, or another."""

    threshold: int | None = None

    def neighbourhood(self, clients: int) -> Neighbourhood:
        own = self.parameters
        threshold = self.threshold or clients // 2 + 1
        facts = (own.corrupt, own.dropout, own.mode, own.sigma, own.eta, -inf, -inf, -inf)
        return Neighbourhood(clients, clients - 1, threshold, *facts)


def complete_plan(mode: Mode = "semi-malicious", bits: int = 32) -> MaskedPlan:
    return CompletePlan(MaskedParameters(mode=mode, bits=bits), LAYOUT, 64)


def names(count: int) -> list[str]:
    return [f"c_{number:03d}" for number in range(count)]


def round_context(plan: MaskedPlan, cohort: int, number: int = 1, model: bytes = b"model") -> RoundContext:
    return RoundContext("t_1", number, bytes([number]) * 32, plan, model_digest(b"terms", model), cohort)


def is_member(entry: RosterEntry) -> bool:
    """Whether the organiser certified an identity key."""
    try:
        made = Certificate.decode(entry.certificate)
        key = ORGANISER.public_key().public_bytes_raw()
        check_certificate(key, "rounds", entry.identity_key, entry.mailbox_key, made, now=0)
    except CertificateError:
        return False
    return True


def entry_of(identity: Ed25519PrivateKey, name: str, advertisement: bytes) -> RosterEntry:
    key = identity.public_key().public_bytes_raw()
    made = certify(ORGANISER, "rounds", key, MAILBOX, role="member", serial=int.from_bytes(key[:8], "big"), not_after=1)
    return RosterEntry(name, key, MAILBOX, made.encode(), advertisement)


@dataclass
class Round:
    """Stages fill the fields in turn. `contexts` overrides what single clients believe the round to be."""

    context: RoundContext
    members: list[str]
    policy: ClientPolicy = field(default_factory=lambda: ClientPolicy(modes=ANY_MODE))
    contexts: dict[str, RoundContext] = field(default_factory=dict)
    is_member: Callable[[RosterEntry], bool] = is_member
    identities: dict[str, Ed25519PrivateKey] = field(init=False)
    elements: dict[str, NDArray[np.unsignedinteger[Any]]] = field(init=False)
    advertised: dict[str, client.Advertised] = field(default_factory=dict)
    entries: dict[str, RosterEntry] = field(default_factory=dict)
    roster: Roster = field(init=False)
    shared: dict[str, client.Shared] = field(default_factory=dict)
    shares: dict[str, bytes] = field(default_factory=dict)
    inboxes: dict[str, bytes] = field(default_factory=dict)
    contributed: dict[str, client.Contributed] = field(default_factory=dict)
    contributions: dict[str, bytes] = field(default_factory=dict)
    confirmed: dict[str, client.Confirmed] = field(default_factory=dict)
    confirmations: dict[str, bytes] = field(default_factory=dict)
    replies: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bits, rng = self.context.plan.bits, np.random.default_rng(7)
        self.identities = {name: Ed25519PrivateKey.generate() for name in self.members}
        self.elements = {
            name: rng.integers(0, 1 << bits, LAYOUT.length, np.uint64).astype(ring_dtype(bits)) for name in self.members
        }

    def advertise(self, without: Iterable[str] = ()) -> Round:
        for name in self._but(self.members, without):
            context = self.contexts.get(name, self.context)
            self.advertised[name], body = client.advertise(context, name, self.identities[name], self.policy)
            self.entries[name] = entry_of(self.identities[name], name, body)
        self.roster = make_roster(self.context, self.entries.values())
        return self

    def share(self, without: Iterable[str] = ()) -> Round:
        for name in self._but(self.advertised, without):
            self.shared[name], self.shares[name] = client.share(self.advertised[name], self.roster.body, self.is_member)
        self.inboxes = server.inboxes(self.roster, self.shares)
        return self

    def contribute(self, without: Iterable[str] = ()) -> Round:
        for name in self._but(self.shared, without):
            self.contributed[name], self.contributions[name] = client.contribute(
                self.shared[name], self.inboxes[name], self.elements[name]
            )
        return self

    def confirm(self, without: Iterable[str] = ()) -> Round:
        for name in self._but(self.contributed, without):
            self.confirmed[name], self.confirmations[name] = client.confirm(self.contributed[name], self.survivors)
        return self

    def unmask(self, without: Iterable[str] = ()) -> Round:
        if self.context.plan.mode == "curious":
            for name in self._but(self.contributed, without):
                _, self.replies[name] = client.unmask_unconfirmed(self.contributed[name], self.survivors)
            return self
        signed = server.confirmations(self.roster, self.confirmations)
        for name in self._but(self.confirmed, without):
            _, self.replies[name] = client.unmask(self.confirmed[name], signed)
        return self

    @staticmethod
    def _but(everyone: Iterable[str], without: Iterable[str]) -> list[str]:
        excluded = set(without)
        return [name for name in everyone if name not in excluded]

    @property
    def survivors(self) -> bytes:
        return self.roster.encode_set(self.contributions)

    def unmasking(self) -> server.Unmasking:
        return server.unmask(self.roster, self.shares, self.contributions, self.replies)

    def opened(self) -> NDArray[np.unsignedinteger[Any]]:
        """Return the sum of the contributions without masks, ring elements."""
        return self._ring(sum_of(self, self.contributions) + self.unmasking().correction)

    def expected(self) -> NDArray[np.unsignedinteger[Any]]:
        """The sum of the survivors' elements, added up in the clear."""
        return self._ring(sum(self.elements[name] for name in self.contributions))  # type: ignore[arg-type]

    def _ring(self, values: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
        return values & values.dtype.type((1 << self.context.plan.bits) - 1)


def sum_of(played: Round, contributions: dict[str, bytes]) -> NDArray[np.unsignedinteger[Any]]:
    bits = played.context.plan.bits
    total = np.zeros(LAYOUT.length, ring_dtype(bits))
    for body in contributions.values():
        total += unpack(body, bits, LAYOUT.length)
    return total


def new_round(count: int = 9, mode: Mode = "semi-malicious", **changes: Any) -> Round:
    """Return a round of `count` clients before its first stage; `changes` are fields of `Round`."""
    return Round(round_context(complete_plan(mode), count), names(count), **changes)


def with_threshold(count: int, threshold: int) -> Round:
    """Return a round in mode `curious`, on the complete graph, with this threshold instead of a safe one."""
    plan = CompletePlan(MaskedParameters(mode="curious", bits=32), LAYOUT, 64, threshold=threshold)
    return Round(round_context(plan, count), names(count))


def with_model(context: RoundContext, model: bytes) -> RoundContext:
    """Return the context of a client with another model."""
    return replace(context, model_digest=model_digest(b"terms", model))
