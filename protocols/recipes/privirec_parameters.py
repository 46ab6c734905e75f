"""The parameters of PriviRec and PriviRec-k, and what the Gram matrix reveals."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from protocols.recipes.base import ItemParameters
from protocols.recipes.factors import StartFrom
from protocols.recipes.validation import MOST_SLIM_ITEMS

MOST_GRAM_ITEMS: Final = 10_000
"""Most items of a task with a Gram sum: 50 million pairs, 200 MB per contribution at 32 bits."""

LEAST_OWNERS: Final = 5
"""Owners that an item needs for a row of its own in the sums after the degrees, unless a task says otherwise."""

GRAM_REVEALS: Final = (
    "the item-item matrix in the clear is not anonymous: on Gowalla 77.9 % of its non-zero pairs (Yelp2018: 68.5 %) "
    "come from exactly one user, and 99.1 % of the users (99.7 %) own at least one such pair, whose value 1/d_u links "
    "all pairs of that user"
)

GRAM_CONSENT: Final = (
    "With reveal_gram the task does not limit how many: whoever sees the sums can compute the item-item matrix, and "
    "from that which items single members have."
)


class PriviRecKParameters(ItemParameters):
    """The number of vectors, the power iteration, and the normalisation of rows."""

    components: int = Field(default=256, ge=1, le=4096, description="Number k of singular vectors for the filters.")
    iterations: int = Field(default=5, ge=1, le=100, description="Largest number of power iterations, one sum each.")
    oversampling: int = Field(
        default=0, ge=0, le=1024, description="Vectors iterated beyond `components`; needs rayleigh_ritz."
    )
    rayleigh_ritz: bool = Field(
        default=False, description="Whether the last iteration ends with a Rayleigh-Ritz step in its subspace."
    )
    tolerance: float | None = Field(
        default=None, gt=0, lt=1, description="End early when the relative change of the singular values is below this."
    )
    user_exponent: float = Field(
        default=0.5, ge=0, le=1, description="a of D_u^-a R D_i^-b: 0.5 for GF-CF and BSPM, tuned for Turbo-CF."
    )
    item_exponent: float | None = Field(
        default=None, ge=0, le=0.5, description="b of D_u^-a R D_i^-b; none: 1 - a, as in the papers, for a >= 0.5."
    )
    degrees: bool = Field(
        default=True, description="Whether the first sum is of the items' degrees; false: no such sum, with b = 0 only."
    )
    start_from: StartFrom | None = Field(
        default=None, description="The model whose vectors the first iteration starts from; unset: random ones."
    )
    min_owners: int = Field(
        default=LEAST_OWNERS,
        ge=1,
        description="Owners that an item needs, by the sum of degrees, for a row in later sums and in the model. Not "
        "used with a privacy block.",
    )
    krylov: bool = Field(
        default=False,
        description="Whether each iteration asks for new directions, and the model is made from all of them.",
    )
    item_limit: float | None = Field(
        default=None,
        ge=1,
        description="How many times the usual size, by its degree, an item's row of the model may have, so that one "
        "member that lies does not make an item similar to all; needs krylov. Unset: any.",
    )
    validation: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the clients that keep an item out of the sums, by which a last sum chooses the filter's "
        "setting; 0: no such sum.",
    )
    next_vectors: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Leading vectors by which a sum of next items says what follows what, for clients whose items have "
        "times; 0: no such sum.",
    )
    reveal_gram: bool = Field(
        default=False, description="Consent that everyone sees, or can compute, the item-item matrix."
    )
    _noisy: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any, /) -> None:
        """Keep whether the task has a privacy block, whose sums do not shrink."""
        self._noisy = bool((context or {}).get("noisy"))

    @property
    def shrinks(self) -> bool:
        """Whether rows and columns of later sums follow from the sum of degrees."""
        return self.degrees and not self._noisy

    @property
    def bounded(self) -> bool:
        """Whether rows have as many columns as the lists of their owners allow, by a sum of how long those are."""
        return self.shrinks and not self.reveal_gram

    @property
    def gram_sums(self) -> int:
        """Number of Gram sums."""
        return 0

    @property
    def counted(self) -> bool:
        """Whether these are of how many clients have both of two items: whole numbers, by which nothing is scaled."""
        return False

    @property
    def measures_slim(self) -> bool:
        """Whether the sum of validation measures SLIM too."""
        return False

    @property
    def start_digest(self) -> str | None:
        return None if self.start_from is None else self.start_from.digest

    @property
    def columns(self) -> int:
        """K: number of columns that are iterated and sent."""
        return self.components + self.oversampling

    @property
    def degree_exponent(self) -> float:
        """b, the exponent of the items' degrees."""
        return 1.0 - self.user_exponent if self.item_exponent is None else self.item_exponent

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.columns > self.items:
            raise ValueError(
                f"components + oversampling is {self.columns}, but {self.items} items have at most {self.items} vectors"
            )
        if self.item_exponent is None and self.user_exponent < 0.5:
            raise ValueError(f"user_exponent {self.user_exponent:g} is below 0.5, which needs an item_exponent")
        if not self.degrees and self.degree_exponent:
            raise ValueError(
                f"degrees false needs item_exponent 0, not {self.degree_exponent:g}, which scales rows by degrees"
            )
        if not (self.degrees or self._noisy or self.reveal_gram):
            raise ValueError(
                "degrees false: without the sum of degrees nobody knows which items have few owners, whose rows of the "
                "sums are their owners' own; consent with reveal_gram=true, or add a privacy block"
            )
        if self.krylov and (self.rayleigh_ritz or self.tolerance is not None or self._noisy or not self.degrees):
            raise ValueError(
                "krylov needs the sum of degrees, and neither rayleigh_ritz, tolerance nor a privacy block"
            )
        if self.item_limit is not None and not self.krylov:
            raise ValueError("item_limit needs krylov, whose model is made from all sums together")
        if self.validation and self.tolerance is not None:
            raise ValueError("validation needs a fixed number of iterations: leave out tolerance")
        if self.next_vectors and self.tolerance is not None:
            raise ValueError("next_vectors needs a fixed number of iterations: leave out tolerance")
        if self.start_from is not None and self.degrees:
            raise ValueError("start_from needs degrees false: the vectors of a task with degrees are drawn after them")
        if self.oversampling and not self.rayleigh_ritz:
            raise ValueError(
                "oversampling needs rayleigh_ritz: the first columns of a QR do not depend on later ones, so without "
                "rayleigh_ritz the extra vectors have no effect"
            )
        return self


