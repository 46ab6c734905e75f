"""Hashed subspaces of one long vector: nested, and computed on the fly instead of stored as matrices.

Desai et al., "Heterogeneous Federated Collaborative Filtering Using FAIR" (2023), section 4. An element a of the
vector theta (n,) lies in bucket h_p(a) = H(a) mod m_p of a space of m_p buckets, with a sign g(a) in {-1, +1}:

    project (eq. 4)    psi[j]   = sum of g(a) theta[a] over h_p(a) = j, / how many there are     (0 in an empty bucket)
    recover (eq. 5)    theta[a] = g(a) psi[h_p(a)]

Both take O(n) time. H and g are the same for all clients and rounds (consistent), and every m_p divides the next larger
one (collapsible, eq. 7), so that H(a) mod m_p = (H(a) mod m_q) mod m_p: a smaller space is a folded larger one.
Here m_p = q 2^(P-p) with q = floor(n / 2^P) for the largest compression 2^P in use: nested for every n, and at most
n / 2^p. The released code takes m_p = int(n / 2^p), which nests only while 2^p divides n, and adds 1e-3 to every
count, which shrinks what small buckets hold a little at each projection; neither is done here.

H(a) is word a of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), a generator whose words can be computed one by one,
so a bucket is computed when an element is used, and no table is stored. The hash is public and hides nothing.

**The averaging step** of the server for one item table, once every device group's sum is in (Algorithm 1). Group c
holds psi_c = projection of theta onto its space (eq. 4), sends D_c = sum of w_i delta_i with W_c = sum of w_i, and S_c
is recovery from its space (eq. 5). With W = sum of W_c:

    replace (paper)    theta <- sum_c S_c (W_c psi_c + D_c) / W
    add                theta <- theta + sum_c S_c D_c / W

Spaces are nested (eq. 7): the vectors of all hashed groups are added up in the largest hashed space and recovered once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import derive_seed
from protocols.errors import ParameterError
from protocols.layout import Floats

CHUNK: Final = 2**16  # elements processed at a time in a pass over all n, to limit memory

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _ONE = (np.uint64(bits) for bits in (30, 27, 31, 1))


def hash_key(seed: bytes, table: str) -> int:
    """Return the 64-bit initial state of the hash of `table`, derived from the public seed."""
    return int.from_bytes(derive_seed(seed, "fair hash", table)[:8], "little")


def splitmix64(key: int, places: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return words number `places` (k,), from 0, of the generator with initial state `key`, uint64 (k,)."""
    words = places.astype(np.uint64)
    words += _ONE
    words *= _GOLDEN
    words += np.uint64(key)
    words ^= words >> _S30
    words *= _FIRST
    words ^= words >> _S27
    words *= _SECOND
    words ^= words >> _S31
    return words


def bucket_counts(elements: int, capacities: tuple[int, ...]) -> tuple[int, ...]:
    """Return m_p for every capacity p (memory 1 / 2^p); n for p = 0, where nothing is hashed.

    Raises `ParameterError` if the smallest space would have no bucket.
    """
    largest = max(capacities)
    unit = elements >> largest
    if largest and not unit:
        raise ParameterError(f"{elements} values cannot be held in 1/{2**largest} of their memory")
    return tuple(unit << (largest - p) if p else elements for p in capacities)


def chunks(count: int) -> Iterator[slice]:
    """Yield slices of at most `CHUNK` elements that cover range(count)."""
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


