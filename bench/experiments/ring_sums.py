"""Sums of PriviRec in the ring of masked sums, the published filters, and the filters with all data in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.sparse import csr_array, triu, vstack
from scipy.sparse.linalg import svds

from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.training.graph_filters import BSPM, FILTERS, GFCF, Filter, TurboCF
from protocols.errors import ParameterError
from protocols.fixed_point import FixedPoint

__all__ = [
    "PRESETS",
    "BspmPass",
    "Central",
    "RingSums",
    "Subspace",
    "blocks",
    "exact_vectors",
    "normalised",
    "power_iteration",
    "preset",
    "rayleigh_ritz",
    "start_vectors",
]


# --- Settings of the graph filters from their authors' code, for the data sets of their papers


_GF_CF_PRESETS: Final[Mapping[str, GFCF]] = {"amazon-book": GFCF(alpha=0.0)}
"""Settings of the released code for data sets that differ from the defaults."""

_TURBO_CF_PRESETS: Final[Mapping[str, TurboCF]] = {
    "gowalla": TurboCF(user_exponent=0.6, power=0.7, filter=1),
    "yelp2018": TurboCF(user_exponent=0.6, power=1.0, filter=2),
    "amazon-book": TurboCF(user_exponent=0.5, power=1.4, filter=1),
}
"""Settings of the released code, by data set."""

_GOWALLA: Final = BSPM(early_merge=True, solver="rk4", sharpening_time=2.5, beta=0.2, ideal_dims=448)
_YELP: Final = BSPM(early_merge=True, sharpening_time=1.2, beta=0.3, ideal_dims=384, average_points=True)
_AMAZON: Final = BSPM(early_merge=False, solver="rk4", sharpening_time=2.2, sharpening_steps=2, beta=0.0)

_BSPM_EM_PRESETS: Final[Mapping[str, BSPM]] = {
    "amazon-book": replace(_AMAZON, early_merge=True),
    "gowalla": _GOWALLA,
    "yelp2018": _YELP,
}
"""Settings of the released code, by data set. On amazon-book both variants are the same, because beta is 0."""

_BSPM_LM_PRESETS: Final[Mapping[str, BSPM]] = {
    "amazon-book": _AMAZON,
    "gowalla": replace(_GOWALLA, early_merge=False),
    "yelp2018": replace(_YELP, early_merge=False),
}
"""amazon-book: of the released code. gowalla and yelp2018: not published; those of early merge give the paper's figure
on gowalla (docs/results.md)."""

_PRESETS: Final[Mapping[str, Mapping[str, Filter]]] = {
    "bspm-em": _BSPM_EM_PRESETS,
    "bspm-lm": _BSPM_LM_PRESETS,
    "gf-cf": _GF_CF_PRESETS,
    "turbo-cf": _TURBO_CF_PRESETS,
}


PRESETS: Final = ("amazon-book", "gowalla", "yelp2018")
"""Data sets for which there are published settings."""


def preset(name: str, dataset: str) -> Filter:
    """Return the filter `name` with its settings for `dataset`, or with its defaults if there are none.

    Raises `ParameterError` for an unknown filter.
    """
    if name not in FILTERS:
        raise ParameterError(f"unknown graph filter {name!r}: choose one of {', '.join(sorted(FILTERS))}")
    return _PRESETS.get(name, {}).get(dataset, FILTERS[name])


# ---


@dataclass(eq=False)
class BspmPass:
    """`filters` by name, each with its V. smooth: multiplies (m, n) by P and sets the dtype of the computation."""

    filters: Mapping[str, tuple[BSPM, np.ndarray]]
    smooth: Callable[[np.ndarray], np.ndarray]
    linear: Callable[[csr_array], np.ndarray]
    """Maps rows (users, m) to R P, dense."""
    item_degrees: np.ndarray

    def __post_init__(self) -> None:
        assert all(f.sharpening_steps == 1 and not f.average_points for f, _ in self.filters.values())
        self._roots = np.sqrt(self.item_degrees)
        self._ideals = {name: self._ideal(*chosen) for name, chosen in self.filters.items()}

    def _ideal(self, bspm: BSPM, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(m, K) and (K, m), whose product maps R to its ideal part, sharpened if the filter merges early."""
        kept = vectors[:, : bspm.ideal_dims]
        inverse = np.divide(1, self._roots, out=np.zeros_like(self._roots), where=self._roots > 0)
        left, right = inverse[:, None] * kept, (kept * self._roots[:, None]).astype(vectors.dtype)
        if bspm.early_merge:
            right = self._combined(bspm, self._sequence(right, len(bspm.step_coefficients)))
        return left.astype(vectors.dtype), np.ascontiguousarray(right.T, dtype=vectors.dtype)

    def _sequence(self, signals: np.ndarray, length: int) -> Iterator[np.ndarray]:
        """Y, P Y, P^2 Y, ... of columns (m, n)."""
        for power in range(length):
            if power:
                signals = self.smooth(signals)
            yield signals

    @staticmethod
    def _combined(bspm: BSPM, sequence: Iterator[np.ndarray]) -> np.ndarray:
        return sum(
            np.asarray(c, signals.dtype) * signals for c, signals in zip(bspm.step_coefficients, sequence, strict=False)
        )

    def scores(self, rows: csr_array) -> Iterator[tuple[str, np.ndarray]]:
        """(name, scores (users, m)) of every filter for `rows`."""
        length = max(len(bspm.step_coefficients) for bspm, _ in self.filters.values())
        sequence = list(self._sequence(np.ascontiguousarray(self.linear(rows).T), length))
        for name, (bspm, vectors) in self.filters.items():
            left, right = self._ideals[name]
            sharpened = self._combined(bspm, iter(sequence)).T
            yield name, sharpened + np.asarray(bspm.beta, vectors.dtype) * ((rows.astype(vectors.dtype) @ left) @ right)


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
    before: np.ndarray
    """(m, K): the vectors that the last product was taken with."""
    product: np.ndarray
    """(m, K): P times `before`."""


