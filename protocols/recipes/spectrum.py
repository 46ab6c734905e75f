"""The server's linear algebra: subspace iteration on a symmetric matrix P of which only products P Q are known.

Halko, Martinsson and Tropp, "Finding structure with randomness" (SIAM Review 2011), algorithm 4.4 with one QR per
iteration, as PriviRec distributes it (theorem 3.2). Everything is float64. Signs are normalised, so that the vectors
do not depend on the LAPACK library's choice of signs.

**EASE** (Steck, WWW 2019) in closed form from a spectrum: what the filter `ease` and the spectral start share.

Steck's B = I - G diag(G)^-1 with G = (P + l I)^-1 (eq. 8), of the scaled rows in place of R; the scale of a user's row
changes no order. With P = V diag(s^2) V^T, V orthonormal,

    w = s^2 / (s^2 + l)      G = (I - V diag(w) V^T) / l      diag(G)_i = (1 - sum_k V_ik^2 w_k) / l

so no items x items matrix is made. For an item j that a user does not have, with its row x scaled by D_i^-b,

    score_j = d_j^b (x V diag(w) V^T)_j / (1 - sum_k V_jk^2 w_k)

which is a product of a user's and an item's factor.

**Noise.** With noise N of deviation s in each value of a sum, Y = P Q + N. The singular values of N alone are between
s (sqrt(m) - sqrt(K)) and s (sqrt(m) + sqrt(K)), about s sqrt(m): a direction of Y below that is more noise than P.

**Triangle.** A symmetric items x items matrix is held as its upper triangle, row by row: (0,0), (0,1), ... (0,m-1),
(1,1), ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import normals
from protocols.layout import Floats


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Approximate eigenvectors and eigenvalues of P."""

    vectors: Floats
    """float64 (m, K), orthonormal columns."""
    eigenvalues: Floats
    """float64 (K,), none negative."""


def start_basis(seed: bytes, items: int, columns: int) -> Floats:
    """Return Q_0, float64 (items, columns): an orthonormal basis of a Gaussian subspace drawn from `seed`."""
    return orthonormal(gaussian(seed, items, columns))


def gaussian(seed: bytes, items: int, columns: int, lengths: Floats | None = None) -> Floats:
    """Return the draws that `start_basis` makes orthonormal, float64 (items, columns).

    lengths: standard deviation of each row, float64 (items,); None: all are equal.
    """
    drawn = normals(seed, "start of the power iteration", items * columns).reshape(columns, items).T
    return drawn if lengths is None else drawn * lengths[:, None]


def orthonormal(vectors: Floats) -> Floats:
    """Return an orthonormal basis of the columns of `vectors`, float64 (m, K); column k is of the first k of them."""
    return _signed_qr(vectors)[0]


def completed(vectors: NDArray[np.floating], columns: int) -> Floats:
    """Return an orthonormal basis, float64 (m, columns), of the first columns of `vectors` that are not 0, (m, any).

    What is missing are public random directions.
    """
    own = vectors[:, np.linalg.norm(vectors, axis=0) > 0][:, :columns].astype(np.float64)
    return orthonormal(np.hstack([own, start_basis(bytes(32), len(vectors), columns)]))[:, :columns]


def iterate(product: Floats) -> Spectrum:
    """Return the next Q and |diag R| as eigenvalues, from Q, R = QR(P Q_old) of `product` (m, K) (PriviRec, eq. 17).

    The first k columns equal those of an iteration with k columns: a column of Q depends only on the columns before it.
    """
    vectors, triangle = _signed_qr(product)
    return Spectrum(vectors, np.diag(triangle).copy())


def ritz(basis: Floats, product: Floats) -> Spectrum:
    """Return the Ritz vectors and values of P within span(`basis`), largest first, from `product` = P `basis`.

    Rayleigh-Ritz: H = Q^T P Q = U L U^T needs no further sum; the vectors are Q U, the values L (Halko et al., section
    5.3, for symmetric P). H is symmetrised first, because rounding makes the sum only nearly symmetric.
    """
    small = basis.T @ product
    values, rotation = np.linalg.eigh((small + small.T) / 2)
    best = np.argsort(-values, kind="stable")
    rotation = rotation[:, best]
    peaks = rotation[np.abs(rotation).argmax(axis=0), np.arange(best.size)]
    return Spectrum(basis @ (rotation * np.where(peaks < 0, -1.0, 1.0)), np.maximum(values[best], 0.0))


