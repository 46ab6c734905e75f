"""The parameters of RFRec and RFRecF, the rule for local training that they determine, and RFRecF's coin tosses.

The tosses say which iterations train, which average, and how many sums they need. Toss k is for averaging with
probability p (Liu et al., CIKM 2024, eq. 7 and Algorithm 2). It determines what every client does in iteration k: train
on its own data, or move towards the average, V_i <- V_i + a (V - V_i), V the mean of all V_i.

    mean of (V_i + a (V - V_i)) = (1 - a) V + a V = V

A move does not change the mean, so several moves in a row need the average only once: m moves are
V_i <- V + (1 - a)^m (V_i - V). Only training changes the mean, and training needs no average. Iterations are therefore
grouped into *stretches*, a run of training followed by a run of moves, and each stretch needs ONE sum: every client
sends its V_i after the training and makes the moves with the mean. Moves before any training have no effect, since all
V_i are equal. Training at the very end is summed as well, although no move follows, so that the model is the average of
what all clients learned.

With n iterations this takes about p (1 - p) n sums instead of n (Lemma 3.9 counts upload and download separately:
2 p (1-p) n). The tosses are derived from the task's public seed: nobody chooses them, and everybody knows them in
advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal, Self

from pydantic import Field, model_validator

from protocols.crypto.random import uniforms
from protocols.privacy.laplace import LaplaceNoise, refuse_exact_sums
from protocols.recipes.base import Clip
from protocols.recipes.factors import MAX_DIM, FactorParameters

Moves = Literal["coin", "run"]


@dataclass(frozen=True)
class LocalRule:
    """How a client trains its user factor u and its own item factors V."""

    released: bool
    """Whether steps are Adam's, with moments kept between rounds, and a rating is predicted as sigmoid(u.v); otherwise
    plain gradient steps and u.v."""
    rate: float
    """Step size for u and V."""
    pull: float
    """The gradient with respect to V includes pull * (V - average)."""
    decay: float
    """The gradient with respect to u includes decay * u, or decay * u / |u| if `by_norm`."""
    by_norm: bool
    move: float
    """Fraction of the distance covered by one move towards the average, V += move * (average - V)."""


class RFRecParameters(FactorParameters):
    """Ratings, model and step sizes; the defaults are the paper's, section 4.1.3."""

    dim: int = Field(default=20, ge=1, le=MAX_DIM, description="Length d of a factor.")
    clip: Clip = Field(
        default=4.0,
        description="Bound on each uploaded value, an entry of V - average; larger values are clipped and counted.",
    )
    rating_min: float = Field(default=1.0, ge=-1e6, le=1e6, description="Lowest rating; lower ratings are an error.")
    rating_max: float = Field(default=5.0, ge=-1e6, le=1e6, description="Highest rating; higher ratings are an error.")
    scaling: Literal["raw", "unit"] = Field(
        default="unit",
        description="unit: ratings are scaled to [0, 1] before training, as in the released code; raw: they are not.",
    )
    variant: Literal["paper", "released"] = Field(
        default="released",
        description="released: Adam, prediction by a sigmoid, and the other differences of the released code. paper: "
        "plain gradient steps and linear prediction, which diverge with the paper's own settings.",
    )
    penalty: float = Field(default=10.0, ge=0, le=1e6, description="lambda: weight of the penalty on |V - average|^2.")
    user_penalty: float = Field(default=0.1, ge=0, le=1e6, description="lambda_u: weight of the penalty on u.")
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=1e3,
        description="alpha. None: 0.1 in variant released; in variant paper 0.05 for rfrec, 0.025 for rfrecf.",
    )
    item_bias: Literal["means", "none"] = Field(
        default="none", description="means: models begin with summed item means. none: as in the paper."
    )
    count_sums: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="With item_bias means: how many of the first sums are of ratings; 1 unless sums are plain.",
    )
    ldp: LaplaceNoise | None = Field(
        default=None, description="Clip and scale of Laplace noise on every uploaded value, in place of `clip`."
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.rating_min < self.rating_max:
            raise ValueError(f"rating_min {self.rating_min:g} must be less than rating_max {self.rating_max:g}")
        if self.variant == "released" and self.scaling != "unit":
            raise ValueError("variant 'released' predicts ratings in [0, 1] by a sigmoid: set scaling to 'unit'")
        if self.item_bias == "means" and self.variant != "released":
            raise ValueError("item_bias 'means' needs variant 'released'")
        refuse_exact_sums(self.ldp, "item_bias 'means'", self.item_bias == "means")
        return self

    @property
    def counting(self) -> int:
        """Number of first sums that are of ratings; 0 without item means."""
        return self.count_sums if self.item_bias == "means" else 0

    @property
    def bound(self) -> float:
        """Largest absolute value of an uploaded entry."""
        return self.clip if self.ldp is None else self.ldp.bound

    @property
    def rule(self) -> LocalRule:
        """How a client trains. Paper: Algorithm 1, line 7. Released: the penalty lacks the 1/2 of the paper's eq. 5."""
        released = self.variant == "released"
        return LocalRule(
            rate=self.learning_rate or (0.1 if released else 0.05),
            released=released,
            pull=(2 if released else 1) * self.penalty,
            decay=2 * self.user_penalty,
            by_norm=False,
            move=0.0,
        )


class RFRecFParameters(RFRecParameters):
    """RFRec's parameters, the number of iterations and the probability of averaging."""

    iterations: int = Field(default=100, ge=1, le=100_000, description="Number of iterations, one coin toss each.")
    probability: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="p: probability that a toss is for averaging. None: 0.5, or 0.8 in variant released.",
    )
    moves: Moves = Field(
        default="run",
        description="run: consecutive tosses for averaging make one move, as in the paper's Algorithm 2. coin: each "
        "makes a move, as in the paper's eq. 7. Variant released always uses coin.",
    )

    user_norm: Literal["plain", "squared"] | None = Field(
        default=None,
        description="Whether |u| or |u|^2 is penalised. None: |u|^2 as in the paper, or |u| in variant released.",
    )

    @property
    def chance(self) -> float:
        """p: probability that a toss is for averaging, with the variant's default."""
        return self.probability or (0.8 if self.variant == "released" else 0.5)

    @property
    def moves_by(self) -> Moves:
        """`moves`, or "coin" in variant released."""
        return "coin" if self.variant == "released" else self.moves

    @property
    def rule(self) -> LocalRule:
        """Paper: Algorithm 2, lines 10 and 12. Released: the average replaces V, and |u| is penalised, not |u|^2."""
        released = self.variant == "released"
        alpha = self.learning_rate or (0.1 if released else 0.025)
        by_norm = (self.user_norm or ("plain" if released else "squared")) == "plain"
        return LocalRule(
            rate=alpha if released else alpha / (1 - self.chance),
            released=released,
            pull=0.0,
            decay=(1 if by_norm else 2) * self.user_penalty,
            by_norm=by_norm,
            move=1.0 if released else alpha * self.penalty / self.chance,
        )

    @model_validator(mode="after")
    def _check_convergence(self) -> Self:
        if self.counting:
            raise ValueError("rfrecf has no item means: leave out item_bias")
        if self.rule.move >= 2:
            raise ValueError(
                f"learning_rate * penalty / probability = {self.rule.move:g} must be less than 2: otherwise clients "
                "move away from the average"
            )
        return self


