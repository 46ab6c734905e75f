"""Parameters of one-shot sums, and the constants of the ring-LWE masks.

A client's mask is a ring-LWE sample A_j * s + T * e_j over R_q = Z_q[X] / (X^N + 1). Secret and errors are discrete
Gaussians of standard deviation `SIGMA` = 2 * 3.2. docs/oneshot.md has the security argument and the tables.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "DEGREES",
    "LOG_Q_CAPS",
    "MIN_CLIENTS",
    "MOST_CLIENTS",
    "SECURITY_BITS",
    "SIGMA",
    "OneshotParameters",
]

SIGMA: Final = 6.4
"""Standard deviation of every coefficient of s and e_j. Given the sums over two or more honest clients, each sample is
as hard as plain ring-LWE of standard deviation 3.2: Hint-MLWE, Kim, Lee, Seo and Song (CRYPTO 2023, eprint 2023/623),
with one hint whose challenge is 1: 1 / 3.2^2 = 2 * (1 / 6.4^2 + 1 / 6.4^2)."""

SECURITY_BITS: Final = 128
"""Classical security of the ring-LWE samples by the tables, and of X25519 and AES-128 or better."""

LOG_Q_CAPS: Final[dict[int, int]] = {2048: 53, 4096: 106, 8192: 214}
"""N -> most bits of q for 128 bits of classical security with ternary secrets and errors of deviation 3.2: "Security
Guidelines for Implementing Homomorphic Encryption" (Bossuat et al., eprint 2024/463), by the lattice estimator. Secrets
as wide as the errors allow two bits more. The homomorphic encryption standard (Albrecht et al., 2018, eprint 2019/939,
table 1) allows 54, 109 and 218. With primes of 32 bits, q has at most 32, 96 and 192 bits."""

DEGREES: Final = tuple(sorted(LOG_Q_CAPS))

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
