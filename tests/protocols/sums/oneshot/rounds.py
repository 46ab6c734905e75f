"""A one-shot round step by step, for tests that change what one of the parties does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.layout import Segment, whole_route
from protocols.sums.oneshot import server
from protocols.sums.oneshot.client import sign_upload
from protocols.sums.oneshot.mechanism import ONESHOT, UnpackedSum
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan, OneshotPolicy, make_plan
from protocols.sums.oneshot.polynomials import Ring
from protocols.sums.oneshot.run import OneshotRun
from tests.protocols.sums.conformance import one_block

CLIENTS, VALUES = 6, 40
POLICY = OneshotPolicy()
SEED = bytes(32)


def small_plan(clients: int = CLIENTS, values: int = VALUES, **parameters: Any) -> OneshotPlan:
    layout = one_block(Segment("values", values, 1.0), Segment("counts", 3, 1.0, integral=True))
    return make_plan(parameters, layout, clients)


def counting_random(seed: int) -> Callable[[int], bytes]:
    """Return a source of bytes that is the same in every run."""
    return np.random.default_rng(seed).bytes


class Round(OneshotRun):
    """A round whose clients have random vectors, and whose randomness is the same in every run."""

    def __init__(
        self,
        plan: OneshotPlan,
        number: int = 1,
        step: int = 0,
        model: bytes = bytes(32),
        clients: int = CLIENTS,
        seed: int = 1,
        policy: OneshotPolicy = POLICY,
    ) -> None:
        self.plan, self.vectors = plan, {}
        people, data = counting_random(99), np.random.default_rng(7)  # identities last; round keys do not
        members = [f"m{place}" for place in range(plan.committee)]
        self.names = [f"c{number}" for number in range(clients)]
        identities = {name: Ed25519PrivateKey.from_private_bytes(people(32)) for name in (*members, *self.names)}
        for name in self.names:
            values = data.uniform(-1, 1, plan.layout.length)
            values[-3:] = data.integers(0, 2, 3)
            self.vectors[name] = values
        drawn = counting_random(seed)
        super().__init__(
            OneshotContext("t_1", number, step, plan, model, clients),
            members,
            identities,
            policy,
            self.steps,
            random=lambda label: (lambda _: SEED) if label.endswith("confirms") else drawn,
        )

    def public_key(self, name: str) -> bytes:
        return self.identities[name].public_key().public_bytes_raw()

    def steps(self, name: str) -> NDArray[np.int64]:
        return self.plan.encode(whole_route(self.plan.layout), [self.vectors[name]])

    def contribute(self, *names: str) -> Round:
        super().contribute(*(names or self.names))
        return self

    def points(self, shares: Mapping[str, NDArray[np.uint32]]) -> dict[int, NDArray[np.uint32]]:
        """The shares of the only sum, by Shamir point."""
        return {self.committee.place(name) + 1: share[0] for name, share in shares.items()}

    def summed(self, names: Sequence[str] | None = None, **how: Any) -> dict[str, NDArray[np.uint32]]:
        """Summed shares of all members for the set of `names`, as the server has checked them."""
        confirmed = {name: self.confirm(name, names, **how)[0] for name in self.members}
        return self.checked(self.sum_shares(confirmed, names), names)

    def open(
        self, names: Sequence[str], shares: dict[str, NDArray[np.uint32]], partial: bytes | None = None
    ) -> NDArray[np.float64]:
        done = server.unmask(self.committee, partial or self.partial(names), len(names), shares)
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
        shares = dict(enumerate(upload.ticket.sealed)) | (sealed or {})
        body = upload.contribution if contribution is None else contribution
        own = (self.committee, name, self.identities[name], upload.ticket.ephemeral_key)
        self.uploads[name] = sign_upload(*own, tuple(shares.values()), body)


def unpacked_sum(ring: Ring, residues: NDArray[np.uint32], values: int, contributions: int) -> NDArray[np.int64]:
    """The sums of the steps, int64 (values,), of an unmasked sum that is unpacked at once."""
    sums = UnpackedSum(ring, values, np.int64)
    sums.add(residues)
    return sums.finish(contributions)
