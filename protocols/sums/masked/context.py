"""What a masked round is bound to, and what a client requires of it.

`RoundContext`: the public facts of a round, to which all its keys, masks and signatures are bound. `ClientPolicy`: a
client's own requirements, independent of the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from protocols.crypto.domain import SEED_BYTES, digest
from protocols.errors import ParameterError, RefusalError
from protocols.sums.masked.parameters import MIN_CLIENTS, MaskedParameters, Mode, Neighbourhood
from protocols.sums.masked.plan import MaskedPlan

__all__ = ["ClientPolicy", "DIGEST_BYTES", "RoundContext", "model_digest"]


@dataclass(frozen=True)
class ClientPolicy:
    """A client's minimum requirements; it refuses a round that does not meet them.

    min_cohort: fewest members of the roster, and fewest survivors: a sum of fewer reveals too much about each.
    min_degree: fewest neighbours. min_threshold: smallest number of shares that reconstruct a secret. min_bits:
    smallest ring. modes: accepted modes; `curious`, which trusts the server to follow the protocol, must be added
    explicitly. min_corrupt, min_sigma: smallest `corrupt` and `sigma` of the task. Raises `ParameterError` if
    min_cohort, min_degree or min_threshold is below 2.
    """

    min_cohort: int = 3
    min_degree: int = 2
    min_threshold: int = 2
    min_bits: int = 16
    modes: frozenset[Mode] = field(default_factory=lambda: frozenset[Mode]({"semi-malicious"}))
    min_corrupt: float = 0.0
    min_sigma: int = 64

    def __post_init__(self) -> None:
        if min(self.min_cohort, self.min_degree, self.min_threshold) < 2:
            raise ParameterError(
                "min_cohort, min_degree and min_threshold must be at least 2: one client hides nothing"
            )

    def check_parameters(self, parameters: MaskedParameters) -> None:
        """Raise `RefusalError` unless the policy accepts the task's ring, mode, `corrupt` and `sigma`."""
        bits, mode, corrupt, sigma = parameters.bits, parameters.mode, parameters.corrupt, parameters.sigma
        if mode not in self.modes:
            raise RefusalError(f"the task's mode is {mode!r}; this client's policy allows {', '.join(self.modes)}")
        if bits < self.min_bits:
            raise RefusalError(f"the ring has {bits} bits; this client's policy requires at least {self.min_bits}")
        if corrupt < self.min_corrupt:
            raise RefusalError(
                f"the task tolerates a corrupt share of {corrupt:g} of the cohort; this client's policy requires at "
                f"least {self.min_corrupt:g}"
            )
        if sigma < self.min_sigma:
            raise RefusalError(
                f"the task's sigma is {sigma}: a round reveals a vector with probability up to 2^-{sigma}; this "
                f"client's policy requires at least {self.min_sigma}"
            )

    def check_neighbourhood(self, neighbourhood: Neighbourhood) -> None:
        """Raise `RefusalError` if there are too few neighbours or the threshold is too low."""
        k, t = neighbourhood.degree, neighbourhood.threshold
        if k < self.min_degree or t < self.min_threshold:
            raise RefusalError(
                f"a client has {k} neighbours, {t} of which open its secrets; this client's policy requires at least "
                f"{self.min_degree} and {self.min_threshold}"
            )

    def check_cohort(self, clients: int, what: str) -> None:
        """Raise `RefusalError` for fewer than `min_cohort` clients."""
        if clients < self.min_cohort:
            raise RefusalError(f"{what} {clients} clients; this client requires at least {self.min_cohort}")


DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class RoundContext:
    """One round of one task, as one party sees it.

    round_seed: 32 public bytes that order the neighbour graph. model_digest: digest of the task's parameters and the
    broadcast (`model_digest`), which THIS party computed itself and did not take from the wire: a client with another
    model makes keys and masks that do not match any other client's. cohort: number of clients asked, the largest size
    of a roster. Raises `ParameterError` for values outside their ranges.
    """

    task_id: str
    round_number: int
    round_seed: bytes
    plan: MaskedPlan
    model_digest: bytes
    cohort: int

    def __post_init__(self) -> None:
        if len(self.round_seed) != SEED_BYTES or len(self.model_digest) != DIGEST_BYTES:
            raise ParameterError("a round seed and a model digest have 32 bytes each")
        if self.round_number < 1 or not MIN_CLIENTS <= self.cohort <= self.plan.max_contributions:
            raise ParameterError(
                f"rounds are counted from 1 and ask {MIN_CLIENTS} to {self.plan.max_contributions} clients, "
                f"got round {self.round_number} with {self.cohort}"
            )

    def binding(self) -> bytes:
        """Return 32 bytes that are equal for two parties only if all fields are; part of every signature and mask."""
        return self._binding

    @cached_property
    def _binding(self) -> bytes:
        return digest(
            "masked round",
            self.task_id,
            self.round_number,
            self.round_seed,
            self.model_digest,
            self.cohort,
            self.plan.bits,
            self.plan.layout.length,
        )


def model_digest(parameters: bytes, broadcast: bytes) -> bytes:
    """Return the digest (32 bytes) of a task's parameters, in a canonical form, and of a round's broadcast."""
    return digest("masked model", parameters, broadcast)
