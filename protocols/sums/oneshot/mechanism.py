"""The one-shot mechanism: planes of residues added modulo each prime, and the masks taken off the sum.

A client needs the committee's keys of the round: it contributes through `protocols.sums.oneshot.client`, and
`protocols.sums.oneshot.server.unmask` takes the masks off the folded sum (`release_unmasked`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import Keyring
from protocols.errors import ContributionError, ParameterError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, Mechanism, SumPlan
from protocols.sums.oneshot.packing import UnpackedSum
from protocols.sums.oneshot.plan import OneshotPlan, make_plan
from protocols.sums.oneshot.polynomials import add_products, canonical, polynomial_blocks
from protocols.sums.ring import pack, ring_dtype
from protocols.sums.wire import PartialSum, read_count

_PIECE: Final = 32 * 1024
"""Residues added at a time, so that contribution and sums stay in the processor's cache."""
_BLOCK: Final = 1 << 17
"""Coefficients unmasked at a time, so that temporary arrays stay small beside a long vector."""


class OneshotMechanism(Mechanism):
    """Sums under ring-LWE masks, which a committee takes off the sum of a whole set of survivors at once."""

    name: ClassVar[str] = "oneshot"
    interactive: ClassVar[bool] = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> OneshotPlan:
        """Return the plan of a task; `parameters` are the fields of `OneshotParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and every residue is below its prime."""
        self.check_part(plan, route, 0, OneshotPlan.of(plan).require_length(route, body))

    def check_part(self, plan: SumPlan, route: Route, start: int, part: Buffer) -> None:
        """Check a part of a contribution; see `protocols.sums.base.ChecksByParts`."""
        own = OneshotPlan.of(plan)
        residues, length = np.frombuffer(part, "<u4"), own.coefficients
        for number, prime in enumerate(own.ring.primes):
            first = number * length - start // 4
            plane = residues[max(first, 0) : max(first + length, 0)]
            if plane.size and int(plane.max()) >= prime:
                raise ContributionError(f"plane {number} holds a residue that is not below its prime")

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus contributions, modulo each prime."""
        own = OneshotPlan.of(plan)
        total = _total(own, () if partial is None else (partial,))
        for route, contribution in contributions:
            total.count_more(1)
            body = exact(contribution, own.contribution_bytes(route), "a contribution along this route")
            _add(own, total.sums, np.frombuffer(body, "<u4"))
        return total.encode()

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, modulo each prime."""
        return _total(OneshotPlan.of(plan), partials).encode()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums of a partial sum without masks as packed ring elements.

        Raises `CodecError` for a sum that is not exactly that of its count: a wrong sum is never released.
        """
        own = OneshotPlan.of(plan)
        count, body = read_count(own, partial)
        sums = UnpackedSum(own.ring, own.layout.length, ring_dtype(own.bits))
        sums.add(_planes(own, np.frombuffer(body, "<u4")))
        return pack(sums.finish(count), own.bits)

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the sum, float64 (layout.length,). `keyring` is not used.

        Raises `CodecError` for a value beyond the bound of a sum of so many contributions.
        """
        return OneshotPlan.of(plan).open_ring(aggregate, contributions)

    def open_part(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int
    ) -> NDArray[np.float64]:
        """Return values `start` to `stop` of the sum; see `protocols.sums.base.OpensByParts`."""
        return OneshotPlan.of(plan).open_ring_part(aggregate, contributions, start, stop)


def release_unmasked(plan: OneshotPlan, partial: Buffer, binding: bytes, secret: NDArray[np.int64]) -> bytes:
    """Return the aggregate of a masked partial sum: what `release` returns without the masks A_j * secret.

    binding: `OneshotContext.binding`, from which the public polynomials A_j follow. secret: the sum of the secrets,
    int64 (N,). The masks are removed block by block, so that memory is that of the aggregate and its elements. Raises
    `ParameterError` for a secret of another shape, `CodecError` as `release` does.
    """
    ring = plan.ring
    if secret.shape != (ring.degree,) or secret.dtype != np.int64:
        raise ParameterError(f"a sum of secrets is int64 ({ring.degree},), got {secret.dtype} {secret.shape}")
    count, body = read_count(plan, partial)
    folded = _planes(plan, np.frombuffer(body, "<u4"))
    sums = UnpackedSum(ring, plan.layout.length, ring_dtype(plan.bits))
    at_once = max(1, _BLOCK // ring.degree)
    blocks = polynomial_blocks(binding, ring.degree, ring.primes, plan.polynomials, at_once)
    for number, public in enumerate(blocks):
        start = number * at_once * ring.degree
        part = folded[:, start : start + at_once * ring.degree].astype(np.float64)
        add_products(part, public, -secret, ring.primes)
        sums.add(np.stack([canonical(plane, prime) for plane, prime in zip(part, ring.primes, strict=True)]))
    return pack(sums.finish(count), plan.bits)


def _total(plan: OneshotPlan, partials: Iterable[Buffer]) -> PartialSum[np.uint32]:
    total = PartialSum(plan, np.dtype(np.uint32))
    for partial in partials:
        _add(plan, total.sums, total.take(partial))
    return total


def _planes(plan: OneshotPlan, residues: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a view (primes, coefficients)."""
    return residues.reshape(len(plan.ring.primes), plan.coefficients)


def _add(plan: OneshotPlan, sums: NDArray[np.uint32], residues: NDArray[np.uint32]) -> None:
    """Add residues to `sums` in place, modulo each prime."""
    for plane, more, prime in zip(_planes(plan, sums), _planes(plan, residues), plan.ring.primes, strict=True):
        _add_residues(plane, more, np.uint32(prime))


def _add_residues(sums: NDArray[np.uint32], residues: NDArray[np.uint32], prime: np.uint32) -> None:
    """Add residues below the prime to sums below the prime, in place: both in words of 32 bits, without a division.

    a + b modulo p is a - (p - b), plus p where that is negative; words wrap around.
    """
    missing, short = np.empty(min(_PIECE, sums.size), np.uint32), np.empty(min(_PIECE, sums.size), np.bool_)
    for start in range(0, sums.size, _PIECE):
        total, piece = sums[start : start + _PIECE], residues[start : start + _PIECE]
        rest, negative = missing[: piece.size], short[: piece.size]
        np.subtract(prime, piece, out=rest)
        np.less(total, rest, out=negative)
        np.subtract(total, rest, out=total)
        np.multiply(negative, prime, out=rest)
        np.add(total, rest, out=total)


ONESHOT: Final = OneshotMechanism()
"""The mechanism; stateless."""
