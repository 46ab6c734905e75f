"""What PriviRec's two variants are told, and what they may reveal only when told to."""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from protocols.recipes.base import ItemParameters

__all__ = ["MAX_GRAM_ITEMS", "PriviRecKParameters", "PriviRecParameters"]

MAX_GRAM_ITEMS: Final = 10_000
"""50 million pairs, 200 MB a contribution at 32 bits."""

GRAM_REVEALS: Final = (
    "the item-item matrix in the clear is not anonymous: on Gowalla 77.9 % of its non-zero pairs (Yelp2018: 68.5 %) "
    "come from exactly one user, and 99.4 % of the users (99.7 %) own at least one such pair, whose value 1/d_u links "
    "all pairs of that user"
)


class PriviRecKParameters(ItemParameters):
    """How many vectors, how they are iterated, and how rows are normalised."""

    components: int = Field(default=256, ge=1, le=4096, description="Singular vectors k that filters get to use.")
    iterations: int = Field(default=5, ge=1, le=100, description="Power iterations, one sum each, at most.")
    oversampling: int = Field(
        default=0, ge=0, le=1024, description="Vectors iterated beyond `components`; needs rayleigh_ritz."
    )
    rayleigh_ritz: bool = Field(
        default=False, description="Whether the last sum gives exact values and vectors within the subspace it was of."
    )
    tolerance: float | None = Field(
        default=None, gt=0, lt=1, description="End early once the singular values change by less, relatively."
    )
    user_exponent: float = Field(
        default=0.5, ge=0.5, le=1, description="a of D_u^-a R D_i^(a-1): 0.5 for GF-CF and BSPM, Turbo-CF tunes it."
    )

    @property
    def columns(self) -> int:
        """K: columns that travel."""
        return self.components + self.oversampling

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.columns > self.items:
            raise ValueError(f"{self.columns} vectors are over {self.items} items: there are no more to be found")
        if self.oversampling and not self.rayleigh_ritz:
            raise ValueError(
                "oversampling needs rayleigh_ritz: a QR's first columns do not depend on those after them, so that "
                "without it the extra vectors would be paid for and thrown away"
            )
        return self


class PriviRecParameters(PriviRecKParameters):
    """PriviRec with the Gram matrix: what it reveals has to be agreed to."""

    reveal_gram: bool = Field(default=False, description="Agree that everyone sees the item-item matrix.")

    @model_validator(mode="after")
    def _agreed(self) -> Self:
        if not self.reveal_gram:
            raise ValueError(f"{GRAM_REVEALS}; agree with reveal_gram=true, or use privirec-k, which never sums it")
        if self.items > MAX_GRAM_ITEMS:
            mega = self.items * (self.items + 1) // 2 * 4 / 1e6
            raise ValueError(
                f"the Gram matrix of {self.items} items would be {mega:,.0f} MB a contribution: at most "
                f"{MAX_GRAM_ITEMS} items fit, privirec-k has no such limit"
            )
        if self.tolerance is not None:
            raise ValueError("tolerance is for privirec-k: here the Gram matrix follows a fixed number of iterations")
        return self
