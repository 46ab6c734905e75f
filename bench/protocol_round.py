"""One round of masked or one-shot sums, all parties in this process: processor time of the server and each client."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.domain import SEED_BYTES
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout, whole_route
from protocols.sums.masked import client, server
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import DIGEST_BYTES, MaskedPlan, RoundContext, encode
from protocols.sums.masked.roster import RosterEntry, make_roster
from protocols.sums.oneshot import client as oneshot_client
from protocols.sums.oneshot import member
from protocols.sums.oneshot import server as oneshot_server
from protocols.sums.oneshot.committee import make_committee, make_committee_key
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.parameters import OneshotPolicy
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan
from protocols.sums.oneshot.plan import encode as encode_oneshot
from protocols.sums.oneshot.wire import body_digest, survivors_digest

__all__ = ["CLIP", "Clock", "Shape", "play_oneshot", "play_round"]

CLIP: Final = 0.1
T = TypeVar("T")
_BATCH: Final = 40
"""Contributions of a one-shot round that are in memory at the same time; more than the processor's caches hold."""


@dataclass(frozen=True)
class Shape:
    """Size of a round: so many clients of so many values each, of whom `dropouts` share their secrets and vanish.

    parameters: of the mechanism, as JSON; by default 100 clients have 22 neighbours and the threshold 12.
    """

    clients: int
    values: int
    dropouts: int = 0
    parameters: str = '{"bits": 32, "corrupt": 0.01, "dropout": 0.1}'

    @cached_property
    def plan(self) -> MaskedPlan:
        """The plan, in semi-malicious mode."""
        layout = VectorLayout((Block("b", (Segment("values", self.values, CLIP),)),), sum_class=TRAINED)
        return MASKED.plan(json.loads(self.parameters), layout, self.clients)

    @property
    def route(self) -> Route:
        """The route of every client."""
        return whole_route(self.plan.layout)

    @property
    def of_flower(self) -> dict[str, int]:
        """What `bench.flower_peer` needs for the same round."""
        near = self.plan.neighbourhood(self.clients)
        return {
            "clients": self.clients,
            "values": self.values,
            "neighbours": near.degree,
            "threshold": near.threshold,
            "dropouts": self.dropouts,
        }


@dataclass
class Clock:
    """Processor seconds by stage: of the server in total, of every client, and of every member of a committee.

    sent: bytes of a client, all stages. member_bytes: what a member of the committee downloads for one client.
    """

    server: dict[str, float] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    members: list[float] = field(default_factory=list)
    sent: int = 0
    member_bytes: int = 0

    @contextmanager
    def serving(self, stage: str) -> Iterator[None]:
        """Add the time inside the context to the server's time of `stage`."""
        start = time.process_time()
        yield
        self.server[stage] = self.server.get(stage, 0.0) + time.process_time() - start

    def step(self, stage: str, function: Callable[..., T], *arguments: Any) -> T:
        """The result of a client's step; its time is added to the clients' times of `stage`."""
        start = time.process_time()
        result = function(*arguments)
        self.clients.setdefault(stage, []).append(time.process_time() - start)
        return result

    @property
    def server_seconds(self) -> float:
        """The server's time in all stages."""
        return sum(self.server.values())


