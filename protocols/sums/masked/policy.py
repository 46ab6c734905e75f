"""What a client agrees to in masked sums, whatever the server says."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.errors import ParameterError, RefusalError
from protocols.sums.masked.parameters import Mode, Neighbourhood

__all__ = ["ClientPolicy"]


@dataclass(frozen=True)
class ClientPolicy:
    """A client's own floor: a round below it is refused.

    min_cohort: members of the roster, and of the survivors: a sum of fewer says too much about each of them.
    min_degree, min_threshold: neighbours, and how many of them open a secret. min_bits: the ring. modes: what the
    server is trusted with; `curious` (it follows the protocol) must be allowed by name.
    """

    min_cohort: int = 3
    min_degree: int = 2
    min_threshold: int = 2
    min_bits: int = 16
    modes: frozenset[Mode] = field(default_factory=lambda: frozenset[Mode]({"semi-malicious"}))

    def __post_init__(self) -> None:
        if min(self.min_cohort, self.min_degree, self.min_threshold) < 2:
            raise ParameterError(
                "min_cohort, min_degree and min_threshold must be at least 2: one client hides nothing"
            )

    def check_ring(self, bits: int, mode: Mode) -> None:
        """Raise `RefusalError` unless the ring and the mode are good enough."""
        if mode not in self.modes:
            raise RefusalError(f"the task's mode is {mode!r}; this client's policy allows {', '.join(self.modes)}")
        if bits < self.min_bits:
            raise RefusalError(f"the ring has {bits} bits; this client's policy wants at least {self.min_bits}")

    def check_neighbourhood(self, neighbourhood: Neighbourhood) -> None:
        """Raise `RefusalError` unless enough neighbours hold shares, and enough of them are needed."""
        k, t = neighbourhood.degree, neighbourhood.threshold
        if k < self.min_degree or t < self.min_threshold:
            raise RefusalError(
                f"a client has {k} neighbours and {t} open its secrets; this client's policy wants at least "
                f"{self.min_degree} and {self.min_threshold}"
            )

    def check_cohort(self, clients: int, what: str) -> None:
        """Raise `RefusalError` for fewer than `min_cohort` clients."""
        if clients < self.min_cohort:
            raise RefusalError(f"{what}: {clients} clients; this client's policy wants at least {self.min_cohort}")
