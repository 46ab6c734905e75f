"""Folding of Paillier ciphertexts without a key: one multiplication modulo n^2 each, one contribution at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

from gmpy2 import mpz

from protocols.codec import exact
from protocols.errors import BudgetError, CodecError, ContributionError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.chosen import read_blocks
from protocols.sums.paillier.planner import COUNT_BYTES, PaillierPlan
from protocols.sums.paillier.wire import read_sum, write_sum

__all__ = ["fold_contributions", "merge_partials", "read_partial"]

_COUNT: Final = struct.Struct("<Q")


def read_partial(plan: PaillierPlan, partial: Buffer) -> tuple[int, Any, list[Any]]:
    """Return the contribution count, n and the ciphertexts of a partial sum; `CodecError` for malformed bytes."""
    view = exact(partial, plan.partial_bytes, "a partial sum")
    (count,) = _COUNT.unpack_from(view)
    n, ciphertexts = read_sum(plan, view[COUNT_BYTES:], plan.ciphertexts, "a partial sum")
    if count and not n:
        raise CodecError("a partial sum of contributions must name their modulus")
    return count, n, ciphertexts


def fold_contributions(
    plan: PaillierPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    """Return the partial sum plus contributions; see `protocols.sums.base.Mechanism.fold`.

    Bodies must have passed `check`. Raises `ContributionError` for a contribution under another modulus than the first.
    """
    count, n, totals = 0, mpz(plan.modulus or 0), [mpz(1)] * plan.ciphertexts
    if partial is not None:
        count, n, totals = read_partial(plan, partial)
    for route, body in contributions:
        count = _add_to_count(plan, count, 1)
        expected = plan.route_ciphertexts(route)
        if plan.layout.chosen:
            numbers, body = read_blocks(plan, body)
            route = tuple((number,) for number in numbers.tolist())
        own, ciphertexts = read_sum(plan, body, expected, "a contribution along this route")
        n = n or own
        if own != n:
            raise ContributionError("a contribution is under another public key than those before it")
        n_squared = n * n
        sizes = [plan.packings[targets[0]].plaintexts for targets in route]
        for targets, size, start in zip(route, sizes, accumulate(sizes, initial=0), strict=False):
            for target in targets:
                first = plan.block_starts[target]
                for place, ciphertext in enumerate(ciphertexts[start : start + size], first):
                    totals[place] = totals[place] * ciphertext % n_squared
    return _COUNT.pack(count) + write_sum(plan, n, totals)


def merge_partials(plan: PaillierPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`.

    Raises `ContributionError` for partial sums under different moduli; an empty one is compatible with any modulus.
    """
    count, n, totals = 0, mpz(plan.modulus or 0), [mpz(1)] * plan.ciphertexts
    for partial in partials:
        more, own, ciphertexts = read_partial(plan, partial)
        count = _add_to_count(plan, count, more)
        n = n or own
        if own not in (0, n):
            raise ContributionError("a partial sum is under another public key than those before it")
        if own:
            n_squared = n * n
            totals = [total * ciphertext % n_squared for total, ciphertext in zip(totals, ciphertexts, strict=True)]
    return _COUNT.pack(count) + write_sum(plan, n, totals)


def _add_to_count(plan: PaillierPlan, count: int, more: int) -> int:
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count
