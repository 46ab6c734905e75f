"""A client's and a committee member's own requirements for one-shot rounds, independent of the server."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.errors import ParameterError, RefusalError
from protocols.sums.oneshot.parameters import OneshotParameters

__all__ = ["OneshotPolicy"]


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
