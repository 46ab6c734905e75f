"""Parameters of one-shot sums, the constants of the ring-LWE masks, and what clients and members require of a task.

A client's mask is a ring-LWE sample A_j * s + T * e_j over R_q = Z_q[X] / (X^N + 1). Secret and errors are discrete
Gaussians of standard deviation `SIGMA` = 2 * 3.2. docs/oneshot.md has the security argument; the moduli are bounded by
`protocols.sums.ring_security`, of which the column for ternary secrets, the smaller one, is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from protocols.errors import ParameterError, RefusalError

SIGMA: Final = 6.4
"""Standard deviation of every coefficient of s and e_j. Given the sums over two or more honest clients, each sample is
as hard as plain ring-LWE of standard deviation 3.2: Hint-MLWE, Kim, Lee, Seo and Song (CRYPTO 2023, eprint 2023/623),
with one hint whose challenge is 1: 1 / 3.2^2 = 2 * (1 / 6.4^2 + 1 / 6.4^2). The theorem needs a smoothed lattice:

    sqrt(2 pi) * 3.2 >= sqrt(2) * eta(Z^N),   eta(Z^N) <= sqrt(ln(2 N (1 + 1/epsilon)) / pi)

for each polynomial (a hint with challenge 1 is about each by itself), and loses 2 epsilon for each. With epsilon =
2^-128, 3.2 exceeds what is needed by 2.1 % at N = 2048, 1.7 % at 4096 and 1.3 % at 8192: no `SIGMA` that is smaller by
more than this has the reduction."""

MIN_CLIENTS: Final = 3
"""Fewest contributions: of two, each client learns the other's vector from the sum."""

MOST_CLIENTS: Final = 1_000_000
"""Most contributions. Sums of secrets then stay far below half of a 32-bit prime, which carries their shares."""


class OneshotParameters(BaseModel):
    """A task's parameters for one-shot sums; the ring follows from them, the layout and the cohort."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
