"""The CKKS mechanism: ciphertexts added modulo q, on the wire's byte planes and without a key.

Seeded ciphertexts are given to SEAL in its own uncompressed form, through a file in memory: SEAL's load expands the
seed, which is most of the time of a fold, and SEAL adds both polynomials (`SeededSum`). Expanded planes are added into
wider integers, and reduced modulo q at the end of a batch or before an accumulator could overflow. A partial sum is
written one ciphertext after the other, so that a fold holds the sums once. The tests compare the result with SEAL's
add, residue by residue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.crypto.keys import Keyring
from protocols.layout import Route, VectorLayout
from protocols.sums.base import COUNT_BYTES, Buffer, Keyed, SharesKeys, SumPlan
from protocols.sums.ckks import encryption
from protocols.sums.ckks.plan import SEED_BYTES, CkksPlan, ParameterSet, make_plan
from protocols.sums.ckks.wire import (
    MemoryFile,
    Planes,
    SealContext,
    check_expanded,
    check_seeded,
    join_planes,
    seal_context,
    split_residues,
    view_planes,
)
from protocols.sums.wire import count_more, read_count


class CkksMechanism(Keyed, SharesKeys):
    """Sums of CKKS ciphertexts (Cheon, Kim, Kim and Song, ASIACRYPT 2017); members share the secret key."""

    name: ClassVar[str] = "ckks"

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> CkksPlan:
        return make_plan(parameters, layout, max_contributions)

    def with_keys_of(self, parameters: Mapping[str, Any], plan: SumPlan) -> dict[str, Any]:
        """Return the parameters with the ring degree of `plan`."""
        return {**parameters, "degree": CkksPlan.of(plan).degree}

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        return encryption.generate_keyring(CkksPlan.of(plan))

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        return encryption.seal_blocks(CkksPlan.of(plan), route, blocks, keyring)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` for another length, a residue that is not below q or a transparent ciphertext."""
        own = CkksPlan.of(plan)
        planes, _ = _read_contribution(own, route, body)
        (check_seeded if own.seeded else check_expanded)(planes, own.parameter_set.modulus)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        own = CkksPlan.of(plan)
        count, before = (0, None) if partial is None else _read_partial(own, partial)
        if own.seeded:
            return _fold_seeded(own, count, before, contributions)
        return _fold_expanded(own, count, before, contributions)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        own = CkksPlan.of(plan)
        count, modulus, written = 0, np.uint64(own.parameter_set.modulus), _NewPartial(own)
        for partial in partials:
            more, planes = _read_partial(own, partial)
            count = count_more(own, count, more)
            for index in range(own.ciphertexts):
                total = written.residues(index)
                _add_modulo(total, _residues_of(planes, index), modulus)
                written.put(index, total)
            del partial, planes  # the next one takes their place in memory
        return written.close(count)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the expanded ciphertexts without the count."""
        return bytes(read_count(CkksPlan.of(plan), partial)[1])

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        own = CkksPlan.of(plan)
        own.require_count(contributions)
        return encryption.open_aggregate(own, aggregate, keyring)


class SeededSum:
    """Sums of a plan's ciphertexts, each None until the first one is added to it."""

    def __init__(self, plan: CkksPlan) -> None:
        self._plan = plan
        self._context: SealContext = seal_context(plan.parameters.set, plan.degree)
        self._sums: dict[int, Any] = {}
        self._expanded = sealapi.Ciphertext()
        self._given, self._saved = MemoryFile(), MemoryFile()
        prefix = self._context.ciphertext_prefix(plan.scale, 1)
        suffix = self._context.seed_marker() + bytes(SEED_BYTES)
        stream = self._context.stream(prefix, np.zeros(plan.degree, np.uint64), suffix)
        self._given.write(stream)
        self._seed_at = len(stream) - SEED_BYTES
        self._residues_at = len(stream) - len(suffix) - 8 * plan.degree

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._given.close()
        self._saved.close()

    def add(self, places: Sequence[int], residues: NDArray[np.uint64], seed: memoryview) -> None:
        """Add one ciphertext, given by the residues (degree, below q) and the seed, to those at `places`."""
        self._given.overwrite(residues.data, self._residues_at)
        self._given.overwrite(seed, self._seed_at)
        fresh = [place for place in places if place not in self._sums]
        for place in fresh:
            self._sums[place] = self._load(sealapi.Ciphertext())
        if len(fresh) < len(places):
            self._load(self._expanded)
            for place in places:
                if place not in fresh:
                    self._context.evaluator.add_inplace(self._sums[place], self._expanded)

    def _load(self, ciphertext: Any) -> Any:
        ciphertext.load(self._context.seal, self._given.path)
        return ciphertext

    def take(self, index: int) -> NDArray[np.uint64]:
        """Return the residues (2 * degree) of ciphertext `index` and free it; zeros if nothing was added to it.

        They are valid until the next call.
        """
        plan, found = self._plan, self._sums.pop(index, None)
        if found is None:
            return np.zeros(2 * plan.degree, np.uint64)
        prefix = self._context.ciphertext_prefix(plan.scale, 2)
        return self._saved.saved(found, prefix, 2 * plan.degree, 0)[0]


