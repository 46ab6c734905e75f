"""Sums of PriviRec in the ring of masked sums, the published filters, and the filters with all data in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.sparse import csr_array, triu, vstack

from client_sdk.lab import central
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.training.graph_filters import BSPM, GFCF, Filter, TurboCF
from protocols.sums.ring import FixedPoint

# --- Settings of the graph filters for Gowalla, from their authors' code

_BSPM: Final = BSPM(early_merge=True, solver="rk4", sharpening_time=2.5, beta=0.2, ideal_dims=448)
PRESETS: Final[Mapping[str, Filter]] = {
    "bspm_em": _BSPM,
    "bspm_lm": replace(_BSPM, early_merge=False),
    "gf_cf": GFCF(),
    "turbo_cf": TurboCF(user_exponent=0.6, power=0.7, filter=1),
}
"""Those of late merge are not published; those of early merge give the paper's figure (docs/results.md)."""


# --- PriviRec's three sums as a masked round computes them, modulo 2^bits, for all clients at once

CHUNK_VALUES: Final = 2_000_000  # float64 values of a chunk: 16 MB, which malloc recycles
COLUMNS: Final = 32  # of Q at a time


@dataclass(frozen=True, eq=False)
class Subspace:
    """The result of a power iteration."""

    vectors: np.ndarray
    """(m, K), orthonormal columns in the order of the QR: the first k are those of an iteration with k columns."""
    eigenvalues: np.ndarray
    """(K,), |diag R| of the last QR: PriviRec's eq. 17, an estimate of P's eigenvalues."""


def normalised(interactions: Interactions, user_exponent: float = 0.5) -> csr_array:
    """R~ = D_u^-a R D_i^(a-1), float64 CSR (n_users, n_items)."""
    return central.normalised(
        interaction_rows(interactions), interactions.item_degrees(), (user_exponent, 1 - user_exponent)
    )


def start_vectors(n_items: int, columns: int, seed: int) -> np.ndarray:
    """Gaussian columns of length 1, float64 (m, K): the first k do not depend on K.

    A column's length changes neither the span nor the QR of P times it, and for length 1 no entry of P q is beyond 1.
    """
    omega = np.random.default_rng(seed).standard_normal((columns, n_items)).T
    return omega / np.linalg.norm(omega, axis=0)


def power_iteration(
    product: Callable[[np.ndarray], np.ndarray], n_items: int, columns: int, iterations: int, seed: int
) -> Subspace:
    """Q <- QR(P Q), `iterations` >= 1 times (PriviRec, algorithm 1). product: maps Q to P Q."""
    vectors = start_vectors(n_items, columns, seed)
    for _ in range(iterations - 1):
        vectors, _ = np.linalg.qr(product(vectors))
    found, triangle = np.linalg.qr(product(vectors))
    return Subspace(found, np.abs(np.diag(triangle)))


