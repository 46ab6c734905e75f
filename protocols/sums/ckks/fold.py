"""Sums of CKKS ciphertexts modulo q, on the wire's byte planes and without a key.

Seeded ciphertexts are given to SEAL in its own uncompressed form, through a file in memory: SEAL's load expands the
seed, which is most of the time of a fold, and SEAL adds both polynomials (`SeededSum`). Expanded planes are added into
wider integers, and reduced modulo q at the end of a batch or before an accumulator could overflow (`ExpandedSum`). A
partial sum is written one ciphertext after the other, so that a fold holds the sums once. The tests compare the result
with SEAL's add, residue by residue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.layout import Route, whole_route
from protocols.sums.base import Buffer
from protocols.sums.ckks.plan import CkksPlan
from protocols.sums.ckks.wire import MemoryFile, WireBuffer, seal_context


class SeededSum:
    """The sum of `before` and of seeded contributions. file: for SEAL's streams, used for nothing else meanwhile."""

    def __init__(self, plan: CkksPlan, before: WireBuffer | None, file: MemoryFile) -> None:
        self._plan, self._before, self._file = plan, before, file
        self._context = seal_context(plan.parameters.set, plan.degree)
        self._sums: dict[int, Any] = {}
        self._expanded = sealapi.Ciphertext()

    def add(self, route: Route, contribution: WireBuffer) -> None:
        """Add a contribution along `route`."""
        context = self._context
        prefix = context.ciphertext_prefix(self._plan.scale, 1)
        for index in range(self._plan.route_ciphertexts(route)):
            suffix = context.seed_marker() + contribution.seeds[index].tobytes()
            stream = context.stream(prefix, contribution.residues(index), suffix)
            if index in self._sums:
                context.evaluator.add_inplace(self._sums[index], context.load(self._file, self._expanded, stream))
            else:
                self._sums[index] = context.load(self._file, sealapi.Ciphertext(), stream)

    def take(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (2 * degree) of ciphertext `index`, valid until the next call, and free it.

        Zeros if nothing was added to it.
        """
        plan, found, total = self._plan, self._sums.pop(index, None), np.zeros(2 * self._plan.degree, np.uint64)
        if found is not None:
            total, _ = self._file.saved(found, self._context.ciphertext_prefix(plan.scale, 2), total.size, 0)
        if self._before is not None:
            _add_modulo(plan, total, self._before.residues(index))
        return total


class ExpandedSum:
    """The sum of `before` and of expanded contributions, in integers that are wider than the planes."""

    def __init__(self, plan: CkksPlan, before: WireBuffer | None = None) -> None:
        self._plan, levels = plan, range(len(plan.parameter_set.plane_dtypes))
        shape = (plan.ciphertexts, 2, plan.degree)
        self._sums = [np.zeros(shape, np.uint32 if level else np.uint64) for level in levels]
        self._limit = min(1 << (63 - plan.parameter_set.modulus_bits), 1 << 15)
        self._pending = 1
        if before is not None:
            self.add(whole_route(plan.layout), before)

    def add(self, route: Route, contribution: WireBuffer) -> None:
        """Add a contribution along `route`; first reduce modulo q if an integer could overflow."""
        if self._pending == self._limit:
            for index, lowest in enumerate(self._sums[0]):
                lowest[:] = self.take(index).reshape(lowest.shape)
            for higher in self._sums[1:]:
                higher[:] = 0
            self._pending = 1
        self._pending += 1
        count = self._plan.route_ciphertexts(route)
        for sums, plane in zip(self._sums, contribution.planes, strict=True):
            sums[:count] += plane

    def take(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (2 * degree) of ciphertext `index`, reduced modulo q."""
        total: NDArray[np.uint64] = self._sums[0][index].flatten()
        shift, modulus = 0, np.uint64(self._plan.parameter_set.modulus)
        for sums, below in zip(self._sums[1:], self._plan.parameter_set.plane_dtypes, strict=False):
            shift += 8 * np.dtype(below).itemsize
            total += sums[index].reshape(-1).astype(np.uint64) << np.uint64(shift)
        total -= total // modulus * modulus
        return total


def sum_of(plan: CkksPlan, body: Buffer) -> WireBuffer:
    """Return the ciphertexts of a sum, expanded; `CodecError` unless the length is exact."""
    return WireBuffer.of(body, plan.parameter_set, plan.ciphertexts, plan.degree, seeded=False)


def add_sum(plan: CkksPlan, body: Buffer, more: Buffer) -> None:
    """Add the ciphertexts of a sum to those in `body`, in place; `CodecError` unless both lengths are exact."""
    total, added = sum_of(plan, body), sum_of(plan, more)
    for index in range(plan.ciphertexts):
        residues = total.residues(index)
        _add_modulo(plan, residues, added.residues(index))
        total.put(index, residues)


def _add_modulo(plan: CkksPlan, total: NDArray[np.uint64], more: NDArray[np.uint64]) -> None:
    """Add residues below q to `total` in place: what would be negative wraps to a large number."""
    total += more
    np.minimum(total, total - np.uint64(plan.parameter_set.modulus), out=total)
