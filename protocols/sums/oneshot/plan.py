"""The plan of a one-shot sum: its parameters, what a client requires of them, lengths, and what a round is bound to.

A client's mask is a ring-LWE sample A_j * s + T * e_j over R_q = Z_q[X] / (X^N + 1), in the ring that
`protocols.sums.oneshot.polynomials` chooses; docs/oneshot.md has the security argument. A contribution is always the
whole aggregate vector, whatever its route: blocks outside the route are masked zeros, and a block with two targets
appears twice, as in masked sums (docs/adr/0004-blocks-and-routes.md).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.keys import DIGEST_BYTES, KEY_BYTES, SIGNATURE_BYTES, digest
from protocols.crypto.sealing import SEALED_OVERHEAD, SEALING_KEY_BYTES
from protocols.errors import ParameterError, RefusalError, to_accept
from protocols.layout import Route, VectorLayout
from protocols.parameter_text import validated
from protocols.sums.base import COUNT_BYTES, Blocks
from protocols.sums.groups import MIN_CLIENTS, GroupedParameters, require_groups, trust_of_groups
from protocols.sums.oneshot.polynomials import Ring, choose_ring
from protocols.sums.ring import FixedPoint, RingPlan, encode_vector, require_fit
from protocols.sums.ring_security import SECURITY_BITS
from protocols.sums.wire import refuse_chosen

MOST_CLIENTS: Final = 1_000_000
"""Most contributions of a sum. Sums of secrets stay far below half of a 32-bit prime, which carries their shares."""


class OneshotParameters(GroupedParameters):
    """A task's parameters for one-shot sums; the ring follows from them, the layout and the largest sum."""

    free_for_clients: ClassVar[bool] = True
    bits: int = Field(
        default=28,
        ge=16,
        le=52,
        description="Bits of the sum of one value. Fewer bits make smaller uploads and coarser sums.",
    )
    committee: int = Field(default=5, ge=3, le=16, description="Members of the committee.")
    corrupt: int = Field(
        default=1, ge=0, le=15, description="Most members of the committee that collude with the server."
    )

    @property
    def threshold(self) -> int:
        """t: confirmations and summed shares that open a sum, the smallest number with 2 t > committee + corrupt.

        Two sets of t members then have an honest member in common, so that a lying server cannot have two sets of
        survivors signed (as for masked sums: Bell et al., CCS 2020).
        """
        return (self.committee + self.corrupt) // 2 + 1

    @property
    def collusion_bound(self) -> int:
        """2 t - committee - 1: most members that may collude with a lying server, `corrupt` or one more.

        With x colluding members, which sign every set, and the honest members divided between two sets, both sets have
        t signatures if 2 (t - x) <= committee - x, that is from x = 2 t - committee on: the difference of the two sums
        is a vector. A server that follows the protocol needs t colluding members. Where the committee changes between
        sums over the same data, at most `corrupt` may collude.
        """
        return 2 * self.threshold - self.committee - 1


@dataclass(frozen=True)
class OneshotPolicy:
    """Minimum requirements; a party refuses a round that does not meet them.

    Raises `ParameterError` for a min_cohort below 2.
    """

    min_cohort: int = 3
    """Fewest clients asked, and fewest survivors; with groups for each."""
    min_committee: int = 3
    """Fewest members of the committee."""
    min_corrupt_members: int = 1
    """Fewest corrupt members that the task withstands."""
    min_ring_bits: int = 16
    """Fewest bits of a sum."""

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise ParameterError("min_cohort must be at least 2: one client hides nothing")

    def check_parameters(self, parameters: OneshotParameters) -> None:
        """Raise `RefusalError` unless the policy accepts the task's committee and bits."""
        for name, value, least, of_policy in (
            ("committee", parameters.committee, self.min_committee, "min_committee"),
            ("corrupt", parameters.corrupt, self.min_corrupt_members, "min_corrupt_members"),
            ("bits", parameters.bits, self.min_ring_bits, "min_ring_bits"),
        ):
            if value < least:
                raise RefusalError(
                    f"the task's {name} is {value}; this policy requires at least {least}",
                    remedy=to_accept(f"{of_policy}=..."),
                )

    def check_cohort(self, clients: int, what: str) -> None:
        """Raise `RefusalError` for fewer than `min_cohort` clients."""
        if clients < self.min_cohort:
            raise RefusalError(f"{what} {clients} clients; this policy requires at least {self.min_cohort}")


KEY_PREFIX: Final = struct.Struct("<H")
"""The length of a key of the committee, before it where all are handed out."""
KEY_LENGTHS: Final = (KEY_BYTES, KEY_BYTES, CERTIFICATE_BYTES, SEALING_KEY_BYTES, SIGNATURE_BYTES)
"""Lengths of its fields, after the id."""


def key_bytes(id_bytes: int) -> int:
    """Return the length of an encoded committee key of a member whose id has so many bytes."""
    return 1 + id_bytes + sum(KEY_LENGTHS)


