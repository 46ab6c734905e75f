"""A complete masked sum with all parties in one process, from the plan to the opened sum, with dropouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import Certificate, certify, check_certificate
from protocols.crypto.keys import DIGEST_BYTES, SEED_BYTES
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey
from protocols.layout import whole_route
from protocols.messages.stages import MASKED_MESSAGES, MaskedMessage
from protocols.sums.masked import client, server
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MASKED, MaskedPlan, RoundContext
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster


@dataclass
class MaskedRun:
    """All parties of one round. A method plays a stage without the clients in `without`, and returns the run.

    Stages fill the fields of states and messages in turn, by client id; `open` the total, float64 (layout.length,).
    Between two stages a caller can change them, as attackers do.
    """

    context: RoundContext
    identities: Mapping[str, Ed25519PrivateKey]
    policy: ClientPolicy
    encoded: Callable[[str], NDArray[np.unsignedinteger[Any]]]
    """A client's ring elements, (layout.length,)."""
    entry: Callable[[str, bytes], RosterEntry]
    """The roster entry of a client and its advertisement."""
    is_member: Callable[[RosterEntry], bool]
    random: Callable[[str], Randomness] = lambda _: os.urandom
    """Randomness for a label."""
    contexts: Mapping[str, RoundContext] = field(default_factory=dict)
    """What single clients take the round to be, if not `context`."""
    checks: bool = True
    """Whether the server checks messages and sets, as an honest one does."""
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
    total: NDArray[np.float64] = field(init=False)

    def advertise(self, without: Collection[str] = ()) -> Self:
        """New signed keys. The server checks them and makes the roster, which determines the neighbour graph."""
        for name in _present(self.identities, without):
            own, context = self.identities[name], self.contexts.get(name, self.context)
            self.advertised[name], body = client.advertise(context, name, own, self.policy, self.random(name))
            if self.checks:
                server.check_advertisement(self.context, name, own.public_key().public_bytes_raw(), body)
            self.entries[name] = self.entry(name, body)
        self.roster = make_roster(self.context, self.entries.values())
        return self

    def share(self, without: Collection[str] = ()) -> Self:
        """Shares of the self-mask seed and the mask key, encrypted for the neighbours. The server delivers them."""
        for name in _present(self.advertised, without):
            random = self.random(f"{name} shares")
            handed = self.roster.handout(name)
            self.shared[name], body = client.share(self.advertised[name], handed, self.is_member, random)
            self.shares[name] = body
            if self.checks:
                server.check_shares(self.roster, name, body)
        if self.checks:
            server.check_sharers(self.roster, self.shares)
        self.inboxes = dict(server.inboxes(self.roster, self.shares))
        return self

    def contribute(self, without: Collection[str] = ()) -> Self:
        """Ring elements + self mask + masks in common with neighbours. The server folds them."""
        plan, route = self.context.plan, whole_route(self.context.plan.layout)
        for name in _present(self.shared, without):
            opened = client.open_inbox(self.shared[name], self.inboxes[name])
            self.contributed[name], body = client.contribute(opened, self.encoded(name))
            self.contributions[name] = body
            if self.checks:
                MASKED.check(plan, route, body)
        if self.checks:
            server.check_survivors(self.roster, self.shares, self.contributions)
        return self

    def confirm(self, without: Collection[str] = ()) -> Self:
        """Survivors sign their set (semi-malicious)."""
        to_confirm = server.SurvivorSet.of(self.roster, self.shares, self.contributions)
        for name in _present(self.contributed, without):
            self.confirmed[name], body = client.confirm(self.contributed[name], self.survivors)
            self.confirmations[name] = body
            if self.checks:
                to_confirm.check_confirmation(name, body)
        if self.checks:
            server.check_confirmed(self.roster, self.shares, self.contributions, self.confirmations)
        return self

    def unmask(self, without: Collection[str] = ()) -> Self:
        """Seed shares of survivors, mask-key shares of dropouts.

        semi-malicious: a client replies only if t neighbours and a quorum signed the set that it signed.
        """
        if self.context.plan.mode == "curious":
            for name in _present(self.contributed, without):
                _, self.replies[name] = client.unmask_unconfirmed(self.contributed[name], self.survivors)
            return self
        signed = server.confirmations(self.roster, self.confirmations)
        for name in _present(self.confirmed, without):
            _, self.replies[name] = client.unmask(self.confirmed[name], signed)
        return self

    @property
    def survivors(self) -> bytes:
        """The encoded set of the clients that contributed."""
        return self.roster.encode_set(self.contributions)

    def unmasking(self, onto: NDArray[np.unsignedinteger[Any]] | None = None, group: int = 0) -> server.Unmasking:
        """Return what removes the masks from the sum of a group's contributions, added to `onto`.

        Raises what `server.unmask` raises.
        """
        return server.unmask(self.roster, self.shares, self.contributions, self.replies, onto=onto, group=group)

    def open(self) -> Self:
        """The server adds up the contributions and removes the masks. Anyone opens the sum."""
        plan, route = self.context.plan, whole_route(self.context.plan.layout)
        bodies = sorted((self.roster.group_of(name), route, body) for name, body in self.contributions.items())
        partial = MASKED.fold_groups(plan, None, bodies)
        corrected, _ = MASKED.correct(plan, partial, lambda sums, group: self.unmasking(sums, group).bad_shares)
        aggregate = MASKED.release(plan, corrected)
        self.total = MASKED.open(plan, aggregate, len(self.contributions), None)
        return self