def play_round(shape: Shape, vectors: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> Clock:
    """Play one round with all parties, one vector a client.

    Fails unless the sum equals that of the survivors' ring elements exactly.
    """
    plan, route = shape.plan, shape.route
    clock, names = Clock(), [f"client-{number:03}" for number in range(len(vectors))]
    dropped = set(names[: shape.dropouts])
    context = RoundContext("t_bench", 1, os.urandom(SEED_BYTES), plan, os.urandom(DIGEST_BYTES), len(names))
    policy, vectors_of = ClientPolicy(), dict(zip(names, vectors, strict=True))
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    keys = {name: identity.public_key().public_bytes_raw() for name, identity in identities.items()}

    advertised, advertisements = {}, {}
    for name in names:
        advertised[name], advertisements[name] = clock.step(
            "advertise", client.advertise, context, name, identities[name], policy
        )
    with clock.serving("advertise"):
        for name, body in advertisements.items():
            server.check_advertisement(context, name, keys[name], body)
        entries = [
            RosterEntry(name, keys[name], bytes(32), NO_CERTIFICATE, body) for name, body in advertisements.items()
        ]
        roster = make_roster(context, entries)

    shared, shares = {}, {}
    for name in names:
        shared[name], shares[name] = clock.step("share", client.share, advertised[name], roster.body, lambda _: True)
    with clock.serving("share"):
        for body in shares.values():
            server.check_shares(roster, body)
        server.check_sharers(roster, shares)
        inboxes = server.inboxes(roster, shares)

    contributed, contributions, truth = {}, {}, np.zeros(shape.values, plan.dtype)
    for name in names:
        if name not in dropped:
            elements = clock.step("encode", encode, plan, route, [vectors_of[name]])
            truth += elements
            contributed[name], contributions[name] = clock.step(
                "contribute", client.contribute, shared[name], inboxes[name], elements
            )
    with clock.serving("contribute"):
        for body in contributions.values():
            MASKED.check(plan, route, body)
        server.check_survivors(roster, shares, contributions)
        partial_sum = MASKED.fold(plan, None, ((route, body) for body in contributions.values()))
        survivors = roster.encode_set(contributions)

    confirmed, confirmations = {}, {}
    for name, state in contributed.items():
        confirmed[name], confirmations[name] = clock.step("confirm", client.confirm, state, survivors)
    with clock.serving("confirm"):
        for name, body in confirmations.items():
            server.check_confirmation(roster, shares, contributions, name, body)
        server.check_confirmed(roster, shares, contributions, confirmations)
        signed = server.confirmations(roster, confirmations)

    replies = {}
    for name, confirmation in confirmed.items():
        _, replies[name] = clock.step("unmask", client.unmask, confirmation, signed)
    with clock.serving("unmask"):
        for body in replies.values():
            server.check_reply(roster, body)
        corrected, _ = MASKED.correct(
            plan,
            partial_sum,
            lambda sums: server.unmask(roster, shares, contributions, replies, onto=sums).bad_shares,
        )
        aggregate = MASKED.release(plan, corrected)
    clock.step("open", MASKED.open, plan, aggregate, len(contributions), None)
    clock.sent = sum(
        len(bodies[names[-1]]) for bodies in (advertisements, shares, contributions, confirmations, replies)
    )
    assert aggregate == truth.tobytes(), "the sum is wrong"
    return clock


def play_oneshot(plan: OneshotPlan, vectors: Iterable[NDArray[np.float64]]) -> Clock:
    """Play one round of one-shot sums with the clients, the server and the committee, nobody certified.

    Fails unless the sum equals that of the clients' fixed-point values exactly.
    """
    clock, route, policy = Clock(), whole_route(plan.layout), OneshotPolicy()
    names = [f"m{place}" for place in range(plan.committee)]
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    made = {name: make_committee_key(identity, "t_bench", 1, name) for name, identity in identities.items()}
    keys = [key for _, key in made.values()]
    context = OneshotContext("t_bench", 1, 0, plan, os.urandom(DIGEST_BYTES), plan.max_contributions)
    with clock.serving("committee"):
        committee = make_committee(context, keys, lambda _: True)
    truth = np.zeros(plan.layout.length, np.int64)
    statements, sealed, bodies = [], [], []
    partial_sum = ONESHOT.fold(plan, None, [])
    for number, vector in enumerate(vectors):
        identity, name = Ed25519PrivateKey.generate(), f"c{number}"
        seen = clock.step("committee", make_committee, context, keys, lambda _: True)
        steps = clock.step("encode", encode_oneshot, plan, route, [vector])
        truth += steps
        upload = clock.step("contribute", oneshot_client.contribute, seen, name, identity, policy, steps)
        key, ticket = identity.public_key().public_bytes_raw(), upload.ticket.encode()
        with clock.serving("check"):
            ONESHOT.check(plan, route, upload.contribution)
            digest = body_digest(upload.contribution)
            statements.append(
                oneshot_server.check_upload(committee, name, key, bytes(32), NO_CERTIFICATE, ticket, digest)
            )
        sealed.append(upload.ticket.sealed)
        bodies.append(upload.contribution)
        clock.sent = len(ticket) + len(upload.contribution)
        if len(bodies) == _BATCH:
            with clock.serving("fold"):
                partial_sum = ONESHOT.fold(plan, partial_sum, [(route, body) for body in bodies])
            bodies = []
    with clock.serving("fold"):
        partial_sum = ONESHOT.fold(plan, partial_sum, [(route, body) for body in bodies])
    states = {}
    for place, name in enumerate(names):
        start = time.process_time()
        ready = member.join(committee, name, identities[name], made[name][0], policy)
        found = member.inspect(ready, statements, [shares[place] for shares in sealed], lambda _: True)
        states[name], _ = member.confirm(ready, found, member.Ledger(), 3, bytes(32))
        clock.members.append(time.process_time() - start)
    signatures = {name: state.signature for name, state in states.items()}
    summed = {}
    for place, (name, state) in enumerate(states.items()):
        start = time.process_time()
        summed[name] = member.sum_share(state, signatures)
        clock.members[place] += time.process_time() - start
    with clock.serving("unmask"):
        digest = survivors_digest(statements)
        shares_of = {
            name: oneshot_server.check_summed_share(committee, name, digest, share) for name, share in summed.items()
        }
        aggregate = oneshot_server.unmask(committee, partial_sum, len(statements), shares_of).aggregate
    opened = clock.step("open", ONESHOT.open, plan, aggregate, len(statements), None)
    clock.member_bytes = len(statements[0].encode()) + plan.sealed_bytes
    assert bool((opened * plan.places[0][0][0].scale == truth).all()), "the sum is wrong"
    return clock
