"""Folding of CKKS ciphertexts without a key: coefficient-wise addition modulo q, on the wire's byte planes.

Expanded planes are added into wider integers, and reduced modulo q at the end of a batch or before an accumulator could
overflow. Seeded ciphertexts are expanded and added by SEAL (`seeded_sum`). A partial sum is written one ciphertext
after the other, so that a fold holds the sums once. The tests compare the result with SEAL's add, residue by residue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from io import BytesIO
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError, CodecError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.ckks.parameters import ParameterSet
from protocols.sums.ckks.planner import COUNT_BYTES, SEED_BYTES, CkksPlan
from protocols.sums.ckks.seeded_sum import SeededSum
from protocols.sums.ckks.wire import Planes, WireBuffer, join_planes, split_residues, view_planes

__all__ = ["fold_contributions", "merge_partials", "read_partial"]

_COUNT: Final = struct.Struct("<Q")


def read_partial(plan: CkksPlan, partial: Buffer) -> tuple[int, Planes]:
    """Return the contribution count and the planes of a partial sum; `CodecError` unless its length is exact."""
    view = exact(partial, plan.partial_bytes, "a partial sum")
    (count,) = _COUNT.unpack_from(view)
    return count, view_planes(view[COUNT_BYTES:], plan.parameter_set, plan.ciphertexts, 2, plan.degree)


def fold_contributions(plan: CkksPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
    """Return the partial sum plus contributions; see `protocols.sums.base.Mechanism.fold`.

    Bodies must have passed `check`.
    """
    count, before = (0, None) if partial is None else read_partial(plan, partial)
    if plan.seeded:
        return _fold_seeded(plan, count, before, contributions)
    total = _Accumulator(plan.parameter_set, (plan.ciphertexts, 2, plan.degree))
    if before is not None:
        total.add(before, slice(None), slice(0, 2), slice(None))
    count = _add_expanded(plan, total, count, contributions)
    written = _NewPartial(plan)
    for index in range(plan.ciphertexts):
        written.put(index, total.residues(index))
    return written.close(count)


def _fold_seeded(
    plan: CkksPlan, count: int, before: Planes | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    modulus = np.uint64(plan.parameter_set.modulus)
    with SeededSum(plan) as total:
        count = _add_seeded(plan, total, count, contributions)
        written = _NewPartial(plan)
        for index in range(plan.ciphertexts):
            residues = total.take(index)
            if before is not None:
                _add_modulo(residues, _residues_of(before, index), modulus)
            written.put(index, residues)
    return written.close(count)


def merge_partials(plan: CkksPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`."""
    count, modulus, written = 0, np.uint64(plan.parameter_set.modulus), _NewPartial(plan)
    for partial in partials:
        more, planes = read_partial(plan, partial)
        count = _add_to_count(plan, count, more)
        for index in range(plan.ciphertexts):
            total = written.residues(index)
            _add_modulo(total, _residues_of(planes, index), modulus)
            written.put(index, total)
        del partial, planes  # the next one takes their place in memory
    return written.close(count)


def _residues_of(planes: Planes, index: int) -> NDArray[np.uint64]:
    return join_planes(tuple(plane[index].reshape(-1) for plane in planes))


def _add_modulo(total: NDArray[np.uint64], more: NDArray[np.uint64], modulus: np.uint64) -> None:
    """Add residues below the modulus to `total` in place: what would be negative wraps to a large number."""
    total += more
    np.minimum(total, total - modulus, out=total)


def _add_to_count(plan: CkksPlan, count: int, more: int) -> int:
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count


def _add_expanded(
    plan: CkksPlan, total: _Accumulator, count: int, contributions: Iterable[tuple[Route, Buffer]]
) -> int:
    for route, body in contributions:
        count = _add_to_count(plan, count, 1)
        planes, _ = _read_contribution(plan, route, memoryview(body))
        total.count()
        for targets, first, size in _places(plan, route):
            for target in targets:
                start = plan.block_starts[target]
                total.add(planes, slice(start, start + size), slice(0, 2), slice(first, first + size))
    return count


def _add_seeded(plan: CkksPlan, total: SeededSum, count: int, contributions: Iterable[tuple[Route, Buffer]]) -> int:
    for route, body in contributions:
        count = _add_to_count(plan, count, 1)
        planes, seeds = _read_contribution(plan, route, memoryview(body))
        for targets, first, size in _places(plan, route):
            for position in range(first, first + size):
                residues = join_planes(tuple(plane[position, 0] for plane in planes))
                seed = seeds[position * SEED_BYTES : (position + 1) * SEED_BYTES]
                places = [plan.block_starts[target] + position - first for target in targets]
                total.add(places, residues, seed)
    return count