def run_masked_sum(
    plan: MaskedPlan,
    vectors: Mapping[str, NDArray[np.float64]],
    drop: Mapping[str, MaskedMessage] | None = None,
    random: Randomness = os.urandom,
) -> MaskedRun:
    """Return the opened run of a masked sum over all clients that contribute before they drop out.

    vectors: client id -> float64 (layout.length,). drop: client id -> the first message that it does not send. Raises
    `ThresholdError` if too few clients are left in a stage, and the errors of the parties' functions.
    """
    route = whole_route(plan.layout)
    elements = {name: plan.encode(route, plan.layout.split(vector)) for name, vector in vectors.items()}
    return run_masked_elements(plan, elements, drop, random)


def run_masked_elements(
    plan: MaskedPlan,
    elements: Mapping[str, NDArray[np.unsignedinteger[Any]]],
    drop: Mapping[str, MaskedMessage] | None = None,
    random: Randomness = os.urandom,
) -> MaskedRun:
    """Return the opened run of a masked sum as `run_masked_sum` does; elements: client id -> (layout.length,)."""
    order, first_missing = MASKED_MESSAGES.index, drop or {}

    def gone(stage: MaskedMessage) -> set[str]:
        return {name for name, first in first_missing.items() if order(first) <= order(stage)}

    # Everyone knows the round, and each client computes the model's digest itself. An organiser, whom the server
    # does not control, has certified the keys of every member.
    context = RoundContext("t_1", 1, random(SEED_BYTES), plan, random(DIGEST_BYTES), max(2, len(elements)))
    policy = ClientPolicy(masked_modes=frozenset({plan.mode}))
    identities = {name: Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES)) for name in elements}
    organiser = Ed25519PrivateKey.from_private_bytes(random(SEED_BYTES))
    mailbox = SealingKey(random(SEED_BYTES)).name

    def certified(name: str, advertisement: bytes) -> RosterEntry:
        key, serial = identities[name].public_key().public_bytes_raw(), list(identities).index(name)
        made = certify(organiser, "run", key, mailbox, role="member", serial=serial, not_after=1)
        return RosterEntry(name, key, mailbox, made.encode(), advertisement)

    def is_member(entry: RosterEntry) -> bool:
        made, key = Certificate.decode(entry.certificate), organiser.public_key().public_bytes_raw()
        check_certificate(key, "run", entry.identity_key, entry.mailbox_key, made, now=0)  # raises for a stranger
        return True

    run = MaskedRun(context, identities, policy, elements.__getitem__, certified, is_member, lambda _: random)
    run.advertise(gone("advertise")).share(gone("share")).contribute(gone("contribute"))
    if plan.mode == "semi-malicious":
        run.confirm(gone("confirm"))
    return run.unmask(gone("unmask")).open()


def _present(names: Iterable[str], without: Collection[str]) -> list[str]:
    return [name for name in names if name not in without]
