"""RFRec and RFRecF: every client trains its own item factors, with a penalty on their distance from the average.

Liu et al., "Efficient and Robust Regularized Federated Recommendation" (CIKM 2024). Client i has a user factor u_i and
item factors V_i, and minimises (eq. 5)

    |R_i - u_i^T V_i|^2 + lambda_u |u_i|^2 + lambda/2 |V_i - V|^2,      V = 1/n sum_i V_i

over its ratings R_i. The server only averages. The model of a user is its own u_i with the average V.

RFRec (Algorithm 1): training steps and sums alternate. RFRecF (Algorithm 2): a coin toss decides whether an iteration
trains or averages, so that fewer iterations need a sum (`protocols.recipes.rfrec_parameters`).

**What is sent** is V_i - V, with V from the last sum. The mean of the differences plus V is the mean of the V_i,
whichever clients are missing, and the differences are smaller than the V_i. The contribution is dense: it includes
items without a rating. All clients have the same weight, and the mean is over the clients in the sum.

Noise (eq. 9) is optional: an independent draw for each value of the difference. The paper clips V_i itself, which
bounds the whole model by that clip.

**Item means.** The first sums of a task give each item's mean rating, from which every model begins.

With `item_bias` "means" a client sends, in one of the first `count_sums` sums, for each item whether it rated it (0 or
1) and by how much its rating, on the unit scale, exceeds 1/2. With n_j and s_j the totals of item j,

    mu = 1/2 + sum s_j / sum n_j        b_j = (s_j - (mu - 1/2) n_j) / (n_j + 5)

and a device adds its own user's deviation, shrunk in the same way: b_u = sum_j (y_j - mu - b_j) / (|R_u| + 5). The
prediction is sigmoid(o_j + u . v_j) with o_j = logit(mu + b_j + b_u), so that the factors only learn what the means do
not say. 5 ratings at the mean are the usual shrinkage of biased matrix factorisation (Koren, 2008, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import SEED_BYTES, derive_seed
from protocols.crypto.random import normals
from protocols.errors import ParameterError
from protocols.layout import CLIP_SLACK, ONCE_ROWS, TRAINED, Block, Floats, Segment, VectorLayout
from protocols.privacy.laplace import privatise
from protocols.recipes.base import (
    MOVES_ALIKE,
    Contribution,
    FactorState,
    Local,
    ModelState,
    Recipe,
    RoundSpec,
    check_follows,
)
from protocols.recipes.bounds import Reach, require_within
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.factors import clip_blocks, noise_warning
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.rfrec_parameters import RFRecFParameters, RFRecParameters, Stretch, stretches
from protocols.recipes.state import SUM_INDEX, StateField, StateFields, state_as

_SHRINKAGE: Final = 5.0
_MARGIN: Final = 0.02  # means are kept so far from 0 and 1, where the logit is infinite


class ItemMeans(NamedTuple):
    """The overall mean, on the unit scale, and each item's deviation from it, float64 (items,)."""

    overall: float
    deviations: Floats


def item_means(totals: NDArray[np.floating]) -> ItemMeans:
    """Return the means from the totals of count and rating minus 1/2, (2, items); 1/2 and zeros without ratings."""
    rated, above = np.maximum(totals[0], 0.0).astype(np.float64), totals[1].astype(np.float64)
    centre = float(above.sum() / max(1.0, rated.sum()))
    return ItemMeans(0.5 + centre, (above - centre * rated) / (rated + _SHRINKAGE))


