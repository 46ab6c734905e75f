"""A one-shot round step by step, for tests that change what one of the parties does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.oneshot import client, member, server
from protocols.sums.oneshot.committee import Committee, make_committee, make_committee_key
from protocols.sums.oneshot.context import OneshotContext, OneshotPolicy
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan, encode, make_plan
from protocols.sums.oneshot.sealing import signed_statement
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Ticket, Upload, body_digest, survivors_digest

__all__ = ["CLIENTS", "POLICY", "VALUES", "Round", "counting_random", "small_plan"]

CLIENTS, VALUES = 6, 40
POLICY = OneshotPolicy()
SEED = bytes(32)
NO_LEDGER = member.Ledger()


def small_plan(clients: int = CLIENTS, values: int = VALUES, **parameters: Any) -> OneshotPlan:
    layout = VectorLayout(
        (Block("b", (Segment("values", values, 1.0), Segment("counts", 3, 1.0, integral=True))),), sum_class=TRAINED
    )
    return make_plan(parameters, layout, clients)


def counting_random(seed: int) -> Callable[[int], bytes]:
    """Return a source of bytes that is the same in every run."""
    return np.random.default_rng(seed).bytes


@dataclass
class Round:
    """All parties of one round with whole vectors; steps are methods, and messages are fields that tests may change."""

    plan: OneshotPlan
    number: int = 1
    step: int = 0
    model: bytes = bytes(32)
    clients: int = CLIENTS
    seed: int = 1
    policy: OneshotPolicy = POLICY
    committee: Committee = field(init=False)
    uploads: dict[str, Upload] = field(init=False, default_factory=dict)
    vectors: dict[str, NDArray[np.float64]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.random = counting_random(self.seed)
        people = counting_random(99)  # identities last; round keys do not
        self.members = [f"m{place}" for place in range(self.plan.committee)]
        self.names = [f"c{number}" for number in range(self.clients)]
        self.identities = {
            name: Ed25519PrivateKey.from_private_bytes(people(32)) for name in (*self.members, *self.names)
        }
        self.secrets: dict[str, X25519PrivateKey] = {}
        self.keys: dict[str, CommitteeKey] = {}
        for name in self.members:
            self.secrets[name], self.keys[name] = make_committee_key(
                self.identities[name], "t_1", self.number, name, random=self.random
            )
        self.context = OneshotContext("t_1", self.number, self.step, self.plan, self.model, self.clients)
        self.committee = make_committee(self.context, self.keys.values(), lambda _: True)
        data = np.random.default_rng(7)
        for name in self.names:
            values = data.uniform(-1, 1, self.plan.layout.length)
            values[-3:] = data.integers(0, 2, 3)
            self.vectors[name] = values

    def public_key(self, name: str) -> bytes:
        return self.identities[name].public_key().public_bytes_raw()

    def steps(self, name: str) -> NDArray[np.int64]:
        return encode(self.plan, whole_route(self.plan.layout), [self.vectors[name]])

    def contribute(self, *names: str) -> None:
        for name in names or self.names:
            self.uploads[name] = client.contribute(
                self.committee, name, self.identities[name], self.policy, self.steps(name), self.random
            )

    def statement(self, name: str) -> Statement:
        upload = self.uploads[name]
        return server.check_upload(
            self.committee,
            name,
            self.public_key(name),
            bytes(32),
            NO_CERTIFICATE,
            upload.ticket.encode(),
            body_digest(upload.contribution),
        )

    def statements(self, names: Sequence[str] | None = None) -> list[Statement]:
        return [self.statement(name) for name in names or self.uploads]

    def ready(self, name: str, policy: OneshotPolicy | None = None) -> member.Ready:
        return member.join(self.committee, name, self.identities[name], self.secrets[name], policy or self.policy)

    def inspect(self, name: str, names: Sequence[str] | None = None) -> member.Inspection:
        place = self.committee.place(name)
        chosen = list(names or self.uploads)
        shares = [self.uploads[other].ticket.sealed[place] for other in chosen]
        return member.inspect(self.ready(name), self.statements(chosen), shares, lambda _: True)

    def confirm(
        self,
        name: str,
        names: Sequence[str] | None = None,
        ledger: member.Ledger = NO_LEDGER,
        minimum: int = 3,
        policy: OneshotPolicy | None = None,
    ) -> tuple[member.Confirmed, member.Ledger]:
        return member.confirm(self.ready(name, policy), self.inspect(name, names), ledger, minimum, SEED)

    def summed(self, names: Sequence[str] | None = None, **how: Any) -> dict[str, NDArray[np.uint32]]:
        """Summed shares of all members for the set of `names`, as the server has checked them."""
        confirmed = {name: self.confirm(name, names, **how)[0] for name in self.members}
        signatures = {name: state.signature for name, state in confirmed.items()}
        digest = survivors_digest(self.statements(names))
        return {
            name: server.check_summed_share(self.committee, name, digest, member.sum_share(state, signatures))
            for name, state in confirmed.items()
        }

    def partial(self, names: Sequence[str] | None = None) -> bytes:
        route = whole_route(self.plan.layout)
        return ONESHOT.fold(self.plan, None, [(route, self.uploads[n].contribution) for n in names or self.uploads])

    def open(
        self, names: Sequence[str], shares: dict[str, NDArray[np.uint32]], partial: bytes | None = None
    ) -> NDArray[np.float64]:
        done = server.unmask(self.committee, self.partial(names) if partial is None else partial, len(names), shares)
        return ONESHOT.open(self.plan, done.aggregate, len(names), None)

    def truth(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The sum of the fixed-point encodings, which the opened sum must equal exactly."""
        total = sum(self.steps(name) for name in names)
        scales = np.concatenate(
            [np.full(span.stop - span.start, ring.scale) for block in self.plan.places for ring, span in block]
        )
        return np.asarray(total / scales)

    def tamper(self, name: str, contribution: bytes | None = None, sealed: dict[int, bytes] | None = None) -> None:
        """Replace parts of a client's upload, which the client signs: a client that cheats."""
        upload = self.uploads[name]
        shares = list(upload.ticket.sealed)
        for place, share in (sealed or {}).items():
            shares[place] = share
        body = upload.contribution if contribution is None else contribution
        statement = Statement(
            name,
            self.public_key(name),
            bytes(32),
            NO_CERTIFICATE,
            upload.ticket.ephemeral_key,
            body_digest(body),
            tuple(map(body_digest, shares)),
            b"",
        )
        signature = self.identities[name].sign(signed_statement(self.committee, statement))
        ticket = replace(upload.ticket, signature=signature, sealed=tuple(shares))
        self.uploads[name] = Upload(Ticket.decode(self.plan, ticket.encode()), body)
