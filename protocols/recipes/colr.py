"""FedMF, which sums the whole change of the item factors, and its low-rank compressions: SVD, CoLR and SCoLR.

**FedMF** is the baseline that the others compress: Chai et al., "Secure Federated Matrix Factorization" (2019), with
the aggregation of the released CoLR code. The others are from Nguyen et al., "Towards Efficient Communication and
Secure Federated Recommendation System via Low-rank Training" (WWW 2024).

**SVD** (section 3.2): clients train FedMF's full change and send factors U_u (items x r) and V_u (r x dim) of its best
rank-r part. The server adds the products U_u V_u and compresses the sum again for the download, as the released code
does. A sum of products is not a product of sums, so each client's factors must be multiplied before they are added.
This is not possible with ciphertexts, and the SVD of an encrypted sum is an open problem (appendix C). The recipe
therefore needs plain sums. Here a contribution is the dense product U_u V_u, with all its values on the wire.

**CoLR** (eq. 5 to 7): Delta Q = A B with B (r x d) shared and frozen, A (N x r) trained from zero and summed. B is
redrawn each round and broadcast as 32 bytes.

**SCoLR** (section 4.4) is CoLR for clients with different resources; each client trains and sends only some columns of
A. Client u trains r_u <= r columns, the first r_u of a shuffled list of the r. Here these are columns 0 to r_u - 1 for
all clients: rows of B are exchangeable and redrawn every round, so shuffling changes nothing, and with nested columns
the sums show less. A client draws its level in a round, 1 to L = `levels`, uniform, from the round's seed and its id;
at level l it trains ceil(l r / L) columns. With L = r the rank that it draws is uniform in 1..r (paper, section 5.5).

The sum has a block for each level, with the columns that the level adds; a client contributes to the blocks up to its
own level. Whoever sees the sums can compare two blocks, whose difference comes from the clients of one level. So each
level in a sum must be that of no client, or of at least `min_clients` (`protocols.layout`): the server announces the
levels in use with the round, and a client that drew another one has the next lower.

The paper's mean divides by N_u/N alone. Here an entry is divided as `normalise` says, over the clients that trained its
column, of which each block counts the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.crypto.keys import derive_seed
from protocols.crypto.random import normals, uniforms
from protocols.layout import (
    TRAINED,
    Block,
    Floats,
    Route,
    Segment,
    VectorLayout,
    check_finite,
    levels_in_use,
    lowered,
    whole_route,
)
from protocols.recipes.base import Clip, Contribution, FactorState, Local, ModelState, RoundSpec, Update
from protocols.recipes.bounds import Reach, Sensitivity
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.factors import bounded, clip_blocks, dense_rows
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.rows import (
    TOUCHED,
    TOUCHED_ROWS,
    FactorRecipe,
    NormalisedParameters,
    RowRecipe,
    divisors,
    most_of_mean,
    touch_segments,
)


class FedMFParameters(NormalisedParameters):
    """FedMF has no parameters of its own."""


@dataclass(frozen=True)
class FedMF(RowRecipe):
    """Full item factors: N*d values per contribution."""

    parameters: FedMFParameters
    name: str = "fedmf"


_RECOMMENDED: Final = {"item_bias": "counts", "count_sums": 1, "batch_size": 32, "weight_decay": 0.005}
_STARTED: Final = {"item_bias": "counts", "learning_rate": 0.0001, "start_weight": 32.0}
"""The steps are small because user factors are long (`start_weight`): docs/recipes.md has what was measured."""

# `clip` and `row_clip` of fedmf and colr are a little above what 99 of 100 updates reach in the round where that is
# most, of the first twelve on validation rows of MovieLens-100K, FilmTrust and a sample of Gowalla, and the first eight
# of MovieLens-1M, so that a client that lies adds little more than they do. Largest value 1.07, 0.50, 0.44 and 1.28
# (colr), 0.74, 0.58, 0.48 and 0.73 (fedmf); root mean square of the rows' norms 0.36, 0.18, 0.18 and 0.38, 0.62, 0.48,
# 0.46 and 0.60.
FEDMF_ENTRY: Final = RecipeEntry(
    name="fedmf",
    text="whole change of the item factors (FedMF)",
    parameters=FedMFParameters,
    make=FedMF,
    client_side="client_sdk.training.factors:client_side",
    source="Chai et al., 2019",
    defaults=TaskDefaults(
        recommended={**_RECOMMENDED, "clip": 0.8, "row_clip": 0.7, "server_rate": 4.0},
        started={**_STARTED, "server_rate": 1.0},
        paper=TOUCHED_ROWS,
        planned=lambda items: {"items": items, "dim": 32},
        in_groups=True,
    ),
)


class LowRankParameters(NormalisedParameters):
    """The shape of the item factors, and the rank."""

    rank: int = Field(default=4, ge=1, description="Rank r to which each client's change and their mean are reduced.")

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        if self.rank > self.dim:
            raise ValueError(f"rank {self.rank} is greater than dim {self.dim}: nothing would be compressed")
        return self


def low_rank(rows: NDArray[np.floating], rank: int) -> Floats:
    """Return the matrix of rank <= `rank` nearest to `rows` (k, d), float64 (k, d): its truncated SVD.

    Eckart and Young (1936). It is rows V V^T, with V the `rank` leading eigenvectors of rows^T rows (the right singular
    vectors). Raises `ParameterError` for values that are not finite.
    """
    exact = np.asarray(rows, dtype=np.float64)
    check_finite(exact, "an update")
    leading = np.linalg.eigh(exact.T @ exact)[1][:, -rank:]
    return np.asarray(exact @ leading @ leading.T)


@dataclass(frozen=True)
class SVD(RowRecipe):
    """FedMF with compressed changes: N*d values of rank r per contribution."""

    parameters: LowRankParameters
    name: str = "svd"

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Raise `ParameterError`: the recipe needs plain sums, which have no noise."""
        return super(RowRecipe, self).sensitivity(sum_index)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the best rank-r part of the client's rows (an `Update`)."""
        update = local.update
        if update.values.ndim == 2:  # `dense_rows` raises for other shapes
            compressed = low_rank(update.values, self.parameters.rank).astype(np.float32)
            local = replace(local, update=Update(update.items, compressed))
        return super().contribute(state, spec, local)

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return the best rank-r part of the mean change of every row, float64 (items, dim)."""
        return low_rank(self.mean_update(state, total, contributions), self.parameters.rank)


SVD_ENTRY: Final = replace(
    FEDMF_ENTRY,
    name="svd",
    text="truncated SVD of the change: a baseline for plain sums",
    parameters=LowRankParameters,
    make=SVD,
    needs=frozenset({"clear contributions"}),
    why_not="each client's factors U and V must be multiplied before they are added, which is not possible with "
    "encrypted or masked factors, and compressing the sum again would need the SVD of an encrypted matrix, an open "
    "problem (Nguyen et al., WWW 2024, section 3.2 and appendix C)",
    source="Nguyen et al., WWW 2024, section 3.2",
    defaults=TaskDefaults(paper=TOUCHED_ROWS),
)


class CoLRParameters(LowRankParameters):
    """CoLR's parameters: the shape of the item factors and the rank."""

    rank: int = Field(default=4, ge=1, description="Rank r of the change: clients send N*r values instead of N*d.")
    row_clip: Clip = Field(
        default=1.0,
        description="Bound on the root mean square of the L2 norms of an update's rows of A; a longer update is scaled "
        "down as a whole.",
    )


