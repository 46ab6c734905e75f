"""What a one-shot round is bound to, and what clients and members require of it.

`OneshotContext`: the public facts of a round, to which its polynomials, shares and signatures are bound.
`OneshotPolicy`: a client's and a committee member's own requirements, independent of the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protocols.crypto.domain import digest
from protocols.errors import ParameterError, RefusalError
from protocols.sums.oneshot.parameters import MIN_CLIENTS, OneshotParameters
from protocols.sums.oneshot.plan import OneshotPlan

__all__ = ["OneshotPolicy", "DIGEST_BYTES", "OneshotContext"]


@dataclass(frozen=True)
class OneshotPolicy:
    """Minimum requirements; a party refuses a round that does not meet them.

    min_cohort: fewest clients asked, and fewest survivors. min_committee: fewest members of the committee. min_corrupt:
    fewest corrupt members that the task withstands. min_bits: fewest bits of a sum. Raises `ParameterError` for a
    min_cohort below 2.
    """

    min_cohort: int = 3
    min_committee: int = 3
    min_corrupt: int = 1
    min_bits: int = 16

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise ParameterError("min_cohort must be at least 2: one client hides nothing")

    def check_parameters(self, parameters: OneshotParameters) -> None:
        """Raise `RefusalError` unless the policy accepts the task's committee and bits."""
        for name, value, least in (
            ("committee", parameters.committee, self.min_committee),
            ("corrupt", parameters.corrupt, self.min_corrupt),
            ("bits", parameters.bits, self.min_bits),
        ):
            if value < least:
                raise RefusalError(f"the task's {name} is {value}; this policy requires at least {least}")

    def check_cohort(self, clients: int, what: str) -> None:
        """Raise `RefusalError` for fewer than `min_cohort` clients."""
        if clients < self.min_cohort:
            raise RefusalError(f"{what} {clients} clients; this policy requires at least {self.min_cohort}")


DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class OneshotContext:
    """One round of one task, as one party sees it.

    step: which sum of the task the round computes; sums of one step are over the same data. model_digest: digest of
    the task's parameters and the broadcast, which THIS party computed itself and did not take from the wire
    (`protocols.task_binding.broadcast_digest`): a client with another model masks with other polynomials,
    and its shares do not open. cohort: number of clients asked. Raises `ParameterError` for values out of range.
    """

    task_id: str
    round_number: int
    step: int
    plan: OneshotPlan
    model_digest: bytes
    cohort: int

    def __post_init__(self) -> None:
        if len(self.model_digest) != DIGEST_BYTES:
            raise ParameterError(f"a model digest has {DIGEST_BYTES} bytes, got {len(self.model_digest)}")
        if self.round_number < 1 or self.step < 0 or not MIN_CLIENTS <= self.cohort <= self.plan.max_contributions:
            raise ParameterError(
                f"rounds are counted from 1, steps from 0, and a round asks {MIN_CLIENTS} to "
                f"{self.plan.max_contributions} clients, got round {self.round_number}, step {self.step} and "
                f"{self.cohort} clients"
            )

    @cached_property
    def binding(self) -> bytes:
        """32 bytes that are equal for two parties only if all fields are; part of every signature, key and seed."""
        plan, ring = self.plan, self.plan.ring
        return digest(
            "oneshot round",
            self.task_id,
            self.round_number,
            self.step,
            self.model_digest,
            self.cohort,
            plan.layout.length,
            plan.bits,
            plan.parameters.committee,
            plan.parameters.corrupt,
            ring.degree,
            len(ring.primes),
            ring.per,
        )
