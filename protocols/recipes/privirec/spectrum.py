"""The server's linear algebra: subspace iteration on a symmetric matrix P of which only products P Q are known.

Halko, Martinsson and Tropp, "Finding structure with randomness" (SIAM Review 2011), algorithm 4.4 with one QR per
iteration, as PriviRec distributes it (theorem 3.2). Everything is float64. Signs are normalised, so that the vectors
do not depend on the LAPACK library's choice of signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import normals

__all__ = ["Spectrum", "captured", "iterate", "relative_change", "ritz", "start_basis"]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Approximate eigenvectors and eigenvalues of P.

    vectors: float64 (m, K), orthonormal columns. eigenvalues: float64 (K,), none negative.
    """

    vectors: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]


def start_basis(seed: bytes, items: int, columns: int) -> NDArray[np.float64]:
    """Return Q_0, float64 (items, columns): an orthonormal basis of a Gaussian subspace drawn from `seed`."""
    gaussian = normals(seed, "start of the power iteration", items * columns).reshape(columns, items).T
    return _signed_qr(gaussian)[0]


def iterate(product: NDArray[np.float64]) -> Spectrum:
    """Return the next Q and |diag R| as eigenvalues, from Q, R = QR(P Q_old) of `product` (m, K) (PriviRec, eq. 17).

    The first k columns equal those of an iteration with k columns: a column of Q depends only on the columns before it.
    """
    vectors, triangle = _signed_qr(product)
    return Spectrum(vectors, np.diag(triangle).copy())


def ritz(basis: NDArray[np.float64], product: NDArray[np.float64]) -> Spectrum:
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


def captured(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Return ||old^T new||_F^2 / K of two orthonormal bases (m, K): the share of the new subspace within the old."""
    return float(min(1.0, np.square(old.T @ new).sum() / new.shape[1]))


def relative_change(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Return ||new - old|| / ||new|| of two spectra (K,); 0 if `new` is zero."""
    size = float(np.linalg.norm(new))
    return float(np.linalg.norm(new - old)) / size if size else 0.0


def _signed_qr(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Q, R of the QR decomposition with no negative entry on R's diagonal."""
    vectors, triangle = np.linalg.qr(matrix)
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return vectors * signs, triangle * signs[:, None]