@lru_cache(maxsize=8)
def shared_projection(seed: bytes, rank: int, dim: int) -> NDArray[np.float32]:
    """Return B, float32 (rank, dim), read-only: orthonormal rows times sqrt(dim/rank), from the round's public seed.

    The newest are kept, because all clients of a process need the same one in a round.

    The released code draws N(0,1), takes the SVD and keeps U V^T sqrt(d/r) ("orthnorm"); the paper's theory has
    i.i.d. N(0, 1/r) entries. Both have E[B^T B] = I.
    """
    left, _, right = np.linalg.svd(normals(seed, "projection", rank * dim).reshape(rank, dim), full_matrices=False)
    projection = np.asarray(left @ right * np.sqrt(dim / rank), dtype=np.float32)
    projection.flags.writeable = False
    return projection


@dataclass(frozen=True)
class CoLR(RowRecipe):
    """Low-rank change: N*r values per contribution."""

    parameters: CoLRParameters
    name: str = "colr"

    @property
    def width(self) -> int:
        """r: a row of A."""
        return self.parameters.rank

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        return shared_projection(spec.seed, self.parameters.rank, self.parameters.dim)

    def farthest_step(self, state: FactorState, reach: Reach) -> Floats | float:
        """Return that of A times sqrt(d/r), the norm of B."""
        return super().farthest_step(state, reach) * float(np.sqrt(self.parameters.dim / self.parameters.rank))

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return A B, float64 (items, dim), with A the mean of the clients' A_u."""
        projection = shared_projection(spec.seed, self.parameters.rank, self.parameters.dim)
        return np.asarray(self.mean_update(state, total, contributions, spec.noise) @ projection.astype(np.float64))


ENTRY: Final = replace(
    FEDMF_ENTRY,
    name="colr",
    text="low-rank change of the item factors (CoLR)",
    parameters=CoLRParameters,
    make=CoLR,
    source="Nguyen et al., WWW 2024, eq. 5 to 7",
    defaults=TaskDefaults(
        recommended={**_RECOMMENDED, "clip": 1.3, "row_clip": 0.4},
        started=_STARTED,
        paper=TOUCHED_ROWS,
        planned=lambda items: {"items": items, "rank": 4},
        in_groups=True,
    ),
)


_CLIENTS: Final = "clients"  # name of the segment that counts a block's contributions


