"""What linear combinations of released sums reveal: the smallest group of clients whose data they isolate.

Sums over sets A_1 .. A_m of clients, all of the same data, are released. Whoever has them can compute every linear
combination of them. Clients that are in the same sets (one membership pattern) always appear together; so with one
column for each pattern and one row for each set, the 0/1 matrix M says it all: a combination c of the sums has the
coefficient (c M)_p at every client of pattern p. Clients with coefficient 0 drop out of it. A combination whose other
clients are few reveals a sum over a few: S(P), S(Q) and S(P + Q + {u}) reveal u, although any two of the three sets are
far apart.

`smallest_isolated` finds a vector in the row space of M with the lightest support, each pattern weighing as much as it
has clients, if that weight is below a threshold. It is exact (integers, no rounding) and works like this:

1. Patterns of `threshold` clients or more must have coefficient 0. The combinations that achieve this are the left
   kernel of their columns, of dimension d; d = 0 for sets that only shrink by enough clients at a time.
2. Over the other, small patterns these combinations form a space of dimension at most d. A lightest vector of it has a
   support that contains no other vector's; such a vector is fixed, up to a factor, by d - 1 independent columns in
   which it is 0. So all choices of d - 1 columns are tried.

The cost is one elimination over m rows and as many columns as there are patterns, and binomial(s, d - 1) small ones for
s different small columns. Both are bounded: beyond the bounds `TooComplexError` says so, and whoever asks refuses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Final

from protocols.errors import ParameterError

__all__ = ["MOST_CHOICES", "MOST_SETS", "TooComplexError", "smallest_isolated"]

MOST_SETS: Final = 64
"""Different sets of clients that are judged together."""
MOST_CHOICES: Final = 20_000
"""Choices of columns that are tried: a second or two."""

Vector = list[int]


class TooComplexError(ParameterError):
    """So many different sums were released that what they reveal together cannot be computed here."""


def smallest_isolated(sets: Iterable[Collection[str]], threshold: int) -> frozenset[str] | None:
    """The clients of a combination of the sums over `sets` that involves fewer than `threshold` clients.

    The fewest that any combination isolates; None when every combination involves `threshold` clients or none. Raises
    `ParameterError` for a threshold below 1 and `TooComplexError` beyond `MOST_SETS` different sets or `MOST_CHOICES`.
    """
    if threshold < 1:
        raise ParameterError(f"the threshold is at least 1 client, got {threshold}")
    different = list(dict.fromkeys(frozenset(clients) for clients in sets))
    if len(different) > MOST_SETS:
        raise TooComplexError(f"{len(different)} different sets of clients; at most {MOST_SETS} are judged together")
    groups = _groups(different)
    large = [_column(pattern, len(different)) for pattern, members in groups.items() if len(members) >= threshold]
    small = {pattern: members for pattern, members in groups.items() if len(members) < threshold}
    kernel = _left_kernel(large, len(different))
    space = _independent([[_dot(row, _column(p, len(different))) for p in small] for row in kernel])
    found = _lightest(space, [len(members) for members in small.values()], threshold)
    if found is None:
        return None
    return frozenset(client for members, used in zip(small.values(), found, strict=True) if used for client in members)


def _groups(sets: Sequence[frozenset[str]]) -> dict[int, list[str]]:
    """Clients by membership pattern: bit i of a pattern says that its clients are in set i."""
    patterns: dict[str, int] = {}
    for index, clients in enumerate(sets):
        for client in clients:
            patterns[client] = patterns.get(client, 0) | 1 << index
    groups: dict[int, list[str]] = {}
    for client, pattern in patterns.items():
        groups.setdefault(pattern, []).append(client)
    return groups


def _column(pattern: int, rows: int) -> Vector:
    return [pattern >> index & 1 for index in range(rows)]


def _dot(left: Vector, right: Vector) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _left_kernel(columns: Iterable[Vector], rows: int) -> list[Vector]:
    """A basis of the integer vectors c (rows,) with c . column = 0 for every column.

    Starts with all of them and takes one column after the other: combinations of two basis vectors that miss it.
    """
    basis = [[int(i == j) for j in range(rows)] for i in range(rows)]
    for column in columns:
        products = [_dot(vector, column) for vector in basis]
        pivot = next((index for index, product in enumerate(products) if product), None)
        if pivot is None:
            continue
        rest = [index for index in range(len(basis)) if index != pivot]
        basis = [_eliminate(basis[index], products[index], basis[pivot], products[pivot]) for index in rest]
        if not basis:
            break
    return basis


def _eliminate(vector: Vector, entry: int, pivot: Vector, pivot_entry: int) -> Vector:
    """`vector` plus a multiple of `pivot`, times a number, so that an entry becomes 0; without common factors."""
    if not entry:
        return vector
    mixed = [pivot_entry * a - entry * b for a, b in zip(vector, pivot, strict=True)]
    factor = math.gcd(*mixed)
    return [value // factor for value in mixed] if factor > 1 else mixed


def _independent(vectors: Iterable[Vector]) -> list[Vector]:
    """Some of the rows' combinations: independent, with the same span."""
    kept: list[tuple[int, Vector]] = []
    for vector in vectors:
        for place, row in kept:
            vector = _eliminate(vector, vector[place], row, row[place])
        first = next((index for index, value in enumerate(vector) if value), None)
        if first is not None:
            kept.append((first, vector))
    return [row for _, row in kept]


def _lightest(space: list[Vector], weights: list[int], threshold: int) -> Vector | None:
    """A vector of the space whose support weighs least, if that is below `threshold`."""
    dimension = len(space)
    if not dimension:
        return None
    used = [index for index in range(len(weights)) if any(row[index] for row in space)]
    distinct = list({_direction([row[index] for row in space]): index for index in used}.values())
    choices = math.comb(len(distinct), dimension - 1)
    if choices > MOST_CHOICES:
        raise TooComplexError(
            f"{choices:,} choices of columns for {dimension} sums and {len(distinct)} groups; at most "
            f"{MOST_CHOICES:,} are tried"
        )
    best, least = None, threshold
    for zeros in combinations(distinct, dimension - 1):
        vector = _vanishing(space, zeros)
        if vector is None:
            continue
        weight = sum(weights[index] for index in used if vector[index])
        if weight < least:
            best, least = vector, weight
    return best


def _direction(column: Vector) -> tuple[int, ...]:
    """The same for columns that are multiples of each other: they vanish together."""
    factor = math.gcd(*column)
    sign = -1 if next(value for value in column if value) < 0 else 1
    return tuple(sign * value // factor for value in column)


def _vanishing(space: list[Vector], places: Sequence[int]) -> Vector | None:
    """The vector of the space, up to a factor, that is 0 at these d - 1 places; None where more than one is."""
    rows = space
    for place in places:
        pivot = next((row for row in rows if row[place]), None)
        if pivot is None:
            return None  # the places depend on each other: another choice fixes each vector found here
        rows = [_eliminate(row, row[place], pivot, pivot[place]) for row in rows if row is not pivot]
    return rows[0]