@dataclass(frozen=True)
class Stretch:
    """The iterations that belong to one sum."""

    local: int
    """Local training steps before the sum."""
    moves: int
    """Moves towards the average after it."""
    until: int
    """Number of the task's iterations that are complete after the moves."""


def tosses(seed: bytes, iterations: int, probability: float) -> tuple[bool, ...]:
    """Return for each iteration whether its toss is for averaging (which has this probability)."""
    return tuple((uniforms(seed, "rfrecf coins", iterations) <= probability).tolist())


@lru_cache(maxsize=16)
def stretches(seed: bytes, iterations: int, probability: float, moves: Moves) -> tuple[Stretch, ...]:
    """Return the stretches of a task, one per sum; empty if no toss is for training.

    moves: with `coin`, every toss for averaging is a move. With `run`, Algorithm 2 is followed literally: a toss for
    averaging makes the server average, and the clients move in the next iteration with the other toss instead of
    training in it.
    """
    averages = tosses(seed, iterations, probability)
    if moves == "coin":
        actions = ["move" if average else "train" for average in averages]
    else:  # "" for nothing
        before = (False, *averages[:-1])
        actions = ["" if now else "move" if last else "train" for last, now in zip(before, averages, strict=True)]
    made: list[Stretch] = []
    place = 0
    for trains, actions_in_run in groupby(actions, key="train".__eq__):
        run = list(actions_in_run)
        place += len(run)
        if trains:
            made.append(Stretch(len(run), 0, place))
        elif made:
            last = made.pop()
            made.append(Stretch(last.local, run.count("move"), place))
    return tuple(made)
