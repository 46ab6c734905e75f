"""SCoLR: CoLR for clients with different resources; each client trains and sends only some columns of A.

Nguyen et al. (WWW 2024), section 4.3: client u takes r_u <= r columns, the first r_u of a random permutation of the r.
The paper's mean divides by N_u/N alone. Here every (column, item) is divided by the number of clients that trained it,
which is the rule of the released code for CoLR. The columns of a client are public (they follow from the round's seed
and the client's id), so the upload is short: r_u columns and ONE touch vector, which is added to the counts of each of
the client's columns.

**Only over plain sums.** The count blocks of a sum are r linear equations in the touch vectors of its clients, with
public coefficients. With r >= the clients of a sum they give each client's touch vector, and a few rounds give its
items. So no mechanism that hides contributions carries this recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.domain import derive_seed
from protocols.crypto.public_random import permutation, uniforms
from protocols.layout import Block, Route, Segment, VectorLayout, whole_route
from protocols.recipes.base import RoundSpec, Update
from protocols.recipes.colr.colr import CoLRParameters, shared_projection
from protocols.recipes.entry import RecipeEntry
from protocols.recipes.factors import (
    clip_blocks,
    count_segment,
    dense_rows,
)
from protocols.recipes.rows import FactorRecipe
from protocols.sum_classes import TRAINED

__all__ = ["ENTRY", "SCoLR", "SCoLRParameters", "client_columns"]


class SCoLRParameters(CoLRParameters):
    """SCoLR's parameters; `rank` is the shared rank r, and each client's own rank is drawn from 1..r."""


def client_columns(spec: RoundSpec, client_id: str, rank: int) -> NDArray[np.int64]:
    """Return S_u, the columns of A that this client trains, int64 (r_u,), ascending.

    r_u is uniform in 1..rank (paper, section 5.5).
    """
    seed = derive_seed(spec.seed, "scolr columns", client_id)
    local_rank = int(np.ceil(uniforms(seed, "local rank", 1)[0] * rank))
    return np.sort(permutation(seed, "columns", rank)[:local_rank])


@dataclass(frozen=True)
class SCoLR(FactorRecipe):
    """One block per column of A: r_u*N values and N counts per contribution."""

    parameters: SCoLRParameters
    name: str = "scolr"

    def warnings(self) -> tuple[str, ...]:
        """Return the warning that a sum gives the clients' touch vectors."""
        return (
            "Which columns a client trains is public: it follows from the round's seed and the client's id. Whoever "
            "sees the sums can compute from them which items each client has.",
        )

    def change_layout(self) -> VectorLayout:
        """Return r blocks of N values (columns of A), then r blocks of N counts."""
        p = self.parameters
        columns = tuple(Block(f"column {c}", (Segment("update", p.items, p.clip),)) for c in range(p.rank))
        counts = tuple(Block(f"count {c}", (count_segment(p.items),)) for c in range(p.rank))
        return VectorLayout(columns + counts, sum_class=TRAINED)

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return one target per column of the client, then the touch vector's targets: the counts of those columns."""
        if spec.sum_index <= self.count_sums:
            return whole_route(self.layout(spec.sum_index))
        rank = self.parameters.rank
        columns = [int(c) for c in client_columns(spec, client_id, rank)]
        return (*((c,) for c in columns), tuple(rank + c for c in columns))

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return the rows of B that belong to this client's columns, float32 (r_u, d)."""
        p = self.parameters
        return shared_projection(spec.seed, p.rank, p.dim)[client_columns(spec, client_id, p.rank)]

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[list[NDArray[np.float64]], int]:
        """Return the client's columns of A, its touch vector, and how many values were clipped."""
        p = self.parameters
        route = self.route(spec, client_id)
        rows, touched = dense_rows(update, p.items, len(route) - 1)
        return clip_blocks(self.change_layout().contribution_blocks(route), [*np.ascontiguousarray(rows.T), touched])

    def change(self, spec: RoundSpec, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return A B, float64 (items, dim), with A[i, c] = sum over the clients that train c / how many touched i."""
        p = self.parameters
        sums, counts = total.reshape(2, p.rank, p.items)
        mean = (sums / np.maximum(counts, 1.0)).T
        return np.asarray(mean @ shared_projection(spec.seed, p.rank, p.dim).astype(np.float64))


ENTRY: Final = RecipeEntry(
    name="scolr",
    parameters=SCoLRParameters,
    make=SCoLR,
    half="client_sdk.training.factors:half",
    needs=frozenset({"dense", "clear contributions"}),
    why_not="the counts of a sum are linear equations in its clients' touch vectors, with public coefficients, from "
    "which anyone who sees the sum can compute which items each client has",
    source="Nguyen et al., WWW 2024, section 4.3",
)