def outside(asked: Floats, vectors: Floats) -> Floats:
    """Return an orthonormal basis, float64 (m, K), of what span(`vectors`) has outside span(`asked`).

    asked: (m, any), vectors: (m, K), both with orthonormal columns. The projection is made twice, because once loses
    digits where the spans are close (Giraud, Langou and Rozloznik, 2005).
    """
    left = vectors - asked @ (asked.T @ vectors)
    left = _signed_qr(left)[0]
    return _signed_qr(left - asked @ (asked.T @ left))[0]


def nystroem_factor(asked: Floats, products: Floats) -> Floats:
    """Return F of P ~ F F^T = Y (Q^T Y)^+ Y^T for Q, `asked` (m, M), and Y = P Q, `products` (m, M); float64 (m, any).

    Halko et al., section 5.5 (equation 5.15), for a P that has no negative eigenvalue. Directions in which Q^T Y is
    below 1e-6 of its largest eigenvalue are left out, as rounding decides about them.
    """
    small = asked.T @ products
    values, rotation = np.linalg.eigh((small + small.T) / 2)
    found = values > _ROUNDING * max(float(values[-1]), 0.0)
    return np.asarray(products @ (rotation[:, found] / np.sqrt(values[found])))


def of_factor(factor: Floats, columns: int) -> Spectrum:
    """Return the spectrum of F F^T, largest first, for `factor` F (m, any); zeros up to `columns` vectors."""
    vectors, lengths, _ = np.linalg.svd(factor, full_matrices=False)
    peaks = vectors[np.abs(vectors).argmax(axis=0), np.arange(lengths.size)]
    missing = columns - lengths.size
    return Spectrum(
        np.pad(vectors * np.where(peaks < 0, -1.0, 1.0), ((0, 0), (0, missing))), np.pad(lengths**2, (0, missing))
    )


def shrunk_rows(own: Floats, most: Floats) -> Floats | None:
    """Return the diagonal of S, float64 (m,) in (0, 1], with which no diagonal entry of S P S is above `most`; None
    where none is.

    own, most: P's diagonal and the largest that it may have, float64 (m,), above 0. An entry of a P without negative
    eigenvalues is at most the root of the product of two diagonal ones, so a row that is not of its item's owners loses
    what they cannot have. To scale a matrix back to known variances once its eigenvalues were corrected is the spectral
    method of Rebonato and Jaeckel ("The most general methodology to create a valid correlation matrix", Journal of Risk
    2(2), 1999).
    """
    above = own > most * (1.0 + _ROUNDING)
    if not above.any():
        return None
    return np.sqrt(np.divide(most, own, out=np.ones_like(own), where=above))


def above_noise(product: Floats, noise: float) -> Spectrum:
    """Return the spectrum of Y = P Q + N, `product` (m, K), without what is noise; `noise`: deviation of N's values.

    The vectors are the left singular vectors of Y, the eigenvalues its singular values, largest first. Those below
    `noise` sqrt(m) are 0, except for the largest: its vector is what noise leaves of popularity. Unlike the Ritz
    vectors, these have the noise of this sum only, not that of the sums before it.
    """
    values, rotation = np.linalg.eigh(product.T @ product)
    lengths = np.sqrt(np.maximum(values[::-1], 0.0))
    vectors, _ = _signed_qr(product @ rotation[:, ::-1])
    lengths[1:][lengths[1:] < noise * np.sqrt(len(product))] = 0.0
    return Spectrum(vectors, lengths)


