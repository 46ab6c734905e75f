"""A masked round run stage by stage, so that a test can inspect or change any stage; helpers of the attack tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import Certificate, certify, check_certificate
from protocols.crypto.sealing import SealingKey
from protocols.errors import CertificateError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.masked.neighbourhood import Mode, Neighbourhood
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters
from protocols.sums.masked.plan import MaskedPlan, RoundContext, model_digest
from protocols.sums.masked.roster import RosterEntry
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.wire import join_slots, split_slots
from protocols.sums.wire import ring_dtype, unpack

LAYOUT = VectorLayout(
    (Block("a", (Segment("v", 5, 1.0),)), Block("b", (Segment("n", 2, 1.0, integral=True),))), sum_class=TRAINED
)
ORGANISER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MAILBOX = SealingKey(bytes(range(32))).name
ANY_POLICY = ClientPolicy(masked_modes=frozenset({"curious", "semi-malicious"}))


@dataclass(frozen=True)
class CompletePlan(MaskedPlan):
    """A plan with the complete graph, and a threshold of just over half the cohort, or another."""

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


def round_context(plan: MaskedPlan, cohort: int, number: int = 1) -> RoundContext:
    return RoundContext("t_1", number, bytes([number]) * 32, plan, model_digest(b"terms", b"model"), cohort)


def is_member(entry: RosterEntry) -> bool:
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


class Round(MaskedRun):
    """A round of clients with random elements, whose server checks nothing: what it checks is tested by itself."""

    def __init__(
        self,
        context: RoundContext,
        members: list[str],
        policy: ClientPolicy = ANY_POLICY,
        is_member: Callable[[RosterEntry], bool] = is_member,
    ) -> None:
        bits, rng = context.plan.bits, np.random.default_rng(7)
        self.members = members
        self.elements = {
            name: rng.integers(0, 1 << bits, LAYOUT.length, np.uint64).astype(ring_dtype(bits)) for name in members
        }
        identities = {name: Ed25519PrivateKey.generate() for name in members}
        super().__init__(context, identities, policy, self.elements.__getitem__, self._entry, is_member, checks=False)

    def _entry(self, name: str, advertisement: bytes) -> RosterEntry:
        return entry_of(self.identities[name], name, advertisement)

    def opened(self) -> NDArray[np.unsignedinteger[Any]]:
        """Return the sum of the contributions without masks, ring elements."""
        bits = self.context.plan.bits
        sent = [unpack(body, bits, LAYOUT.length) for body in self.contributions.values()]
        return self._summed([*sent, self.unmasking().correction])

    def expected(self) -> NDArray[np.unsignedinteger[Any]]:
        """The sum of the survivors' elements, added up in the clear."""
        return self._summed([self.elements[name] for name in self.contributions])

    def _summed(self, vectors: list[NDArray[np.unsignedinteger[Any]]]) -> NDArray[np.unsignedinteger[Any]]:
        total = np.sum(vectors, axis=0, dtype=vectors[0].dtype)
        return total & total.dtype.type((1 << self.context.plan.bits) - 1)


def new_round(count: int = 9, mode: Mode = "semi-malicious", **changes: Any) -> Round:
    """Return a round of `count` clients before its first stage; `changes` are arguments of `Round`."""
    return Round(round_context(complete_plan(mode), count), names(count), **changes)


def with_threshold(count: int, threshold: int) -> Round:
    """Return a round in mode `curious`, on the complete graph, with this threshold instead of a safe one."""
    plan = CompletePlan(MaskedParameters(mode="curious", bits=32), LAYOUT, 64, threshold=threshold)
    return Round(round_context(plan, count), names(count))


def with_model(context: RoundContext, model: bytes) -> RoundContext:
    return replace(context, model_digest=model_digest(b"terms", model))


def alter_share(
    played: Round,
    holder: str,
    owner: str,
    change: Callable[[bytes], bytes | None] = lambda share: bytes([share[0] ^ 1]) + share[1:],
) -> None:
    """Change the share of a secret of `owner` in the reply of `holder`: one bit of it, or as `change` does."""
    roster = played.roster
    slot = roster.neighbours_of(roster.index(holder)).index(roster.index(owner))
    slots = list(split_slots(played.replies[holder], roster.degree, SHARE_BYTES, "a reply"))
    slots[slot] = change(slots[slot] or bytes(SHARE_BYTES))
    played.replies[holder] = join_slots(slots, SHARE_BYTES)


VICTIM = "c_000"
