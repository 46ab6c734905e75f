"""PFedCLR: a shared item table that each client personalises after it has sent its contribution.

Chen et al., "Beyond Personalization: Federated Recommendation with Calibration via Low-rank Decomposition" (2025),
Algorithm 1. Client u trains the item factors Q to Q_u with its own factor p frozen (step 1), sends Q_u, and then
trains p and a personal change A_u B_u of the items (step 2), which it never sends. The server takes the mean of the
Q_u weighted by |D_u| (eq. 11); here weights need consent (`protocols.recipes.factors`). Clients send the change
Q_u - Q, which gives the same mean and has a bound as small as one round's training. The whole item table is sent, so
the length of an upload reveals nothing about its items.

`variant` (below) is the paper's ablation, its Table 2, in which W_u is a full matrix in place of A_u B_u. The paper
describes `af` in one sentence; this is our reading of it.

`start`: with `shared`, all clients begin with the same p and B, so that their changes of Q have a common direction from
the first round on. The paper does not state this; in the released code of the same authors' FedEM every client begins
as a copy of one model, and only this reaches the published figures (docs/results.md). With `own`, each client draws its
own.

Local differential privacy: independent Laplace noise on every entry. With noise all clients count alike, as a weight
reveals a number of interactions, and item counts, which would sum the rows themselves, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.crypto.random import normals
from protocols.layout import TRAINED, Floats, VectorLayout
from protocols.privacy.laplace import LaplaceNoise, privatise, refuse_exact_sums
from protocols.recipes.base import MOVES_ALIKE, Clip, Contribution, FactorState, Local, ModelState, RoundSpec
from protocols.recipes.bounds import Reach
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.factors import (
    MAX_DIM,
    BiasedParameters,
    WeightedParameters,
    bounded,
    dense_rows,
    noise_warning,
    weigh,
    weighted_block,
    weighted_mean,
    with_weight,
)
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.rows import FactorModel

_START: Final = bytes(32)
Method = Literal["af", "cf", "clr", "fedmf"]
"""What is trained in step 1 / step 2. clr: Q / p, A, B. cf: Q / p, W. af: p, Q / W. fedmf: p, Q / nothing."""
Initial = Literal["own", "shared"]
"""How clients initialise p and B: each with its own draw, or all with the same values."""


class PFedCLRParameters(BiasedParameters, WeightedParameters):
    """Parameters that all clients of a task share. Defaults of the training: `client_sdk.training.PFedCLRConfig`."""

    dim: int = Field(default=16, ge=1, le=MAX_DIM, description="Length d of a factor.")
    clip: Clip = Field(
        default=1.0,
        description="Bound on each entry of a client's change of the item factors; larger entries are clipped.",
    )
    variant: Method = Field(default="clr", description="The full method, clr, or an ablation: cf, af or fedmf.")
    rank: int = Field(default=2, ge=1, description="Rank of the personal change A B; used by variant clr only.")
    start: Initial = Field(default="shared", description="Initial p and B: the same for all clients, or each its own.")
    buffer_learning_rate: float | None = Field(
        default=None, gt=0, le=100, description="Step size of the personal change of the items; unset: the client's."
    )
    start_scale: float = Field(
        default=1.0, gt=0, le=10, description="Standard deviation of the initial item factors and of a shared p."
    )
    noise_scale: float | None = Field(
        default=None, gt=0, description="Scale of the Laplace noise on every uploaded entry; None: no noise."
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.variant == "clr" and self.rank > self.dim:
            raise ValueError(f"rank {self.rank} is greater than dim {self.dim}: the change of the items has full rank")
        if self.weight_decay is not None:
            raise ValueError("pfedclr has no weight decay: leave out weight_decay")
        if self.noise is not None and self.max_interactions is not None:
            raise ValueError(
                "a client's weight reveals its number of interactions, which noise on its vector does not hide: with "
                "noise_scale, leave out max_interactions"
            )
        refuse_exact_sums(self.noise, "item_bias 'counts'", self.has_counts)
        return self

    @property
    def noise(self) -> LaplaceNoise | None:
        """The clip and noise of each entry; None without noise."""
        return None if self.noise_scale is None else LaplaceNoise(clip=self.clip, scale=self.noise_scale)


@dataclass(frozen=True)
class PFedCLR(FactorModel):
    """One block: N*d values of change or, with weights, of weight times change, followed by the weight."""

    parameters: PFedCLRParameters
    name: str = "pfedclr"

    def initial_state(self, task_seed: bytes) -> FactorState:
        """Return round 0: item factors N(0, 1), as in the same authors' released code, times `start_scale`."""
        p = self.parameters
        factors = normals(task_seed, "initial item factors", p.items * p.dim).reshape(p.items, p.dim)
        return self.first_state((p.start_scale * factors).astype(np.float32))

    def shared_start(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the initial p, float32 (dim,), N(0, `start_scale`^2), and B, float32 (rank, dim), N(0, 1): public."""
        p = self.parameters
        user = normals(_START, "pfedclr user factor", p.dim)
        basis = normals(_START, "pfedclr buffer basis", p.rank * p.dim).reshape(p.rank, p.dim)
        return (p.start_scale * user).astype(np.float32), basis.astype(np.float32)

    def change_layout(self) -> VectorLayout:
        p = self.parameters
        bound, norm = (p.clip, p.longest_update) if p.noise is None else (p.noise.bound, None)
        return VectorLayout((weighted_block(p, "items", p.items, p.dim, bound, norm),), sum_class=TRAINED)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the weighted change, with noise in a task with noise, in which all clients count alike.

        local: an `Update` with rows of Q_u - Q for the items that took part in step 1, and |D_u|.
        """
        p = self.parameters
        update, clipped, scaled = bounded(local.update, p)
        change = dense_rows(update, p.items, p.dim)[0].ravel()
        if p.noise is not None:
            change, _ = privatise(change, p.noise, local.entropy)
        return Contribution([weigh(p, change, local.examples)], clipped, scaled)

    @property
    def longest_start(self) -> float:
        """That of rows N(0, `start_scale`^2), or of those from a spectrum."""
        p = self.parameters
        return super().longest_start * (1.0 if p.start_from is not None else p.start_scale * float(np.sqrt(p.dim)))

    def farthest_step(self, state: FactorState, reach: Reach) -> float:
        p = self.parameters
        return reach.of_mean * (p.clip if p.noise is None else p.noise.bound) * float(np.sqrt(p.dim))

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return the mean change (with weights that of eq. 11), float64 (items, dim)."""
        p = self.parameters
        return weighted_mean(with_weight(p, total, contributions)).reshape(p.items, p.dim)

    @property
    def adds_noise(self) -> bool:
        return self.parameters.noise is not None

    def warnings(self) -> tuple[str, ...]:
        noise = self.parameters.noise
        if noise is None:
            return (MOVES_ALIKE, *self.parameters.weight_warnings())
        return (noise_warning(noise, self.parameters.items * self.parameters.dim),)


ENTRY: Final = RecipeEntry(
    name="pfedclr",
    text="shared item factors, personalised on the device (PFedCLR)",
    parameters=PFedCLRParameters,
    make=PFedCLR,
    client_side="client_sdk.training.pfedclr:client_side",
    needs_start=True,
    source="Chen et al., 2025, Algorithm 1. Guide: [PFedCLR](recipes.md#pfedclr)",
    defaults=TaskDefaults(
        started={
            "item_bias": "counts",
            "start_weight": 32.0,
            "learning_rate": 0.001,
            "buffer_learning_rate": 0.0005,
            "epochs": 2,
        },
        paper={"max_interactions": 1000, "reveal_weights": True},
    ),
)
