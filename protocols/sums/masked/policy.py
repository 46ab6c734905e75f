"""A client's own requirements for masked rounds, independent of the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.errors import ParameterError, RefusalError
from protocols.sums.masked.parameters import MaskedParameters, Mode, Neighbourhood

__all__ = ["ClientPolicy"]


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