def _places(plan: CkksPlan, route: Route) -> Iterable[tuple[tuple[int, ...], int, int]]:
    """For each block of a contribution: the target blocks, its first ciphertext, and its number of ciphertexts."""
    sizes = [plan.block_ciphertexts[targets[0]] for targets in route]
    return zip(route, accumulate(sizes, initial=0), sizes, strict=False)


def _read_contribution(plan: CkksPlan, route: Route, body: memoryview) -> tuple[Planes, memoryview]:
    """Return the planes and the seeds of a contribution; `CodecError` unless its length is exact."""
    ciphertexts, polynomials = plan.route_ciphertexts(route), 1 if plan.seeded else 2
    residues = ciphertexts * polynomials * plan.degree * plan.parameter_set.residue_bytes
    if body.nbytes != plan.contribution_bytes(route):
        raise CodecError(
            f"a contribution along this route is {plan.contribution_bytes(route)} bytes, got {body.nbytes}"
        )
    planes = view_planes(body[:residues], plan.parameter_set, ciphertexts, polynomials, plan.degree)
    return planes, body[residues:]


class _NewPartial:
    """A partial sum, zero at first, that is written one ciphertext after the other, without a copy at the end."""

    def __init__(self, plan: CkksPlan) -> None:
        self._planes = tuple(np.empty(2 * plan.degree, dtype) for dtype in plan.parameter_set.plane_dtypes)
        lengths = [plan.ciphertexts * plane.nbytes for plane in self._planes]
        self._starts = list(accumulate(lengths, initial=COUNT_BYTES))[:-1]
        self._file = BytesIO()
        self._file.seek(plan.partial_bytes - 1)
        self._file.write(b"\0")  # takes the whole room at once

    def put(self, index: int, residues: NDArray[np.uint64]) -> None:
        """Write the residues (2 * degree, below q) of ciphertext `index`."""
        split_residues(residues, self._planes)
        for plane, start in zip(self._planes, self._starts, strict=True):
            self._file.seek(start + index * plane.nbytes)
            self._file.write(plane.data)

    def residues(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (2 * degree) of ciphertext `index`."""
        for plane, start in zip(self._planes, self._starts, strict=True):
            self._file.seek(start + index * plane.nbytes)
            self._file.readinto(plane.data)
        return join_planes(self._planes)

    def close(self, count: int) -> bytes:
        """Return the partial sum of `count` contributions: the bytes of the file itself. Call it once, last."""
        self._file.seek(0)
        self._file.write(_COUNT.pack(count))
        return self._file.getvalue()


class _Accumulator:
    """Sums of planes in wider integers: uint64 for the lowest, uint32 for those above it."""

    def __init__(self, parameter_set: ParameterSet, shape: tuple[int, int, int]) -> None:
        self._set = parameter_set
        self._sums = [
            np.zeros(shape, np.uint64 if level == 0 else np.uint32) for level in range(len(parameter_set.plane_dtypes))
        ]
        self._limit = min(1 << (63 - parameter_set.modulus_bits), 1 << 15)
        self._pending = 1

    def count(self) -> None:
        """Count one more summand; first reduce modulo q if the next addition could overflow."""
        if self._pending == self._limit:
            planes = self._to_wire().planes
            for sums, plane in zip(self._sums, planes, strict=True):
                sums[...] = plane
            self._pending = 1
        self._pending += 1

    def add(self, planes: Planes, into: slice, polynomials: slice, taken: slice) -> None:
        """Add ciphertexts `taken` of `planes` to the ciphertexts `into` of the sum."""
        for sums, plane in zip(self._sums, planes, strict=True):
            target = sums[into, polynomials]
            np.add(target, plane[taken], out=target)

    def body(self) -> bytes:
        """Return the sum modulo q in expanded wire form."""
        return bytes(self._to_wire().body)

    def residues(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (polynomials * degree) of ciphertext `index`, reduced modulo q."""
        modulus, dtypes = np.uint64(self._set.modulus), self._set.plane_dtypes
        total = self._sums[0][index].copy()
        shift = 8 * np.dtype(dtypes[0]).itemsize
        for sums, dtype in zip(self._sums[1:], dtypes[1:], strict=True):
            total += sums[index].astype(np.uint64) << np.uint64(shift)
            shift += 8 * np.dtype(dtype).itemsize
        total -= total // modulus * modulus
        flat: NDArray[np.uint64] = total.reshape(-1)
        return flat

    def _to_wire(self) -> WireBuffer:
        ciphertexts, _, degree = self._sums[0].shape
        wire = WireBuffer.empty(self._set, ciphertexts, degree, seeded=False)
        for index in range(ciphertexts):
            wire.put(index, self.residues(index))
        return wire
