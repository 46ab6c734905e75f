"""The smallest group of clients that a linear combination of released sums isolates.

Sums over sets A_1 .. A_m of clients, all of the same data, are released. Everyone who has them can compute all their
linear combinations. Clients that are in the same sets (one membership pattern) have the same coefficient in every
combination. Let the 0/1 matrix M have one row for each set and one column for each pattern: a combination c of the sums
has the coefficient (c M)_p for every client of pattern p. Clients with coefficient 0 cancel. If only few clients
remain, the combination reveals a sum over these few: S(P), S(Q) and S(P + Q + {u}) reveal u, although any two of the
three sets differ by many clients.

`smallest_isolated` finds the vector in the row space of M whose support has the smallest weight, if that weight is
below a threshold. The weight of a pattern is its number of clients. The search is exact (integers, no rounding):

1. Patterns of `threshold` clients or more must have coefficient 0. The combinations that achieve this are the left
   kernel of their columns, of dimension d; d = 0 if each set contains the next and they differ by enough clients.
2. On the other, small patterns these combinations form a space of dimension at most d. The support of a vector of
   minimum weight contains the support of no other vector. Such a vector is determined, up to a factor, by d - 1
   independent columns in which it is 0. So all choices of d - 1 columns are tried.

The cost is one elimination over m rows and one column per pattern, and binomial(s, d - 1) small eliminations for s
distinct small columns. Both are bounded: beyond the bounds, `TooComplexError` is raised, and the caller must not
release the sum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Final

from protocols.errors import ParameterError

__all__ = ["MOST_CHOICES", "MOST_SETS", "TooComplexError", "smallest_isolated"]

MOST_SETS: Final = 64
"""Maximum number of distinct sets of clients."""
MOST_CHOICES: Final = 20_000
"""Maximum number of choices of columns that are tried; this many take a second or two."""

Vector = list[int]


class TooComplexError(ParameterError):
    """The released sums are too many or too different to compute what they reveal together."""


def smallest_isolated(sets: Iterable[Collection[str]], threshold: int) -> frozenset[str] | None:
    """Return the smallest group of clients, below `threshold`, that a combination of the sums over `sets` isolates.

    Returns None if every combination involves no client or at least `threshold` clients. Raises `ParameterError` for a
    threshold below 1, and `TooComplexError` for more than `MOST_SETS` distinct sets or `MOST_CHOICES` choices.
    """
    if threshold < 1:
        raise ParameterError(f"the threshold must be at least 1 client, got {threshold}")
    different = list(dict.fromkeys(frozenset(clients) for clients in sets))
    if len(different) > MOST_SETS:
        raise TooComplexError(f"{len(different)} different sets of clients: at most {MOST_SETS} can be checked")
    groups = _group_by_pattern(different)
    large = [_column(pattern, len(different)) for pattern, members in groups.items() if len(members) >= threshold]
    small = {pattern: members for pattern, members in groups.items() if len(members) < threshold}
    kernel = _left_kernel(large, len(different))
    space = _span_basis([[_dot(row, _column(p, len(different))) for p in small] for row in kernel])
    found = _minimum_weight_vector(space, [len(members) for members in small.values()], threshold)
    if found is None:
        return None
    return frozenset(client for members, used in zip(small.values(), found, strict=True) if used for client in members)


def _group_by_pattern(sets: Sequence[frozenset[str]]) -> dict[int, list[str]]:
    """Return the clients by membership pattern: bit i of a pattern is 1 if its clients are in set i."""
    patterns: dict[str, int] = {}
    for index, clients in enumerate(sets):
        for client in clients:
            patterns[client] = patterns.get(client, 0) | 1 << index
    groups: dict[int, list[str]] = {}
    for client, pattern in patterns.items():
        groups.setdefault(pattern, []).append(client)
    return groups


def _column(pattern: int, rows: int) -> Vector:
    """Return a pattern's column of M."""
    return [pattern >> index & 1 for index in range(rows)]


def _dot(left: Vector, right: Vector) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _left_kernel(columns: Iterable[Vector], rows: int) -> list[Vector]:
    """Return a basis of the integer vectors c (rows,) with c . column = 0 for every column.

    Starts with the unit vectors; for each column, uses one basis vector as the pivot to eliminate its product with the
    others.
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
    """Return a multiple of `vector` plus a multiple of `pivot` whose entry is 0, divided by the common factor.

    entry, pivot_entry: the values of the two vectors in the entry to eliminate.
    """
    if not entry:
        return vector
    mixed = [pivot_entry * a - entry * b for a, b in zip(vector, pivot, strict=True)]
    factor = math.gcd(*mixed)
    return [value // factor for value in mixed] if factor > 1 else mixed


def _span_basis(vectors: Iterable[Vector]) -> list[Vector]:
    """Return linearly independent vectors with the same span."""
    kept: list[tuple[int, Vector]] = []
    for vector in vectors:
        for place, row in kept:
            vector = _eliminate(vector, vector[place], row, row[place])
        first = next((index for index, value in enumerate(vector) if value), None)
        if first is not None:
            kept.append((first, vector))
    return [row for _, row in kept]


def _minimum_weight_vector(space: list[Vector], weights: list[int], threshold: int) -> Vector | None:
    """Return a vector of the space whose support has the smallest weight; None if that is `threshold` or more."""
    dimension = len(space)
    if not dimension:
        return None
    used = [index for index in range(len(weights)) if any(row[index] for row in space)]
    distinct = list({_direction([row[index] for row in space]): index for index in used}.values())
    choices = math.comb(len(distinct), dimension - 1)
    if choices > MOST_CHOICES:
        raise TooComplexError(
            f"{choices:,} choices of columns for {dimension} sums and {len(distinct)} groups: at most "
            f"{MOST_CHOICES:,} are tried"
        )
    best, least = None, threshold
    for zeros in combinations(distinct, dimension - 1):
        vector = _vector_vanishing_at(space, zeros)
        if vector is None:
            continue
        weight = sum(weights[index] for index in used if vector[index])
        if weight < least:
            best, least = vector, weight
    return best


def _direction(column: Vector) -> tuple[int, ...]:
    """Return a key that is equal for columns that are multiples of each other: a vector is 0 in all of them or none."""
    factor = math.gcd(*column)
    sign = -1 if next(value for value in column if value) < 0 else 1
    return tuple(sign * value // factor for value in column)


def _vector_vanishing_at(space: list[Vector], places: Sequence[int]) -> Vector | None:
    """Return the vector of the space, unique up to a factor, that is 0 at these d - 1 places; None if not unique."""
    rows = space
    for place in places:
        pivot = next((row for row in rows if row[place]), None)
        if pivot is None:
            return None  # dependent places; another choice of places determines each of these vectors
        rows = [_eliminate(row, row[place], pivot, pivot[place]) for row in rows if row is not pivot]
    return rows[0]
