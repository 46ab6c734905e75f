"""Sums with all parties in this process, to be timed: sums of one message, masked and one-shot rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE, Certificate, CertifiedRole, certify, check_certificate
from protocols.crypto.keys import DIGEST_BYTES, SEED_BYTES, Keyring
from protocols.crypto.sealing import SealingKey
from protocols.layout import TRAINED, Block, Route, Segment, VectorLayout, whole_route
from protocols.sums.base import Mechanism
from protocols.sums.masked import client, server
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MASKED, MaskedPlan, RoundContext
from protocols.sums.masked.roster import RosterEntry, make_roster, signed_survivors
from protocols.sums.masked.run import MaskedRun
from protocols.sums.oneshot import client as oneshot_client
from protocols.sums.oneshot import member
from protocols.sums.oneshot import server as oneshot_server
from protocols.sums.oneshot.committee import make_committee, make_committee_key
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy
from protocols.sums.oneshot.wire import body_digest, survivors_digest
from protocols.sums.wire import Ring

CLIP: Final = 0.1
T = TypeVar("T")
_BATCH: Final = 40
"""Contributions of a one-shot round that are in memory at the same time; more than the processor's caches hold."""


def layout_of(values: int) -> VectorLayout:
    """A layout of one block of `values` values within CLIP, in rows of four where that is a multiple."""
    row = None if values % 4 else 4
    return VectorLayout((Block("update", (Segment("values", values, CLIP, row=row),)),), sum_class=TRAINED)


def updates(clients: int, values: int) -> NDArray[np.float64]:
    """Vectors (clients, values) that are distributed like updates: normal, clipped to CLIP."""
    return np.clip(np.random.default_rng(20240513).normal(0.0, CLIP / 2, (clients, values)), -CLIP, CLIP)


# --- Sums of one message: plain, CKKS, Paillier


@dataclass(frozen=True)
class PreparedSum:
    """A sum with its plan, its keys and the sealed contributions of all clients; its methods are the steps to time."""

    how: Mechanism
    plan: Any
    keys: Keyring | None
    contributions: Sequence[bytes]

    @classmethod
    def of(
        cls,
        how: Mechanism,
        parameters: Mapping[str, Any],
        vectors: NDArray[np.float64],
        keys: Keyring | None = None,
        clients: int | None = None,
    ) -> PreparedSum:
        """Make plan, keys and contributions of `vectors` (n, values).

        keys: to use instead of new ones. clients: of the plan, if they are not n.
        """
        plan: Any = how.plan(dict(parameters), layout_of(vectors.shape[1]), clients or len(vectors))
        if keys is None and how.needs_keyring:
            keys = how.generate_keyring(plan)
        route = whole_route(plan.layout)
        return cls(how, plan, keys, [how.seal(plan, route, [vector], keys) for vector in vectors])

    @property
    def route(self) -> Route:
        return whole_route(self.plan.layout)

    @cached_property
    def aggregate(self) -> bytes:
        return self.how.release(self.plan, self.fold())

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """A client's step, from the vector to the bytes that are sent."""
        return self.how.seal(self.plan, self.route, [vector], self.keys)

    def check(self) -> None:
        """The server's check of one contribution on arrival."""
        self.how.check(self.plan, self.route, self.contributions[0])

    def fold(self) -> bytes:
        """The server's fold of one batch with the contributions of all clients."""
        return self.how.fold(self.plan, None, [(self.route, body) for body in self.contributions])

    def open(self) -> NDArray[np.float64]:
        """The opened sum, float64 (values,)."""
        return self.how.open(self.plan, self.aggregate, len(self.contributions), self.keys)


# --- Masked rounds


class Organiser:
    """Certifies keys, and checks certificates as every party does."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._public = self._key.public_key().public_bytes_raw()
        self.mailbox = SealingKey.generate().name

    def certificate(self, identity: Ed25519PrivateKey, role: CertifiedRole) -> bytes:
        """The certificate of an identity key, 81 bytes."""
        own = identity.public_key().public_bytes_raw()
        serial = int.from_bytes(own[:8], "big")
        return certify(self._key, "bench", own, self.mailbox, role=role, serial=serial, not_after=1).encode()

    def knows(self, entry: Any) -> bool:
        """Whether the organiser certified the keys of a roster's entry, a committee key or a statement."""
        made = Certificate.decode(entry.certificate)
        check_certificate(self._public, "bench", entry.identity_key, entry.mailbox_key, made, now=0)
        return True