@dataclass(frozen=True)
class Subspace:
    """A space with `buckets` buckets for a vector of `elements` values; the vector itself if the two are equal."""

    elements: int
    buckets: int
    key: int
    """The hash's initial state, see `hash_key`. Methods need no more memory than their arguments and a chunk."""

    @property
    def whole(self) -> bool:
        """Whether the space is the vector itself, without hash and signs."""
        return self.buckets == self.elements

    def places(self, elements: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return bucket and sign of each element, int64 and float32, both of the shape of `elements`."""
        if self.whole:
            return elements.astype(np.int64), np.ones(elements.shape, dtype=np.float32)
        words = splitmix64(self.key, elements)
        signs = (words & _ONE).astype(np.float32)
        signs *= 2
        signs -= 1
        words >>= _ONE
        words %= np.uint64(self.buckets)
        return words.view(np.int64), signs

    def sums(self, vector: NDArray[np.floating]) -> Floats:
        """Return S^T theta of a whole vector (elements,), float64 (buckets,)."""
        totals = np.zeros(self.buckets)
        for part in chunks(self.elements):
            self.add(vector[part], totals, part)
        return totals

    def add(self, values: NDArray[np.floating], totals: Floats, elements: slice) -> None:
        """Add the part of `sums` of a run of elements (slice without step) with these values to `totals` (buckets,)."""
        places, signs = self.places(np.arange(elements.start, elements.stop))
        np.add.at(totals, places, (values * signs).astype(np.float64))

    def counts(self) -> Floats:
        """Return S^T 1, the number of elements in each bucket, float64 (buckets,), read-only."""
        return _counts(self)

    def project(self, vector: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return psi of a whole vector (elements,), float32 (buckets,): the nearest point of the space (eq. 3, 4)."""
        if self.whole:
            return vector.astype(np.float32)
        return means(self.sums(vector), self.counts())

    def recover(self, psi: NDArray[np.floating], elements: slice) -> NDArray[np.float32]:
        """Return theta of a run of elements (slice without step), float32, from psi (buckets,) (eq. 5)."""
        if self.whole:
            return psi[elements].astype(np.float32)
        places, signs = self.places(np.arange(elements.start, elements.stop))
        return np.asarray(psi[places] * signs, dtype=np.float32)


@lru_cache(maxsize=8)
def _counts(space: Subspace) -> Floats:
    counts = np.zeros(space.buckets)
    for part in chunks(space.elements):
        np.add.at(counts, space.places(np.arange(part.start, part.stop))[0], 1.0)
    counts.flags.writeable = False
    return counts


def means(totals: Floats, counts: Floats) -> NDArray[np.float32]:
    """Return sums / counts, float32; 0 for an empty bucket."""
    return np.asarray(totals / np.maximum(counts, 1.0), dtype=np.float32)


def fold(values: Floats, buckets: int) -> Floats:
    """Return the bucket sums of a larger space (m,) as bucket sums of a smaller one, float64 (buckets,) (eq. 7)."""
    return np.asarray(values.reshape(-1, buckets).sum(axis=0))


def unfold(psi: Floats, buckets: int) -> Floats:
    """Return a vector of a smaller space (m,) in a larger one, float64 (buckets,): every bucket's value is repeated."""
    return np.tile(psi, buckets // psi.size)


Mixing = Literal["replace", "add"]


@dataclass(frozen=True, eq=False)
class GroupSum:
    """The sum of one device group's contributions to one item table."""

    weight: float
    """W_c."""
    change: Floats
    """D_c, float64 (m_c,), m_c the buckets of the group's space; m_c = n where nothing is hashed."""


def average_table(
    theta: NDArray[np.float32], key: int, groups: Sequence[GroupSum], mixing: Mixing, out: NDArray[np.float32]
) -> None:
    """Write the table that follows `theta` (n,) into `out`, float32 (n,).

    key: of the table's hash, see `hash_key`. groups: one per device group, largest space first, with a positive total
    weight.
    """
    total_weight = sum(group.weight for group in groups)  # W
    whole = next((group for group in groups if group.change.size == theta.size), None)  # S_c is the identity
    hashed = [group for group in groups if group is not whole]
    replaced_weight = whole.weight if whole else 0.0  # a whole group's psi_c is theta; see _hashed_sum for the others
    theta_weight = total_weight if mixing == "add" else replaced_weight
    hashed_sum = _hashed_sum(theta, key, hashed, mixing) if hashed else None
    for part in chunks(theta.size):
        numerator = theta_weight * theta[part].astype(np.float64)
        if whole:
            numerator += whole.change[part]
        if hashed_sum:
            space, values = hashed_sum
            numerator += space.recover(values, part)  # eq. 5
        out[part] = numerator / total_weight


def _hashed_sum(
    theta: NDArray[np.float32], key: int, hashed: Sequence[GroupSum], mixing: Mixing
) -> tuple[Subspace, Floats]:
    """The largest space of the hashed groups, and in it their sum of W_c psi_c + D_c (mixing "add": of D_c)."""
    space = Subspace(theta.size, hashed[0].change.size, key)
    values = np.zeros(space.buckets)
    for group in hashed:
        values += unfold(group.change, space.buckets)
    if mixing == "replace":
        signed_sums, counts = space.sums(theta), space.counts()
        for group in hashed:
            buckets = group.change.size
            psi = means(fold(signed_sums, buckets), fold(counts, buckets))  # eq. 4, by eq. 7 from the largest space
            values += unfold(group.weight * psi.astype(np.float64), space.buckets)
    return space, values
