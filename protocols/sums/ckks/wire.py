"""The fixed-length wire forms: residues split into byte planes, followed by seeds.

SEAL's saved form is compressed, so its length varies. Here every residue takes the modulus's width in whole bytes, in
planes: for a 40-bit modulus first the low uint32 of all residues, then the top uint8 of all. A fold adds such planes to
wider integers without unpacking.

    expanded    planes of uint (ciphertexts, 2, degree)
    seeded      planes of uint (ciphertexts, 1, degree), then seeds of 64 bytes (ciphertexts, 64)

All integers are little-endian. Residues are in SEAL's NTT order, polynomial c0 first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ContributionError
from protocols.sums.base import Buffer
from protocols.sums.ckks.plan import SEED_BYTES, ParameterSet

Planes = tuple[NDArray[np.unsignedinteger], ...]
"""One array per plane, least significant first, all of shape (ciphertexts, polynomials, degree)."""


@dataclass(frozen=True, repr=False)
class WireBuffer:
    """A contribution being written: `planes` and `seeds` are views into `body`."""

    body: bytearray
    planes: Planes
    seeds: NDArray[np.uint8]

    @classmethod
    def empty(cls, parameter_set: ParameterSet, ciphertexts: int, degree: int, *, seeded: bool) -> WireBuffer:
        """Return a buffer of zeros with the exact length."""
        polynomials = 1 if seeded else 2
        residues = ciphertexts * polynomials * degree * parameter_set.residue_bytes
        body = bytearray(residues + (ciphertexts * SEED_BYTES if seeded else 0))
        planes = view_planes(memoryview(body)[:residues], parameter_set, ciphertexts, polynomials, degree)
        seeds = np.frombuffer(body, np.uint8, offset=residues).reshape(-1, SEED_BYTES)
        return cls(body, planes, seeds)

    def put(self, index: int, residues: NDArray[np.uint64]) -> None:
        """Write the residues (polynomials * degree, contiguous uint64) of ciphertext `index`."""
        split_residues(residues, tuple(plane[index].reshape(-1) for plane in self.planes))


def split_residues(residues: NDArray[np.uint64], planes: Planes) -> None:
    """Write contiguous `residues` into planes of the same number of elements (strided views, one copy each)."""
    raw = residues.reshape(-1).view(np.uint8)
    offset = 0
    for plane in planes:
        width = plane.itemsize
        step = 8 // width
        plane.reshape(-1)[:] = raw.view(plane.dtype)[offset // width :: step]
        offset += width


def join_planes(planes: Planes) -> NDArray[np.uint64]:
    """Return the residues as uint64, of the planes' shape."""
    total = planes[0].astype(np.uint64)
    shift = 8 * planes[0].itemsize
    for plane in planes[1:]:
        total |= plane.astype(np.uint64) << shift
        shift += 8 * plane.itemsize
    return total


def view_planes(body: Buffer, parameter_set: ParameterSet, ciphertexts: int, polynomials: int, degree: int) -> Planes:
    """Return the planes of `body` without copying; `CodecError` unless its length is exact."""
    count = ciphertexts * polynomials * degree
    view = memoryview(body)
    if view.nbytes != count * parameter_set.residue_bytes:
        raise CodecError(f"{count * parameter_set.residue_bytes} bytes of residues expected, got {view.nbytes}")
    planes, offset = [], 0
    for dtype in parameter_set.plane_dtypes:
        plane = np.frombuffer(view, dtype, count, offset)
        planes.append(plane.reshape(ciphertexts, polynomials, degree))
        offset += plane.nbytes
    return tuple(planes)


def check_range(planes: Planes, modulus: int) -> int | None:
    """Return the index of the first ciphertext with a residue that is not below the modulus; None if there is none.

    The lower planes are compared only where the top plane is not below the modulus's top plane.
    """
    *lower, highest = [plane.reshape(-1) for plane in planes]
    shift = 8 * sum([plane.itemsize for plane in lower])
    suspects = (highest >= modulus >> shift).nonzero()[0]
    if not suspects.size:
        return None
    residues = join_planes((*[plane[suspects] for plane in lower], highest[suspects]))
    wrong = suspects[residues >= modulus]
    return int(wrong[0] // planes[0][0].size) if wrong.size else None


def check_expanded(planes: Planes, modulus: int) -> None:
    """Raise `ContributionError` for a residue out of range or a second polynomial of zeros, which encrypts nothing."""
    check_seeded(planes, modulus)
    shown = np.flatnonzero(~np.logical_or.reduce([plane[:, 1].any(axis=1) for plane in planes]))
    if shown.size:
        raise ContributionError(f"ciphertext {int(shown[0])} is transparent: its second polynomial is zero")


def check_seeded(planes: Planes, modulus: int) -> None:
    """Raise `ContributionError` for a residue out of range. Any 64 bytes are a valid seed."""
    wrong = check_range(planes, modulus)
    if wrong is not None:
        raise ContributionError(f"ciphertext {wrong} holds a residue that is not below the modulus")