def normalised(interactions: Interactions, user_exponent: float = 0.5) -> csr_array:
    """R~ = D_u^-a R D_i^(a-1), float64 CSR (n_users, n_items)."""
    rows = interaction_rows(interactions).astype(np.float64)
    with np.errstate(divide="ignore"):  # rows and columns without an entry are not scaled
        by_user = interactions.user_degrees().astype(np.float64) ** -user_exponent
        by_item = interactions.item_degrees().astype(np.float64) ** (user_exponent - 1)
    rows.data *= np.repeat(by_user, np.diff(rows.indptr)) * by_item[rows.indices]
    return rows


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
    last = product(vectors)
    found, triangle = np.linalg.qr(last)
    return Subspace(found, np.abs(np.diag(triangle)), vectors, last)


def rayleigh_ritz(subspace: Subspace, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The best `keep` eigenvectors (m, keep) and eigenvalues of P within the last Q, without another sum.

    Q^T P Q = U L U^T follows from the last sum P Q; the vectors are Q U.
    """
    small = subspace.before.T @ subspace.product
    values, rotation = np.linalg.eigh((small + small.T) / 2)
    best = np.argsort(-values)[:keep]
    return subspace.before @ rotation[:, best], values[best]


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
        ring = FixedPoint.widest(self.bits, 1.0)
        ring.require(self.most_contributors)
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
        ring = FixedPoint.widest(self.bits, self.gram_bound())
        ring.require(self.most_contributors)
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


def exact_vectors(train: Interactions, columns: int) -> np.ndarray:
    """The top right singular vectors of R~ by ARPACK, float64 (m, columns), best first."""
    _, values, transposed = svds(normalised(train), k=columns, random_state=0, return_singular_vectors="vh")
    return transposed[np.argsort(-values)].T.copy()


class Central:
    """Parts of the users' scores, float64 (users, m), from the interaction matrix itself."""

    def __init__(self, train: Interactions) -> None:
        self.rows = interaction_rows(train).astype(np.float64)
        self.r = normalised(train)
        self.roots = np.sqrt(train.item_degrees().astype(np.float64))

    def product(self, vectors: np.ndarray) -> np.ndarray:
        """P Q for Q (m, K), without forming P = R~^T R~."""
        return self.r.T @ (self.r @ vectors)

    def linear(self, users: np.ndarray) -> np.ndarray:
        """The linear part R P of `users`, dense (users, m)."""
        return (self.rows[users] @ self.r.T @ self.r).toarray()

    def ideal(self, users: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """The ideal part R D_i^-1/2 V V^T D_i^1/2 of `users`, (users, m)."""
        inverse = np.divide(1, self.roots, out=np.zeros_like(self.roots), where=self.roots > 0)
        return (self.rows[users] @ (inverse[:, None] * vectors)) @ (vectors.T * self.roots)

    def powered(self, turbo: TurboCF, train: Interactions) -> csr_array:
        """P with every entry raised to s. Only the filter's linear form, S = R P^s, is supported."""
        assert turbo.filter == 1
        r = normalised(train, turbo.user_exponent)
        gram = csr_array(r.T @ r)
        gram.data **= turbo.power
        return gram