@dataclass(frozen=True)
class OneshotPlan(RingPlan):
    """The plan of a one-shot sum; all parties compute the same from the task's parameters."""

    parameters: OneshotParameters
    ring: Ring
    mechanism: ClassVar[str] = "oneshot"

    @property
    def bits(self) -> int:
        return self.parameters.bits

    @property
    def committee(self) -> int:
        """c: members of the committee."""
        return self.parameters.committee

    @property
    def threshold(self) -> int:
        """t: confirmations and summed shares that open the sum."""
        return self.parameters.threshold

    @property
    def coefficients(self) -> int:
        """m: coefficients of a contribution, modulo each prime."""
        return self.ring.coefficients(self.layout.length)

    @property
    def polynomials(self) -> int:
        """P: public polynomials of a round."""
        return self.ring.polynomials(self.layout.length)

    def answers_needed(self, contributions: int) -> int:
        """Return t: so many members' summed shares open the sum."""
        return self.threshold

    def check_cohort(self, clients: int) -> None:
        if not self.parameters.works(clients, self.groups):
            each = "round" if self.groups == 1 else f"group of {self.groups}"
            raise ParameterError(f"a one-shot {each} needs at least {MIN_CLIENTS} clients")

    def trust(self, cohort: int) -> list[str]:
        c, t, own = self.committee, self.threshold, self.parameters
        most = own.collusion_bound
        return [
            f"The server is not trusted about survivors, keys and the model, as long as at most {most} of the {c} "
            f"members of the committee collude with it, or {own.corrupt} where members are replaced: different parties "
            f"should run them. {most + 1} members together with a server that lies about survivors can open every "
            "contribution. Sums are in the clear once they are released.",
            f"If more than {c - t} members of the committee are absent, no round completes, and the task waits for "
            "them. A client that lies about its mask makes a round fail. A member can take clients out of the task by "
            "claiming that their shares do not open.",
            *trust_of_groups(self.groups, self.tau, self.layout),
        ]

    @property
    def body_bytes(self) -> int:
        """Length of a contribution in bytes, along any route: K planes of m residues of 4 bytes."""
        return self.ring.body_bytes(self.layout.length)

    @property
    def share_bytes(self) -> int:
        """Length of one share of a secret in bytes: N residues of 4 bytes."""
        return 4 * self.ring.degree

    @property
    def sealed_bytes(self) -> int:
        """Length of one sealed share in bytes."""
        return self.share_bytes + SEALED_OVERHEAD

    @property
    def ticket_bytes(self) -> int:
        """Length of what a client sends besides its contribution: key, signature and sealed shares."""
        return KEY_BYTES + SIGNATURE_BYTES + self.committee * self.sealed_bytes

    def other_bytes(self, clients: int, id_bytes: int) -> tuple[int, int]:
        keys = self.committee * (KEY_PREFIX.size + key_bytes(id_bytes))
        return self.ticket_bytes, -(-4 * keys // 3)  # in base64url

    @property
    def summed_share_bytes(self) -> int:
        """Length of a member's summed shares, one for each group, with its signature of all."""
        return self.groups * self.share_bytes + SIGNATURE_BYTES

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes: the count of contributions, then residues of 4 bytes; of each group."""
        return self.groups * (COUNT_BYTES + self.body_bytes)

    def contribution_bytes(self, route: Route) -> int:
        self.layout.check_route(route)
        return self.body_bytes

    def encode(self, route: Route, blocks: Blocks) -> NDArray[np.int64]:
        """Return the whole steps of a contribution, int64 (layout.length,); `SumPlan.encode` has the rest."""
        elements = np.zeros(self.layout.length, np.uint64)
        # In a ring of 64 bits, with the same scales: values share a coefficient, so that what one would lose modulo
        # 2^bits would appear in the next.
        wide = tuple(
            tuple((FixedPoint(64, ring.bound, ring.scale), span) for ring, span in block) for block in self.places
        )
        encode_vector(self.layout, wide, route, blocks, elements)
        return elements.view(np.int64)

    def describe(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            **self.parameters.model_dump(),
            "threshold": self.threshold,
            "security_bits": SECURITY_BITS,
            "degree": self.ring.degree,
            "primes": list(self.ring.primes),
            "log2_q": self.ring.modulus.bit_length(),
            "values_per_coefficient": self.ring.per,
            "max_contributions": self.max_contributions,
            "bytes_per_value": self.body_bytes / self.layout.length,
            "ticket_bytes": self.ticket_bytes,
            "upload_bytes": self.ticket_bytes + self.body_bytes,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
            "segment_scales": self.segment_scales,
            "segment_errors": self.segment_errors,
        }


def make_plan(parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> OneshotPlan:
    """Return the plan of a task, with the ring whose upload is smallest.

    Raises `ParameterError` for invalid parameters, `BudgetError` if the sums do not fit, with what would fit.
    """
    checked = validated("oneshot parameters", OneshotParameters, parameters)
    if checked.corrupt >= checked.committee:
        raise ParameterError(f"of a committee of {checked.committee} at most {checked.committee - 1} may be corrupt")
    refuse_chosen(layout, "oneshot")
    if checked.groups > 1:
        require_groups(layout, max_contributions, checked.groups)
    most = max_contributions // (checked.groups if layout.is_split else 1)
    widest: int = OneshotParameters.model_fields["bits"].metadata[1].le
    require_fit(layout, most, range(checked.bits, widest + 1), range(MIN_CLIENTS, MOST_CLIENTS + 1))
    ring = choose_ring(checked.bits, layout.length, most, checked.committee)
    return OneshotPlan(checked, layout, max_contributions, ring)


@dataclass(frozen=True)
class OneshotContext:
    """One round of one task, as one party sees it.

    Raises `ParameterError` for values out of range.
    """

    task_id: str
    round_number: int
    step: int
    """Which sum of the task the round computes; sums of one step are over the same data."""
    plan: OneshotPlan
    model_digest: bytes
    """Digest of the task's parameters and the broadcast, which THIS party computed itself and did not take from the
    wire (`protocols.task_terms.broadcast_digest`): a client with another model masks with other polynomials, and its
    shares do not open."""
    cohort: int
    """Number of clients asked."""

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