def symmetric_above_noise(upper: Floats, items: int, noise: float) -> Spectrum:
    """Return the spectrum of P from its upper triangle, float64 (m (m+1) / 2,), with noise in each value of it.

    All of P's eigenvectors above the noise, largest first, at least one. The noise alone has eigenvalues up to
    2 `noise` sqrt(m). An eigenvalue x of P above `noise` sqrt(m) appears as x + noise^2 m / x (Benaych-Georges and
    Nadakuditi, Advances in Mathematics 2011, theorem 2.1); this returns x where it is 1.3 times that threshold.
    """
    whole = np.zeros((items, items))
    whole[np.triu_indices(items)] = upper
    values, vectors = np.linalg.eigh(whole, "U")
    values, vectors = values[::-1], vectors[:, ::-1]
    level = noise * np.sqrt(items)
    shrunk = (values + np.sqrt(np.maximum(values**2 - 4 * level**2, 0.0))) / 2
    kept = max(1, int(np.count_nonzero((shrunk >= _CLEARLY * level) & (values > 0))))
    return Spectrum(vectors[:, :kept], np.maximum(shrunk[:kept], 0.0))


def captured(old: Floats, new: Floats) -> float:
    """Return ||old^T new||_F^2 / K of two orthonormal bases (m, K): the share of the new subspace within the old."""
    return float(min(1.0, np.square(old.T @ new).sum() / max(1, new.shape[1])))


def relative_change(old: Floats, new: Floats) -> float:
    """Return ||new - old|| / ||new|| of two spectra (K,); 0 if `new` is zero."""
    size = float(np.linalg.norm(new))
    return float(np.linalg.norm(new - old)) / size if size else 0.0


def _signed_qr(matrix: Floats) -> tuple[Floats, Floats]:
    """Return Q, R of the QR decomposition with no negative entry on R's diagonal."""
    vectors, triangle = np.linalg.qr(matrix)
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return vectors * signs, triangle * signs[:, None]


_COLUMNS: Final = 80
_KRYLOV_COLUMNS: Final = 30
_ROUNDING: Final = 1e-6
_SMALLEST: Final = 0.3
_CLEARLY: Final = 1.3


def chosen_weight(singular_values: NDArray[np.floating], krylov: bool = False) -> float:
    """Return l, the L2 weight on B, for singular values s, (K,), of R~: K min(s)^2 / 80, and 0.3 at least.

    krylov: whether they are of all directions of a block Krylov space, of which the last are smaller: / 30.

    With values of 0, of vectors that noise hides, it is min(s)^2 of the others: about the noise. The larger the last
    value, the more of P the vectors leave out. Chosen on validation rows by NDCG@20 over all items, with a = 1/4 and
    b = 5/16: docs/results.md has what other weights give.
    """
    found = singular_values[singular_values > 0]
    smallest = float(found.min()) if found.size else 0.0
    columns = _KRYLOV_COLUMNS if krylov else _COLUMNS
    share = singular_values.size / columns if found.size == singular_values.size else 1.0
    return max(_SMALLEST, smallest**2 * share)


def shares_and_diagonal(
    vectors: NDArray[np.floating], singular_values: NDArray[np.floating], weight: float
) -> tuple[Floats, Floats]:
    """Return w, float64 (K,), and l diag(G), float64 (m,), for V (m, K), s (K,) and l = `weight` > 0."""
    values = singular_values.astype(np.float64) ** 2
    shares = values / (values + weight)
    return shares, 1.0 - np.square(vectors.astype(np.float64)) @ shares


def triangle_length(items: int) -> int:
    """Return m (m + 1) / 2, the number of entries of the upper triangle."""
    return items * (items + 1) // 2


def triangle_places(members: NDArray[np.integer], items: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions in the triangle of all pairs (i, j), i <= j, of `members`, and which two members each is.

    members: (k,) distinct item numbers. Returns positions, int64 (p,) ascending, and pairs of indices into `members`,
    int64 (2, p), with p = k (k + 1) / 2.
    """
    order = np.argsort(members, kind="stable")
    ascending = members[order].astype(np.int64)
    first, second = np.triu_indices(order.size)
    low, high = ascending[first], ascending[second]
    diagonal = low * items - low * (low - 1) // 2
    return diagonal + high - low, np.stack([order[first], order[second]])
