"""Rounds whose sum must come out exactly, whoever makes it: the same contributions, and what one fold of all gives."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from protocols.crypto.keys import Keyring
from protocols.layout import whole_route
from tests.protocols.sums.paillier.cases import keyring_of
from tests.support.api import Api, TestMember, checked

COHORT = 18
"""Two workers split a fold of so many; of fewer than sixteen they do not."""
PARAMETERS: dict[str, dict[str, Any]] = {"plain": {}, "ckks": {}, "paillier": {"key_bits": 2048}}
"""Mechanisms whose rounds take one message a client, and the parameters they are tried with."""


class KeyedRound:
    """A round with keys where the mechanism has some, ready to be contributed to."""

    def __init__(self, api: Api, mechanism_name: str, name: str = "sums", cohort: int = COHORT) -> None:
        parameters = PARAMETERS[mechanism_name]
        small = {"items": 12, "dim": 2, "clip": 0.5, "cohort": cohort}
        self.task = api.create_task(name, mechanism_name=mechanism_name, mechanism_parameters=parameters, **small)
        self.keyring: Keyring | None = None
        self.members: list[TestMember] = []
        if self.task.mechanism.needs_keyring:
            self.members = self.task.enrol(1, role="holder")
            self.keyring = keyring_of(self.task.mechanism, self.task.plan)
        self.members += self.task.enrol(cohort - len(self.members))
        if self.keyring is not None:
            if self.task.mechanism.names_public_key:
                assert self.members[0].deliver("public-key", self.keyring.public_key).is_success
            for member in self.members:
                assert self.members[0].deliver(f"keyring/{member.client_id}", os.urandom(64)).is_success
        self.bodies = [self._body(seed) for seed in range(cohort)]
        self.task.wait_round(1, "collecting")

    def _body(self, seed: int) -> bytes:
        plan, rng = self.task.plan, np.random.default_rng(seed)
        vectors = [
            np.where(block.integral_mask(), 1.0, rng.uniform(-1, 1, block.length) * block.bounds())
            for block in plan.layout.blocks
        ]
        return self.task.mechanism.seal(plan, whole_route(plan.layout), vectors, self.keyring)

    def contribute(self, first: int = 0, last: int | None = None) -> None:
        for member, body in list(zip(self.members, self.bodies, strict=True))[first:last]:
            checked(member.put(1, body), 201)

    def expected(self) -> bytes:
        plan, route = self.task.plan, whole_route(self.task.plan.layout)
        partial = self.task.mechanism.fold(plan, None, [(route, body) for body in self.bodies])
        return self.task.mechanism.release(plan, partial)

    def assert_exact(self, seconds: float = 120.0) -> None:
        done = self.task.wait_round(1, "complete", seconds=seconds)
        assert done["survivors"] == done["folded"] == len(self.bodies)
        assert self.task.aggregate(1) == self.expected()