@dataclass(eq=False)
class RingSums:
    """Sums of all users' contributions in a ring of `bits` bits, scaled by proven bounds (see `gram_bound`)."""

    interactions: Interactions
    bits: int
    user_exponent: float = 0.5
    clipped: int = 0
    """Number of clipped values; 0 if the bound holds."""
    max_error: float = 0.0
    """Largest error of an entry of P Q against float64 with the same Q, over all calls of `product`."""
    _rows: csr_array = field(init=False, repr=False)
    _columns: csr_array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rows = normalised(self.interactions, self.user_exponent)
        self._columns = csr_array(self._rows.T)  # by item, the users that have it

    def degrees(self) -> np.ndarray:
        """Item degrees, float64 (m,); integers, so their sum is exact in any ring that holds n_users."""
        counted = np.bincount(self.interactions.items, minlength=self.interactions.n_items)
        assert counted.max() < 2 ** (self.bits - 1)
        return counted.astype(np.float64)

    @property
    def most_contributors(self) -> int:
        """The largest item degree: only users that have item i round values of row i; all others add an exact 0."""
        return int(self.interactions.item_degrees().max())

    def product(self, vectors: np.ndarray) -> np.ndarray:
        """P Q for Q (m, K) sent as float32: the sum over u of r_u^T (r_u Q), float64 (m, K).

        |entry| <= ||P q|| <= 1, and so is every contribution's, since P's largest eigenvalue is 1 (a = 1/2).
        """
        ring = self._ring(1.0)
        total = np.empty(vectors.shape)
        for start in range(0, vectors.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            sent = vectors[:, part].astype(np.float32).astype(np.float64)
            profiles = self._rows @ sent  # r_u Q, which every device computes itself
            for items in blocks(self.interactions.item_degrees() * sent.shape[1]):
                block = self._columns[items]
                values = block.data[:, None] * profiles[block.indices]
                total[items, part] = ring.decode(self._added(ring, values, block.indptr))
            error = np.abs(total[:, part] - self._columns @ profiles).max()
            self.max_error = max(self.max_error, float(error))
        return total

    def _ring(self, bound: float) -> FixedPoint:
        """The ring of sums up to `bound`, with room for the rounding of every contribution."""
        ring = FixedPoint.widest(self.bits, bound)
        assert bound * ring.scale + self.most_contributors < 2 ** (self.bits - 1)
        return ring

    def _added(self, ring: FixedPoint, values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
        """Quantise every row of `values` and add them by item: ring elements (items, width)."""
        elements, clipped = ring.encode(values, 1.0)
        self.clipped += clipped
        ones = np.ones(elements.shape[0], dtype=ring.dtype)
        owner = csr_array((ones, np.arange(ones.size), indptr), shape=(indptr.size - 1, ones.size))
        return ring.reduce(owner @ elements)

    def gram_bound(self) -> float:
        """An upper bound of the entries of P: d^(2a-1) with the largest item degree d; 1 for a = 1/2.

        An entry is the sum of d_u^-2a (d_i d_j)^(a-1) over the at most min(d_i, d_j) users that have both.
        """
        return float(max(1.0, self.most_contributors ** (2 * self.user_exponent - 1)))

    def gram(self) -> csr_array:
        """P, float32 CSR (m, m): the sum of r_u^T r_u over pairs i <= j, mirrored."""
        ring = self._ring(self.gram_bound())
        upper = vstack([self._upper(ring, items) for items in self.pair_blocks()], format="csr")
        whole = csr_array(upper + triu(upper, 1, format="csr").T)
        whole.indices, whole.indptr = whole.indices.astype(np.int32), whole.indptr.astype(np.int32)
        return whole

    def _upper(self, ring: FixedPoint, items: slice) -> csr_array:
        """Rows `items` of the upper triangle, float32, decoded from the ring."""
        rows, columns, values, _ = self.pairs(items)
        elements, clipped = ring.encode(values, self.gram_bound())
        self.clipped += clipped
        shape = (items.stop - items.start, self.interactions.n_items)
        added = csr_array((elements, (rows, columns)), shape=shape)  # repeated positions are added, modulo 2^bits
        decoded = ring.decode(ring.reduce(added.data)).astype(np.float32)
        made = csr_array((decoded, added.indices, added.indptr), shape=shape)
        made.eliminate_zeros()
        return made

    def pair_blocks(self) -> Iterator[slice]:
        """Slices of items whose pairs fit in memory, for `pairs`."""
        return blocks((self._columns != 0).astype(np.int64) @ self.interactions.user_degrees())

    def pairs(self, items: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Contributions to rows `items` of the upper triangle: row (from 0), column, r_ui r_uj (float64), user."""
        block, whole = self._columns[items], self._rows
        starts, lengths = whole.indptr[block.indices], np.diff(whole.indptr)[block.indices]
        entry = np.repeat(np.arange(block.nnz), lengths)
        within = np.arange(entry.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        other = np.repeat(starts, lengths) + within
        rows = np.repeat(np.arange(items.stop - items.start), np.diff(block.indptr))[entry]
        columns = whole.indices[other]
        upper = columns >= rows + items.start
        entry, other = entry[upper], other[upper]
        return rows[upper], columns[upper], block.data[entry] * whole.data[other], block.indices[entry]


def blocks(sizes: np.ndarray) -> Iterator[slice]:
    """Slices of items with about CHUNK_VALUES values each, at least one item. sizes: number of values by item."""
    ends = np.cumsum(sizes)
    start = 0
    while start < sizes.size:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + CHUNK_VALUES, side="right")))
        yield slice(start, stop)
        start = stop


# ---


def product_of(interactions: Interactions) -> Callable[[np.ndarray], np.ndarray]:
    """The product P Q for Q (m, K) with the data in one place, float64, without forming P = R~^T R~."""
    r = normalised(interactions)
    return lambda vectors: r.T @ (r @ vectors)


def gram_of(interactions: Interactions, user_exponent: float = 0.5) -> csr_array:
    """P with the data in one place, computed in float64, float32 CSR (m, m)."""
    r = normalised(interactions, user_exponent)
    return csr_array(r.T @ r).astype(np.float32)