class SCoLRParameters(CoLRParameters):
    """SCoLR's parameters; `rank` is the shared rank r."""

    levels: int | None = Field(
        default=None,
        ge=1,
        description="Number L of different ranks that clients draw, at most rank. In a round, clients of a rank that "
        "fewer than min_clients, a quarter more and one draw have the next lower one: in a small cohort all have the "
        "lowest, ceil(rank / L). Unset: rank, as in the paper.",
    )

    @model_validator(mode="after")
    def _levels_fit(self) -> Self:
        if self.levels is not None and self.levels > self.rank:
            raise ValueError(f"levels {self.levels} is greater than rank {self.rank}")
        return self

    @property
    def edges(self) -> tuple[int, ...]:
        """0, then the rank of each level, ascending."""
        levels = self.levels or self.rank
        return tuple(-(-level * self.rank // levels) for level in range(levels + 1))


def client_level(spec: RoundSpec, client_id: str, levels: int) -> int:
    """Return the level that the client draws in this round, uniform in 1..levels."""
    seed = derive_seed(spec.seed, "scolr level", client_id)
    return max(1, int(np.ceil(uniforms(seed, "level", 1)[0] * levels)))


@dataclass(frozen=True)
class SCoLR(FactorRecipe):
    """One block per level: its columns of A, N values each, and the number of clients."""

    parameters: SCoLRParameters
    name: str = "scolr"

    def warnings(self) -> tuple[str, ...]:
        own = (
            "Which columns a client trains is public: it follows from the round's seed, the client's id and the levels "
            "in use, which the server announces."
        )
        return (own, *self.parameters.touch_warnings())

    def change_layout(self) -> VectorLayout:
        """Return a block for each level: columns of A (one behind the other), clients and, if any, touch counts."""
        p = self.parameters
        counts = (Segment(_CLIENTS, 1, 1.0, integral=True), *touch_segments(p))
        blocks = (
            Block(f"level {level}", (Segment("update", p.items * (b - a), p.clip, norm=p.longest_update), *counts))
            for level, (a, b) in enumerate(pairwise(p.edges), start=1)
        )
        return VectorLayout(tuple(blocks), sum_class=TRAINED)

    def most_levels(self, sum_index: int) -> int:
        return 0 if sum_index <= self.parameters.counting else len(self.parameters.edges) - 1

    def levels_in_use(self, spec: RoundSpec, clients: Sequence[str], min_clients: int) -> tuple[int, ...]:
        most = self.most_levels(spec.sum_index)
        return levels_in_use((client_level(spec, each, most) for each in clients), min_clients) if most else ()

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the route to the blocks up to the client's level: the one that it draws, lowered to one in use."""
        most = self.most_levels(spec.sum_index)
        if not most:
            return whole_route(self.layout(spec.sum_index))
        return lowered(client_level(spec, client_id, most), spec.levels)

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return the rows of B that belong to this client's columns, float32 (r_u, d)."""
        p = self.parameters
        return shared_projection(spec.seed, p.rank, p.dim)[: p.edges[self.route(spec, client_id)]]

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the client's columns of A (rows of an `Update`), level by level."""
        p, level = self.parameters, self.route(spec, local.client_id)
        update, clipped, scaled = bounded(local.update, p)
        rows, touched = dense_rows(update, p.items, p.edges[level])
        shared = {_CLIENTS: np.ones(1)} | ({TOUCHED: touched} if p.divides_by == "touched" else {})
        blocks = self.changes.blocks[:level]
        columns = [np.ascontiguousarray(rows[:, a:b].T) for a, b in pairwise(p.edges[: level + 1])]
        vectors = [block.join({"update": own} | shared) for block, own in zip(blocks, columns, strict=True)]
        return replace(clip_blocks(blocks, vectors), clipped=clipped, scaled=scaled)

    def farthest_step(self, state: FactorState, reach: Reach) -> Floats | float:
        """Return that of A, whose columns have divisors of their own, times sqrt(d/r), the norm of B."""
        p = self.parameters
        return p.clip * float(np.sqrt(p.dim)) * most_of_mean(p, state, reach)

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return A B, float64 (items, dim), with each column of A divided for the clients that trained it."""
        p, layout, mean = self.parameters, self.changes, []
        for block, values in zip(layout.blocks, layout.split(total), strict=True):
            parts = block.split(values)
            found = divisors(p, state, round(parts[_CLIENTS][0]), parts.get(TOUCHED))
            mean.append(parts["update"].reshape(-1, p.items) / found)
        projection = shared_projection(spec.seed, p.rank, p.dim).astype(np.float64)
        return np.asarray(np.concatenate(mean).T @ projection)


SCOLR_ENTRY: Final = replace(
    FEDMF_ENTRY,
    name="scolr",
    text="low-rank change, with a rank of each client's own (SCoLR)",
    parameters=SCoLRParameters,
    make=SCoLR,
    needs=frozenset({"dense", "checked routes"}),
    why_not="a sum shows the columns of clients whose rank few others have, and clients check that before the sum is "
    "opened only in masked rounds",
    source="Nguyen et al., WWW 2024, section 4.4",
    defaults=TaskDefaults(recommended=_RECOMMENDED, started=_STARTED, paper=TOUCHED_ROWS),
)
