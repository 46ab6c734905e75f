"""Parameters of masked sums, and what a client requires of them and of the neighbourhood that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from protocols.errors import ParameterError, RefusalError, to_accept
from protocols.sums.groups import GroupedParameters
from protocols.sums.masked import wire
from protocols.sums.masked.neighbourhood import Mode, Neighbourhood, choose_neighbourhood
from protocols.sums.wire import packed_bytes

MOST_SIGNERS: Final = 190_000
"""Clients of a round in which all sign: their signatures, base64url in the view of the round, have 16.2 MB, and clients
accept views of 16 MiB."""
FEWEST_BITS: Final = 16


class MaskedParameters(GroupedParameters):
    """A task's parameters for masked sums; neighbours and threshold follow from them and a round's cohort."""

    left_out: ClassVar[Mapping[str, Any]] = {**GroupedParameters.left_out, "spare": 0}
    bits: int = Field(
        default=32,
        ge=16,
        le=64,
        description="Bits of a ring element, and of a value on the wire. 16, 32 and 64 are summed without unpacking.",
    )
    mode: Mode = Field(
        default="semi-malicious",
        description="Server that the sum withstands. curious: it follows the protocol and reads everything. "
        "semi-malicious: it may also lie about survivors, keys and the model.",
    )
    corrupt: float = Field(
        default=0.05,
        ge=0.0,
        lt=1.0,
        description="Largest share of a cohort that colludes with the server, but at least one client. 0: nobody does.",
    )
    dropout: float = Field(
        default=0.1, ge=0.0, lt=1.0, description="Largest share of a cohort that drops out during a round."
    )
    sigma: int = Field(
        default=64,
        ge=20,
        le=80,
        description="A round reveals a client's vector with probability at most 2^-sigma, for each roster that the "
        "server tries.",
    )
    eta: int = Field(
        default=30,
        ge=10,
        le=80,
        description="A round fails with probability at most 2^-eta, if no more clients than `dropout` drop out.",
    )
    spare: int = Field(
        default=0,
        ge=0,
        le=16,
        description="Bits of a ring element that sums leave free: garbage in one value looks possible with "
        "probability 2^-spare.",
    )

    @model_validator(mode="after")
    def _check_spare(self) -> Self:
        if self.bits - self.spare < FEWEST_BITS:
            raise ValueError(f"{self.spare} spare bits leave fewer than {FEWEST_BITS} of {self.bits}: choose fewer")
        return self

    def require_signers(self, clients: int) -> None:
        """Raise `ParameterError` if no client accepts the signatures of so many clients."""
        if self.mode == "semi-malicious" and clients > MOST_SIGNERS:
            raise ParameterError(
                f"each client downloads the signatures of all, and accepts those of {MOST_SIGNERS:,} at most: choose a "
                "smaller cohort_size, or one-shot sums"
            )

    def works(self, clients: int, groups: int) -> bool:
        try:
            self.require_signers(clients)
            choose_neighbourhood(clients, self.corrupt, self.dropout, self.mode, self.sigma, self.eta, groups)
        except ParameterError:
            return False
        return True


@dataclass(frozen=True)
class ClientPolicy:
    """A client's minimum requirements; it refuses a round that does not meet them.

    Raises `ParameterError` if min_cohort, min_neighbours or min_threshold is below 2.
    """

    min_cohort: int = 3
    """Fewest members of the roster, and fewest survivors: a sum of fewer reveals too much about each."""
    min_neighbours: int = 2
    """Fewest neighbours."""
    min_threshold: int = 2
    """Smallest number of shares that reconstruct a secret."""
    min_ring_bits: int = 16
    """Smallest ring, by the task's `bits`. A narrow one (`MaskedPlan.bits`) is not compared: its sums are of counts,
    which are exact in it, and its masks are as uniform as in any other."""
    masked_modes: frozenset[Mode] = field(default_factory=lambda: frozenset[Mode]({"semi-malicious"}))
    """Accepted modes; `curious`, which trusts the server to follow the protocol, must be added explicitly."""
    min_corrupt: float = 0.0
    min_sigma: int = 64
    """Smallest `corrupt` and `sigma` of the task."""

    def __post_init__(self) -> None:
        if min(self.min_cohort, self.min_neighbours, self.min_threshold) < 2:
            raise ParameterError(
                "min_cohort, min_neighbours and min_threshold must be at least 2: one client hides nothing"
            )

    def check_parameters(self, parameters: MaskedParameters) -> None:
        """Raise `RefusalError` unless the policy accepts the task's ring, mode, `corrupt` and `sigma`."""
        mode, corrupt, sigma = parameters.mode, parameters.corrupt, parameters.sigma
        if mode not in self.masked_modes:
            raise RefusalError(
                f"the task's mode is {mode!r}; this client's policy allows {', '.join(self.masked_modes)}",
                remedy=to_accept("masked_modes=...", "--allow-curious"),
            )
        revealed = f"the task's sigma is {sigma}: a round reveals a vector with probability up to 2^-{sigma}"
        tolerated = f"the task tolerates a corrupt share of {corrupt:g} of the cohort"
        for value, least, what, name in (
            (parameters.bits, self.min_ring_bits, f"the ring has {parameters.bits} bits", "min_ring_bits"),
            (corrupt, self.min_corrupt, tolerated, "min_corrupt"),
            (sigma, self.min_sigma, revealed, "min_sigma"),
        ):
            if value < least:
                raise RefusalError(
                    f"{what}; this client's policy requires at least {least:g}", remedy=to_accept(f"{name}=...")
                )

    def check_neighbourhood(self, neighbourhood: Neighbourhood) -> None:
        """Raise `RefusalError` if there are too few neighbours or the threshold is too low."""
        k, t = neighbourhood.degree, neighbourhood.threshold
        if k < self.min_neighbours or t < self.min_threshold:
            raise RefusalError(
                f"a client has {k} neighbours, {t} of which open its secrets; this client's policy requires at least "
                f"{self.min_neighbours} and {self.min_threshold}",
                remedy=to_accept("min_neighbours=..., min_threshold=..."),
            )

    def check_cohort(self, clients: int, what: str) -> None:
        """Raise `RefusalError` for fewer than `min_cohort` clients."""
        if clients < self.min_cohort:
            raise RefusalError(f"{what} {clients} clients; this client requires at least {self.min_cohort}")


def upload_bytes(neighbourhood: Neighbourhood, elements: int, bits: int) -> dict[str, int]:
    """Return the bytes that a client sends, by stage, for a vector of `elements` elements of a ring of `bits` bits.

    "share" is that of a client with as many neighbours after it in the roster as before.
    """
    degree = neighbourhood.degree
    return {
        "advertise": wire.ADVERTISEMENT_BYTES,
        "share": wire.share_bytes(degree, (degree + 1) // 2),
        "contribute": packed_bytes(elements, bits),
        "confirm": wire.CONFIRMATION_BYTES if neighbourhood.mode == "semi-malicious" else 0,
        "unmask": wire.reply_bytes(degree),
    }
