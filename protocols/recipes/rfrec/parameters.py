"""What all clients of an RFRec or RFRecF task have to agree on, and the rule of a local step that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from protocols.privacy.laplace import LaplaceNoise
from protocols.recipes.factors import MAX_DIM, FactorParameters

__all__ = ["LocalRule", "Moves", "RFRecFParameters", "RFRecParameters"]

Moves = Literal["coin", "run"]


@dataclass(frozen=True)
class LocalRule:
    """How a client trains, with y the scaled ratings, u its user factor and V its own item factors.

    rate: size of a step of u and V. adam: by Adam, whose moments are kept, or by plain gradient steps. logistic:
    whether a rating is predicted by sigmoid(u.v) or by u.v. pull: the gradient with respect to V has
    pull * (V - average) in it. decay: that with respect to u has decay * u in it, or decay * u / |u| where `by_norm`.
    move: what one step towards the average takes of the distance, V += move * (average - V).
    """

    rate: float
    adam: bool
    logistic: bool
    pull: float
    decay: float
    by_norm: bool
    move: float


class RFRecParameters(FactorParameters):
    """Ratings, model and step sizes; the numbers are the paper's, section 4.1.3."""

    dim: int = Field(default=20, ge=1, le=MAX_DIM, description="Length d of a factor.")
    clip: float = Field(
        default=4.0,
        gt=0,
        le=1e6,
        description="Bound on each uploaded value, an entry of V - average; what exceeds it is clipped and counted.",
    )
    rating_min: float = Field(default=1.0, ge=-1e6, le=1e6, description="Lowest rating; lower ones are refused.")
    rating_max: float = Field(default=5.0, ge=-1e6, le=1e6, description="Highest rating; higher ones are refused.")
    scaling: Literal["raw", "unit"] = Field(
        default="unit",
        description="What is fitted: ratings brought to [0, 1], as in the released code, or as they are.",
    )
    variant: Literal["paper", "released"] = Field(
        default="released",
        description="released: Adam, prediction by a sigmoid, and what else the released code does otherwise. paper: "
        "plain gradient steps, linear prediction, which diverges with the paper's own settings.",
    )
    penalty: float = Field(default=10.0, ge=0, le=1e6, description="lambda: how strongly V is held to the average.")
    user_penalty: float = Field(default=0.1, ge=0, le=1e6, description="lambda_u: how strongly u is held to 0.")
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=1e3,
        description="alpha. None: that of the variant, 0.05 in rfrec and 0.025 in rfrecf, 0.1 where it is Adam's.",
    )
    ldp: LaplaceNoise | None = Field(
        default=None, description="Clip and scale of Laplace noise on every uploaded value, in place of `clip`."
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.rating_min < self.rating_max:
            raise ValueError(f"rating_min {self.rating_min:g} must lie below rating_max {self.rating_max:g}")
        if self.variant == "released" and self.scaling != "unit":
            raise ValueError("the released code predicts by a sigmoid, which fits ratings in [0, 1]: scaling is 'unit'")
        return self

    @property
    def bound(self) -> float:
        """What no uploaded value exceeds in size."""
        return self.clip if self.ldp is None else self.ldp.bound

    @property
    def rule(self) -> LocalRule:
        """Paper: Algorithm 1, line 7. Released: its loss has the penalty without the 1/2 of the paper's eq. 5."""
        released = self.variant == "released"
        return LocalRule(
            rate=self.learning_rate or (0.1 if released else 0.05),
            adam=released,
            logistic=released,
            pull=(2 if released else 1) * self.penalty,
            decay=2 * self.user_penalty,
            by_norm=False,
            move=0.0,
        )


class RFRecFParameters(RFRecParameters):
    """What RFRecF has besides: how many iterations, and the coin that is tossed in each."""

    iterations: int = Field(default=100, ge=1, le=100_000, description="Tosses in all; the task ends with them.")
    probability: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="p of a toss for averaging. None: 0.5, in the released variant 0.8.",
    )
    moves: Moves = Field(
        default="run",
        description="run: several tosses for averaging in a row make one move, as in the paper's Algorithm 2. coin: "
        "one each, as in its eq. 7. The released variant always goes by coin.",
    )

    user_norm: Literal["plain", "squared"] | None = Field(
        default=None,
        description="Whether |u| or |u|^2 is penalised. None: |u|^2 as in the paper, in the released variant |u|.",
    )

    @property
    def chance(self) -> float:
        """p."""
        return self.probability or (0.8 if self.variant == "released" else 0.5)

    @property
    def moves_by(self) -> Moves:
        """`moves`, as far as the variant leaves a choice."""
        return "coin" if self.variant == "released" else self.moves

    @property
    def rule(self) -> LocalRule:
        """Paper: Algorithm 2, lines 10 and 12. Released: the average replaces V, and |u| is penalised, not |u|^2."""
        released = self.variant == "released"
        alpha = self.learning_rate or (0.1 if released else 0.025)
        by_norm = (self.user_norm or ("plain" if released else "squared")) == "plain"
        return LocalRule(
            rate=alpha if released else alpha / (1 - self.chance),
            adam=released,
            logistic=released,
            pull=0.0,
            decay=(1 if by_norm else 2) * self.user_penalty,
            by_norm=by_norm,
            move=1.0 if released else alpha * self.penalty / self.chance,
        )

    @model_validator(mode="after")
    def _converge(self) -> Self:
        if self.rule.move >= 2:
            raise ValueError(
                f"learning_rate * penalty / probability = {self.rule.move:g} must be below 2: clients would move away "
                "from the average"
            )
        return self