class PriviRecParameters(PriviRecKParameters):
    """PriviRec with the Gram matrix, which needs explicit consent."""

    iterations: int = Field(
        default=5,
        ge=0,
        le=100,
        description="Power iterations before the Gram sum, one sum each; 0: the vectors come from the matrix, which is "
        "then of counts of clients with both of two items (user_exponent 0), or with noise.",
    )
    blocks: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Sums that the Gram matrix is sent in, so that no message is long; more than one only for counts: "
        "iterations 0 and user_exponent 0.",
    )
    slim: bool = Field(
        default=False,
        description="Whether the sum of validation measures SLIM too, of the counts; needs counts, validation and at "
        f"most {MOST_SLIM_ITEMS:,} items.",
    )

    @property
    def gram_sums(self) -> int:
        return self.blocks

    @property
    def counted(self) -> bool:
        return not self.iterations and self.shrinks

    @property
    def measures_slim(self) -> bool:
        return self.slim

    @model_validator(mode="after")
    def _agreed(self, info: ValidationInfo) -> Self:
        if not (self.reveal_gram or self.is_noisy(info)):
            raise ValueError(
                f"{GRAM_REVEALS}; consent with reveal_gram=true, add a privacy block, or use privirec-k, whose sums do "
                "not determine it as long as they have few vectors"
            )
        if self.krylov:
            raise ValueError("krylov needs privirec-k: privirec has the whole matrix")
        if self.next_vectors:
            raise ValueError("next_vectors needs privirec-k, whose vectors all members have alike")
        if not (self.iterations or self._noisy or (self.degrees and not self.user_exponent)):
            raise ValueError(
                "iterations 0 needs Gram sums of counts, which user_exponent 0 and degrees are, or a privacy block"
            )
        if (self.validation or self.blocks > 1) and not self.counted:
            raise ValueError("validation and blocks need Gram sums of counts: user_exponent 0 and iterations 0")
        if self.slim and not (self.validation and self.items <= MOST_SLIM_ITEMS):
            raise ValueError(
                f"slim needs validation, by which members choose it, and at most {MOST_SLIM_ITEMS:,} items: "
                "for more a device takes too long to compute its weights"
            )
        if self.items > MOST_GRAM_ITEMS:
            mega = self.items * (self.items + 1) // 2 * 4 / 1e6
            raise ValueError(
                f"the Gram matrix of {self.items} items would take {mega:,.0f} MB per contribution: the limit is "
                f"{MOST_GRAM_ITEMS} items; privirec-k has no such limit"
            )
        if self.start_from is not None:
            raise ValueError("start_from needs privirec-k: the Gram matrix has no need of vectors to start from")
        if self.tolerance is not None:
            raise ValueError(
                "tolerance needs privirec-k: privirec has a fixed number of iterations before the Gram sum"
            )
        return self