def rating_offsets(means: ItemMeans, items: NDArray[np.int32], targets: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return o_j of every item for the user who rated `items` (k,) with `targets` (k,) on the unit scale; float32."""
    base = means.overall + means.deviations
    own = float((targets - base[items]).sum() / (items.size + _SHRINKAGE))
    expected = np.clip(base + own, _MARGIN, 1 - _MARGIN)
    return np.asarray(np.log(expected / (1 - expected)), dtype=np.float32)


INITIAL_STD: Final = 0.01  # standard deviation of the initial average: N(0, 10^-4), Algorithm 1, line 3
_FAR: Final = 9.0  # standard deviations: a normal variable is farther with a chance of 1e-19
_ERROR: Final = 1.0  # of a sum of ratings, with any mechanism, and of its rounding to float32


@dataclass(frozen=True)
class RFRecState(FactorState):
    """The average after `sum_index` sums: item_factors float32 (items, dim)."""

    sum_index: int
    coins: bytes = b""
    """Of RFRecF, 32 public bytes, the seed of the task's coin tosses."""
    item_totals: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Of a task with item means, float32 (2, items), how many rated an item, and the sum of their ratings minus 1/2.

    Both are empty in other tasks.
    """

    @property
    def sums(self) -> int:
        """All of them: a client takes the local steps of each that it missed."""
        return self.sum_index


@dataclass(frozen=True)
class RFRec(Recipe):
    """RFRec: one block of N*d values, the same for every sum."""

    parameters: RFRecParameters
    name: str = "rfrec"

    state_class = RFRecState
    predicts_ratings = True

    @property
    def main_sum(self) -> int:
        return 1 + self.parameters.counting

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return one block: V_i - V, row-major; in sums of ratings who rated each item, and the ratings minus 1/2."""
        p = self.parameters
        if sum_index <= p.counting:
            ratings = (Segment("rated", p.items, 1.0, integral=True, row=1), Segment("above", p.items, 0.5, row=1))
            return VectorLayout((Block("ratings", ratings),), sum_class=ONCE_ROWS)
        return VectorLayout(
            (Block("items", (Segment("difference", p.items * p.dim, p.bound, row=p.dim),)),), sum_class=TRAINED
        )

    def stretch(self, state: ModelState, sum_index: int) -> Stretch:
        """Return the iterations of sum `sum_index`: one local step before it, or none before a sum of ratings."""
        counting = self.parameters.counting
        return Stretch(0, 0, 0) if sum_index <= counting else Stretch(1, 0, sum_index - counting)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return V_i - V, with noise in a task with noise. local: the client's V_i, float32 (items, dim)."""
        known = state_as(state, RFRecState).item_factors
        difference = np.subtract(local.update, known, dtype=np.float64).ravel()
        if self.parameters.ldp is None:
            return clip_blocks(self.layout(self.main_sum).blocks, [difference])
        noisy, clipped = privatise(difference, self.parameters.ldp, local.entropy)
        return Contribution([noisy], clipped)

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> RFRecState:
        """Return the state whose average is V + total / contributions: the mean of the V_i in the sum.

        Sums between the state's and this one were abandoned; they changed nothing.
        """
        old, p = state_as(state, RFRecState), self.parameters
        check_follows(old, spec)
        if spec.sum_index <= p.counting:
            totals = (old.item_totals + total.reshape(2, p.items)).astype(np.float32)
            return replace(old, round_number=spec.number, sum_index=spec.sum_index, item_totals=totals)
        moved = (old.item_factors + (total / contributions).reshape(p.items, p.dim)).astype(np.float32)
        return replace(old, round_number=spec.number, sum_index=spec.sum_index, item_factors=moved)

    def initial_state(self, task_seed: bytes) -> RFRecState:
        p = self.parameters
        flat = INITIAL_STD * normals(task_seed, "initial item factors", p.items * p.dim)
        factors = flat.reshape(p.items, p.dim).astype(np.float32)
        return RFRecState(0, factors, 0, item_totals=np.zeros((2, p.items) if p.counting else 0, np.float32))

    def state_fields(self, sum_index: int) -> StateFields:
        p = self.parameters
        totals = (StateField("item_totals", "<f4", (2, p.items)),) if p.counting else ()
        return (SUM_INDEX, *totals, StateField("item_factors", "<f4", (p.items, p.dim)))

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check the values of the average, and how many clients can have rated an item."""
        own, p = state_as(state, RFRecState), self.parameters
        farthest = (_FAR * INITIAL_STD + reach.sums * reach.of_mean * p.bound) * CLIP_SLACK
        require_within(own.item_factors.ravel(), farthest, "item factors")
        if own.item_totals.size:
            raters = float(p.counting * reach.most)
            require_within(own.item_totals[0], raters, "numbers of raters")
            require_within(own.item_totals[1], raters / 2 + _ERROR, "sums of ratings")

    def report(self, state: ModelState) -> dict[str, float]:
        return {"iterations": float(max(0, state_as(state, RFRecState).sum_index - self.parameters.counting))}

    @property
    def adds_noise(self) -> bool:
        return self.parameters.ldp is not None

    def warnings(self) -> tuple[str, ...]:
        p = self.parameters
        if p.ldp is None:
            return (MOVES_ALIKE,)
        return (noise_warning(p.ldp, p.items * p.dim),)


@dataclass(frozen=True)
class RFRecF(RFRec):
    """RFRecF: RFRec with one sum per stretch of the coin tosses; the task is done after the last stretch."""

    parameters: RFRecFParameters
    name: str = "rfrecf"

    def stretches(self, state: ModelState) -> tuple[Stretch, ...]:
        """Return the stretches of the task, one per sum; `ParameterError` for a state of another recipe."""
        p, coins = self.parameters, state_as(state, RFRecState).coins
        if not coins:
            raise ParameterError("this model state has no coins: it is one of another recipe")
        return stretches(coins, p.iterations, p.chance, p.moves_by)

    def stretch(self, state: ModelState, sum_index: int) -> Stretch:
        """Return the stretch of sum `sum_index`, which is empty after the last one: that one was abandoned then.

        Raises `ParameterError` for an index below 1.
        """
        found = self.stretches(state)
        if sum_index < 1:
            raise ParameterError(f"sums are numbered from 1, there is no sum {sum_index}")
        return found[sum_index - 1] if sum_index <= len(found) else Stretch(0, 0, found[-1].until)

    def initial_state(self, task_seed: bytes) -> RFRecState:
        """Return the state of round 0; `ParameterError` if no iteration of the task trains."""
        first = super().initial_state(task_seed)
        made = replace(first, coins=derive_seed(task_seed, "rfrecf coins"))
        if not self.stretches(made):
            raise ParameterError("no iteration of this task trains: choose more iterations or another seed")
        return made

    def state_fields(self, sum_index: int) -> StateFields:
        first, *others = super().state_fields(sum_index)
        return (first, StateField("coins", "u1", (SEED_BYTES,)), *others)

    def report(self, state: ModelState) -> dict[str, float]:
        """Return the number of complete iterations, the sums so far, and the sums in total."""
        own, found = state_as(state, RFRecState), self.stretches(state)
        until = self.stretch(state, own.sum_index).until if own.sum_index else 0
        return {"iterations": float(until), "sums": float(own.sum_index), "sums_in_all": float(len(found))}

    def is_done(self, state: ModelState) -> bool:
        return state_as(state, RFRecState).sum_index >= len(self.stretches(state))


RFREC: Final = RecipeEntry(
    name="rfrec",
    text="ratings, with item factors of each client's own (RFRec)",
    parameters=RFRecParameters,
    make=RFRec,
    client_side="client_sdk.training.rfrec:client_side",
    ratings=True,
    source="Liu et al., CIKM 2024, Algorithm 1. Guide: [RFRec](recipes.md#rfrec)",
    defaults=TaskDefaults(
        recommended={"item_bias": "means", "learning_rate": 0.03, "penalty": 0.3, "user_penalty": 3.0}
    ),
)
RFRECF: Final = replace(
    RFREC,
    name="rfrecf",
    text="ratings, with rounds without communication (RFRecF)",
    parameters=RFRecFParameters,
    make=RFRecF,
    source="Liu et al., CIKM 2024, Algorithm 2. Guide: [RFRec](recipes.md#rfrec)",
    defaults=TaskDefaults(),
)
