"""A masked round run stage by stage, so that a test can inspect or change any stage; helpers of the attack tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import Certificate, certify, check_certificate
from protocols.crypto.keys import public_key
from protocols.errors import CertificateError, CodecError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.masked import shamir
from protocols.sums.masked.masks import add_masks, mask_context, seed_commitment
from protocols.sums.masked.parameters import ClientPolicy, MaskedParameters, Mode, Neighbourhood
from protocols.sums.masked.plan import MaskedPlan, RoundContext, model_digest
from protocols.sums.masked.roster import Roster, RosterEntry
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.shares import point
from protocols.sums.masked.wire import join_slots, split_slots
from protocols.sums.ring import ring_dtype, unpack

LAYOUT = VectorLayout(
    (Block("a", (Segment("v", 5, 1.0),)), Block("b", (Segment("n", 2, 1.0, integral=True),))), sum_class=TRAINED
)
ORGANISER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MAILBOX = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
ANY_MODE: frozenset[Mode] = frozenset({"curious", "semi-malicious"})
ANY_POLICY = ClientPolicy(modes=ANY_MODE)


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
    """Return a round of `count` clients before its first stage; `changes` are arguments of `Round`."""
    return Round(round_context(complete_plan(mode), count), names(count), **changes)


def with_threshold(count: int, threshold: int) -> Round:
    """Return a round in mode `curious`, on the complete graph, with this threshold instead of a safe one."""
    plan = CompletePlan(MaskedParameters(mode="curious", bits=32), LAYOUT, 64, threshold=threshold)
    return Round(round_context(plan, count), names(count))


def with_model(context: RoundContext, model: bytes) -> RoundContext:
    """Return the context of a client with another model."""
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


DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
Patch = pytest.MonkeyPatch
VICTIM = "c_000"


def always_true(*_: object) -> bool:
    return True


def unmasked(
    roster: Roster, place: int, body: bytes, key_with: Callable[[int], bytes], seed: bytes | None = None
) -> NDArray[np.unsignedinteger[Any]]:
    """A contribution without the masks that somebody who knows its keys with its neighbours, and its seed, computes."""
    context = mask_context(
        roster.context, roster.digest, roster.encode_set(entry.client_id for entry in roster.entries)
    )
    target = unpack(body, roster.context.plan.bits, LAYOUT.length).copy()
    masks: list[Any] = [] if seed is None else [(seed, context, -1)]
    masks += [(key_with(peer), context, -1 if place < peer else 1) for peer in roster.neighbours_of(place)]
    add_masks(target, masks)
    return target


def secrets_of(
    played: Round, replies: dict[str, list[bytes]], victim: str, told: Mapping[str, Iterable[bytes]] | None = None
) -> tuple[bool, bool]:
    """Return whether the server can reconstruct the victim's seed, and its mask key, from all messages.

    told: shares of the victim's secrets that colluding clients gave to the server.
    """
    place, entry = played.roster.index(victim), played.roster.entries[played.roster.index(victim)]
    held: list[tuple[int, bytes]] = []
    for holder, bodies in replies.items():
        slot = played.roster.neighbours_of(played.roster.index(holder)).index(place)
        for body in bodies:
            share = split_slots(body, played.roster.degree, SHARE_BYTES, "a reply")[slot]
            held += [(point(played.roster.index(holder)), share)] if share else []
    for holder, shares in (told or {}).items():
        held += [(point(played.roster.index(holder)), share) for share in shares]

    def found(check: Callable[[bytes], bool]) -> bool:
        for chosen in itertools.combinations(held, played.roster.threshold):
            if len(dict(chosen)) == len(chosen):
                try:
                    if check(shamir.combine(dict(chosen), played.roster.threshold)):
                        return True
                except CodecError:
                    continue
        return False

    return (
        found(lambda secret: seed_commitment(secret) == entry.advertised.commitment),
        found(lambda secret: public_key(secret) == entry.advertised.mask_key),
    )