def _read_partial(plan: CkksPlan, partial: Buffer) -> tuple[int, Planes]:
    """Return the contribution count and the planes of a partial sum; `CodecError` unless its length is exact."""
    count, body = read_count(plan, partial)
    return count, view_planes(body, plan.parameter_set, plan.ciphertexts, 2, plan.degree)


def _fold_expanded(
    plan: CkksPlan, count: int, before: Planes | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    total = _Accumulator(plan.parameter_set, (plan.ciphertexts, 2, plan.degree))
    if before is not None:
        total.add(before, slice(None), slice(0, 2), slice(None))
    for route, body in contributions:
        count = count_more(plan, count, 1)
        planes, _ = _read_contribution(plan, route, body)
        total.count()
        for targets, first, size in _places(plan, route):
            for target in targets:
                start = plan.block_starts[target]
                total.add(planes, slice(start, start + size), slice(0, 2), slice(first, first + size))
    written = _NewPartial(plan)
    for index in range(plan.ciphertexts):
        written.put(index, total.residues(index))
    return written.close(count)


def _fold_seeded(
    plan: CkksPlan, count: int, before: Planes | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    modulus = np.uint64(plan.parameter_set.modulus)
    with SeededSum(plan) as total:
        for route, body in contributions:
            count = count_more(plan, count, 1)
            planes, seeds = _read_contribution(plan, route, body)
            for targets, first, size in _places(plan, route):
                for position in range(first, first + size):
                    seed = seeds[position * SEED_BYTES : (position + 1) * SEED_BYTES]
                    places = [plan.block_starts[target] + position - first for target in targets]
                    total.add(places, join_planes(tuple(plane[position, 0] for plane in planes)), seed)
        written = _NewPartial(plan)
        for index in range(plan.ciphertexts):
            residues = total.take(index)
            if before is not None:
                _add_modulo(residues, _residues_of(before, index), modulus)
            written.put(index, residues)
    return written.close(count)


def _residues_of(planes: Planes, index: int) -> NDArray[np.uint64]:
    return join_planes(tuple(plane[index].reshape(-1) for plane in planes))


def _add_modulo(total: NDArray[np.uint64], more: NDArray[np.uint64], modulus: np.uint64) -> None:
    """Add residues below the modulus to `total` in place: what would be negative wraps to a large number."""
    total += more
    np.minimum(total, total - modulus, out=total)


def _places(plan: CkksPlan, route: Route) -> Iterable[tuple[tuple[int, ...], int, int]]:
    """For each block of a contribution: the target blocks, its first ciphertext, and its number of ciphertexts."""
    sizes = [plan.block_ciphertexts[targets[0]] for targets in route]
    return zip(route, accumulate(sizes, initial=0), sizes, strict=False)


def _read_contribution(plan: CkksPlan, route: Route, body: Buffer) -> tuple[Planes, memoryview]:
    """Return the planes and the seeds of a contribution; `ContributionError` unless its length is exact."""
    view = plan.require_length(route, body)
    ciphertexts, polynomials = plan.route_ciphertexts(route), 1 if plan.seeded else 2
    residues = ciphertexts * polynomials * plan.degree * plan.parameter_set.residue_bytes
    planes = view_planes(view[:residues], plan.parameter_set, ciphertexts, polynomials, plan.degree)
    return planes, view[residues:]


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
        self._file.write(count.to_bytes(COUNT_BYTES, "little"))
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
            planes = tuple(np.empty(self._sums[0][0].size, dtype) for dtype in self._set.plane_dtypes)
            for index in range(len(self._sums[0])):
                split_residues(self.residues(index), planes)
                for sums, plane in zip(self._sums, planes, strict=True):
                    sums[index] = plane.reshape(sums[index].shape)
            self._pending = 1
        self._pending += 1

    def add(self, planes: Planes, into: slice, polynomials: slice, taken: slice) -> None:
        """Add ciphertexts `taken` of `planes` to the ciphertexts `into` of the sum."""
        for sums, plane in zip(self._sums, planes, strict=True):
            target = sums[into, polynomials]
            np.add(target, plane[taken], out=target)

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


CKKS: Final = CkksMechanism()
"""The mechanism; stateless."""