def masked_run(
    plan: MaskedPlan,
    clients: int,
    elements: NDArray[np.unsignedinteger[Any]],
    organiser: Organiser | None = None,
    policy: ClientPolicy | None = None,
) -> MaskedRun:
    """All parties of a masked round in which each client sends `elements` and nobody checks anything yet.

    organiser: certifies all members; None: nobody does.
    """
    context = RoundContext("t_bench", 1, os.urandom(SEED_BYTES), plan, os.urandom(DIGEST_BYTES), clients)
    identities = {f"client-{number:05}": Ed25519PrivateKey.generate() for number in range(clients)}

    def entry(name: str, body: bytes) -> RosterEntry:
        mailbox, made = bytes(32), NO_CERTIFICATE
        if organiser is not None:
            mailbox, made = organiser.mailbox, organiser.certificate(identities[name], "member")
        return RosterEntry(name, identities[name].public_key().public_bytes_raw(), mailbox, made, body)

    return MaskedRun(
        context, identities, policy or ClientPolicy(), lambda _: elements, entry, lambda _: True, checks=False
    )


def masked_client(
    plan: MaskedPlan, clients: int, vector: NDArray[np.float64], organiser: Organiser, whole: bool = True
) -> Callable[[bool], int]:
    """Return a client's stages after its keys as a function, in a semi-malicious round in which all take part.

    The other clients' messages are made beforehand; so are this client's keys, whose time (0.2 ms) is not counted.
    whole: all stages; otherwise those up to the contribution. The function's argument: whether the client checks a
    certificate of each member of the roster, as with an organiser. It returns the bytes sent.
    """
    route = whole_route(plan.layout)
    run = masked_run(plan, clients, plan.encode(route, [vector]), organiser).advertise().share()
    names = [entry.client_id for entry in run.roster.entries]
    one, everyone = names[len(names) // 2], run.roster.encode_set(names)  # half of its neighbours are after it
    signatures = {
        name: identity.sign(signed_survivors(run.roster, everyone, everyone))
        for name, identity in run.identities.items()
    }
    signed = server.confirmations(run.roster, signatures)

    def play(certified: bool) -> int:
        is_member = organiser.knows if certified else lambda _: True
        state = replace(run.advertised[one])  # an unused copy for every repetition; a client takes each step once
        shared, own = client.share(state, run.roster.handout(one), is_member)
        contributed, body = _contributed(shared, run.inboxes[one], plan.encode(route, [vector]))
        if not whole:
            return len(own) + len(body)
        confirmed, signature = client.confirm(contributed, everyone)
        _, reply = client.unmask(confirmed, signed)
        return len(own) + len(body) + len(signature) + len(reply)

    return play


@dataclass(frozen=True)
class Shape:
    """Size of a round: so many clients of so many values each, of whom `dropouts` share their secrets and vanish."""

    clients: int
    values: int
    dropouts: int = 0
    parameters: Mapping[str, Any] | None = None
    """Of the mechanism; None: those with which 100 clients have 22 neighbours and the threshold 12."""

    @cached_property
    def plan(self) -> MaskedPlan:
        """The plan, in semi-malicious mode."""
        given = {"bits": 32, "corrupt": 0.01, "dropout": 0.1} if self.parameters is None else dict(self.parameters)
        return MASKED.plan(given, layout_of(self.values), self.clients)

    @property
    def route(self) -> Route:
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


def _contributed(shared: client.Shared, inbox: bytes, elements: NDArray[Any]) -> tuple[client.Contributed, bytes]:
    """The state after a client's two steps of the collecting stage, and its contribution."""
    return client.contribute(client.open_inbox(shared, inbox), elements)


@dataclass
class Clock:
    """Processor seconds by stage: of the server in total, of every client, and of every member of a committee."""

    server: dict[str, float] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    members: list[float] = field(default_factory=list)
    sent: int = 0
    """Bytes of a client, all stages."""
    member_bytes: int = 0
    """What a member of the committee downloads for one client."""

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
        return sum(self.server.values())


def play_round(shape: Shape, vectors: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> Clock:
    """Play one round with all parties, one vector a client.

    Fails unless the sum equals that of the survivors' ring elements exactly.
    """
    plan, route = shape.plan, shape.route
    run, clock = masked_run(plan, len(vectors), np.zeros(0, plan.dtype)), Clock()
    context, identities, names = run.context, run.identities, list(run.identities)
    dropped, vectors_of = set(names[: shape.dropouts]), dict(zip(names, vectors, strict=True))

    advertised, advertisements = {}, {}
    for name, identity in identities.items():
        advertised[name], advertisements[name] = clock.step(
            "advertise", client.advertise, context, name, identity, run.policy
        )
    with clock.serving("advertise"):
        for name, body in advertisements.items():
            server.check_advertisement(context, name, identities[name].public_key().public_bytes_raw(), body)
        roster = make_roster(context, [run.entry(name, body) for name, body in advertisements.items()])

    shared, shares = {}, {}
    for name in names:
        handed = roster.handout(name)
        shared[name], shares[name] = clock.step("share", client.share, advertised[name], handed, lambda _: True)
    with clock.serving("share"):
        for name, body in shares.items():
            server.check_shares(roster, name, body)
        server.check_sharers(roster, shares)
        inboxes = dict(server.inboxes(roster, shares))

    contributed, contributions, truth = {}, {}, np.zeros((plan.groups, shape.values), plan.dtype)
    for name in names:
        if name not in dropped:
            elements = clock.step("encode", plan.encode, route, [vectors_of[name]])
            truth[roster.group_of(name)] += elements
            contributed[name], contributions[name] = clock.step(
                "contribute", _contributed, shared[name], inboxes[name], elements
            )
    with clock.serving("contribute"):
        for body in contributions.values():
            MASKED.check(plan, route, body)
        server.check_survivors(roster, shares, contributions)
        by_group = sorted((roster.group_of(name), name) for name in contributions)
        partial_sum = MASKED.fold_groups(plan, None, ((group, route, contributions[name]) for group, name in by_group))
        survivors = roster.encode_set(contributions)

    confirmed, confirmations = {}, {}
    for name, state in contributed.items():
        confirmed[name], confirmations[name] = clock.step("confirm", client.confirm, state, survivors)
    with clock.serving("confirm"):
        to_confirm = server.SurvivorSet.of(roster, shares, contributions)
        for name, body in confirmations.items():
            to_confirm.check_confirmation(name, body)
        server.check_confirmed(roster, shares, contributions, confirmations)
        signed = server.confirmations(roster, confirmations)

    replies = {}
    for name, confirmation in confirmed.items():
        _, replies[name] = clock.step("unmask", client.unmask, confirmation, signed)
    with clock.serving("unmask"):
        for body in replies.values():
            server.check_reply(roster, body)
        held = server.collect_shares(roster, shares, shares.items(), contributions, replies)

        def removed(sums: Ring, group: int) -> tuple[server.BadShare, ...]:
            own = roster.of_group(held, group)
            return server.unmask_shares(roster, tuple(shares), tuple(contributions), own, onto=sums).bad_shares

        corrected, _ = MASKED.correct(plan, partial_sum, removed)
        aggregate = MASKED.release(plan, corrected)
    clock.step("open", MASKED.open, plan, aggregate, len(contributions), None)
    clock.sent = sum(
        len(bodies[names[-1]]) for bodies in (advertisements, shares, contributions, confirmations, replies)
    )
    counts = np.bincount([group for group, _ in by_group], minlength=plan.groups).astype("<u8")
    sums = [one.tobytes() for one in truth]
    of_groups = [count.tobytes() + total for count, total in zip(counts, sums, strict=True)]
    assert aggregate == b"".join(sums if plan.groups == 1 else of_groups), "the sum is wrong"
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
        steps = clock.step("encode", plan.encode, route, [vector])
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
