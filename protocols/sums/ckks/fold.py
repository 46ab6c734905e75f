"""Folding of CKKS ciphertexts without a key: coefficient-wise addition modulo q, on the wire's byte planes.

Planes are added into wider integers, and reduced modulo q at the end of a batch or before an accumulator could
overflow. SEAL expands seeds: a ciphertext with c0 = 0 contains the seed, SEAL's load expands it into c1, and SEAL's add
accumulates it, while c0 is summed here. The tests compare the result with SEAL's add, residue by residue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.errors import BudgetError, CodecError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.ckks.parameters import ParameterSet
from protocols.sums.ckks.planner import COUNT_BYTES, SEED_BYTES, CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, SealContext, seal_context
from protocols.sums.ckks.wire import Planes, WireBuffer, view_planes

__all__ = ["fold_contributions", "merge_partials", "read_partial"]

_COUNT: Final = struct.Struct("<Q")


def read_partial(plan: CkksPlan, partial: Buffer) -> tuple[int, Planes]:
    """Return the contribution count and the planes of a partial sum; `CodecError` unless its length is exact."""
    view = memoryview(partial)
    if view.nbytes != plan.partial_bytes:
        raise CodecError(f"a partial sum must be exactly {plan.partial_bytes} bytes, got {view.nbytes}")
    (count,) = _COUNT.unpack_from(view)
    return count, view_planes(view[COUNT_BYTES:], plan.parameter_set, plan.ciphertexts, 2, plan.degree)


def fold_contributions(plan: CkksPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
    """Return the partial sum plus contributions; see `protocols.sums.base.Mechanism.fold`.

    Bodies must have passed `check`.
    """
    total = _Accumulator(plan.parameter_set, (plan.ciphertexts, 2, plan.degree))
    count = 0
    if partial is not None:
        count, planes = read_partial(plan, partial)
        total.add(planes, slice(None), slice(0, 2), slice(None))
    seeds = _SeedSum(plan) if plan.seeded else None
    try:
        for route, body in contributions:
            count = _add_to_count(plan, count, 1)
            _fold_one(plan, total, seeds, route, memoryview(body))
        if seeds is not None:
            seeds.add_to(total)
    finally:
        if seeds is not None:
            seeds.close()
    return _COUNT.pack(count) + total.body()


def merge_partials(plan: CkksPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`."""
    total = _Accumulator(plan.parameter_set, (plan.ciphertexts, 2, plan.degree))
    count = 0
    for partial in partials:
        more, planes = read_partial(plan, partial)
        count = _add_to_count(plan, count, more)
        total.count()
        total.add(planes, slice(None), slice(0, 2), slice(None))
    return _COUNT.pack(count) + total.body()


def _add_to_count(plan: CkksPlan, count: int, more: int) -> int:
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count


def _fold_one(plan: CkksPlan, total: _Accumulator, seeds: _SeedSum | None, route: Route, body: memoryview) -> None:
    ciphertexts = plan.route_ciphertexts(route)
    polynomials = 2 if seeds is None else 1
    residues = ciphertexts * polynomials * plan.degree * plan.parameter_set.residue_bytes
    if body.nbytes != plan.contribution_bytes(route):
        raise CodecError(
            f"a contribution along this route is {plan.contribution_bytes(route)} bytes, got {body.nbytes}"
        )
    planes = view_planes(body[:residues], plan.parameter_set, ciphertexts, polynomials, plan.degree)
    total.count()
    sizes = [plan.block_ciphertexts[targets[0]] for targets in route]
    for targets, first, size in zip(route, accumulate(sizes, initial=0), sizes, strict=False):
        for target in targets:
            start = plan.block_starts[target]
            total.add(planes, slice(start, start + size), slice(0, polynomials), slice(first, first + size))
            if seeds is not None:
                seeds.add(start, body[residues + first * SEED_BYTES : residues + (first + size) * SEED_BYTES])


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

    def add_second(self, index: int, residues: NDArray[np.uint64]) -> None:
        """Add residues below q to the second polynomial of ciphertext `index`."""
        self._sums[0][index, 1] += residues

    def body(self) -> bytes:
        """Return the sum modulo q in expanded wire form."""
        return bytes(self._to_wire().body)

    def _to_wire(self) -> WireBuffer:
        ciphertexts, _, degree = self._sums[0].shape
        wire = WireBuffer.empty(self._set, ciphertexts, degree, seeded=False)
        modulus = np.uint64(self._set.modulus)
        for index in range(ciphertexts):
            total = self._sums[0][index].copy()
            shift = 8 * np.dtype(self._set.plane_dtypes[0]).itemsize
            for sums, dtype in zip(self._sums[1:], self._set.plane_dtypes[1:], strict=True):
                total += sums[index].astype(np.uint64) << np.uint64(shift)
                shift += 8 * np.dtype(dtype).itemsize
            total -= total // modulus * modulus
            wire.put(index, total.reshape(-1))
        return wire


class _SeedSum:
    """The sum of the second polynomials, which SEAL expands from seeds and adds."""

    def __init__(self, plan: CkksPlan) -> None:
        self._plan = plan
        self._context: SealContext = seal_context(plan.parameters.set, plan.degree)
        self._sums: dict[int, Any] = {}
        self._expanded = sealapi.Ciphertext()
        self._file = MemoryFile()
        zero = np.zeros(plan.degree, np.uint64)
        suffix = self._context.seed_marker() + bytes(SEED_BYTES)
        stream = self._context.stream(self._context.ciphertext_prefix(plan.scale, 1), zero, suffix)
        self._file.write(stream)
        self._seed_offset = len(stream) - SEED_BYTES

    def add(self, start: int, seeds: memoryview) -> None:
        """Expand consecutive `seeds` and add them to the ciphertexts from `start` on."""
        for position in range(len(seeds) // SEED_BYTES):
            self._file.overwrite(seeds[position * SEED_BYTES : (position + 1) * SEED_BYTES], self._seed_offset)
            total = self._sums.get(start + position)
            if total is None:
                self._sums[start + position] = self._expand_into(sealapi.Ciphertext())
            else:
                self._context.evaluator.add_inplace(total, self._expand_into(self._expanded))

    def _expand_into(self, ciphertext: Any) -> Any:
        ciphertext.load(self._context.seal, self._file.path)
        return ciphertext

    def add_to(self, total: _Accumulator) -> None:
        """Add the sums to `total`, as one more summand of each ciphertext."""
        plan = self._plan
        prefix = self._context.ciphertext_prefix(plan.scale, 2)
        if self._sums:
            total.count()
        with MemoryFile() as file:
            for index, ciphertext in self._sums.items():
                residues, _ = file.saved(ciphertext, prefix, 2 * plan.degree, 0)
                total.add_second(index, residues[plan.degree :])

    def close(self) -> None:
        """Close the memory file."""
        self._file.close()
