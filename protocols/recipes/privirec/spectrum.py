"""The server's linear algebra: subspace iteration on a symmetric matrix P of which only products P Q are known.

Halko, Martinsson and Tropp, "Finding structure with randomness" (SIAM Review 2011), algorithm 4.4 with one QR an
iteration, as PriviRec distributes it (theorem 3.2). Everything is float64; signs are fixed, so that the same product
gives the same vectors whatever the LAPACK library makes of a sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import normals

__all__ = ["Spectrum", "captured", "iterate", "relative_change", "ritz", "start_basis"]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """vectors: float64 (m, K), orthonormal columns. eigenvalues: float64 (K,), of P, none below 0."""

    vectors: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]


def start_basis(seed: bytes, items: int, columns: int) -> NDArray[np.float64]:
    """Q_0, float64 (items, columns): an orthonormal basis of a Gaussian subspace drawn from `seed`."""
    gaussian = normals(seed, "start of the power iteration", items * columns).reshape(columns, items).T
    return _signed_qr(gaussian)[0]


def iterate(product: NDArray[np.float64]) -> Spectrum:
    """Q, R = QR(P Q_old) of `product` (m, K), and |diag R| for the eigenvalues (PriviRec, eq. 17).

    The first k columns are those of an iteration with k columns: QR never looks ahead.
    """
    vectors, triangle = _signed_qr(product)
    return Spectrum(vectors, np.diag(triangle).copy())


def ritz(basis: NDArray[np.float64], product: NDArray[np.float64]) -> Spectrum:
    """Rayleigh and Ritz: the best vectors and values within span(`basis`), from `product` = P `basis`, largest first.

    H = Q^T P Q = U L U^T costs no further sum; the vectors are Q U, the values L (Halko et al., section 5.3, for a P
    that is symmetric). H is made symmetric first: a sum that was rounded is so only nearly.
    """
    small = basis.T @ product
    values, rotation = np.linalg.eigh((small + small.T) / 2)
    best = np.argsort(-values, kind="stable")
    rotation = rotation[:, best]
    peaks = rotation[np.abs(rotation).argmax(axis=0), np.arange(best.size)]
    return Spectrum(basis @ (rotation * np.where(peaks < 0, -1.0, 1.0)), np.maximum(values[best], 0.0))


def captured(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """||old^T new||_F^2 / K of two orthonormal bases (m, K): the share of the new subspace that the old one held."""
    return float(min(1.0, np.square(old.T @ new).sum() / new.shape[1]))


def relative_change(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """||new - old|| / ||new|| of two spectra (K,); 0 when both are nought."""
    size = float(np.linalg.norm(new))
    return float(np.linalg.norm(new - old)) / size if size else 0.0


def _signed_qr(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Q, R with no negative entry on R's diagonal."""
    vectors, triangle = np.linalg.qr(matrix)
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return vectors * signs, triangle * signs[:, None]
