"""Linear combinations over the integers modulo a prime: small, sparse matrices as dictionaries."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

__all__ = ["combinations_without", "left_kernel"]

_PRIME: Final = 2**61 - 1
Row = dict[Hashable, int]


def left_kernel(rows: Sequence[Mapping[Hashable, int]]) -> list[list[int]]:
    """Return a basis of the coefficients, one per row, for which the combination of the rows is zero.

    Entries are between -p/2 and p/2: small integers stay what they are.
    """
    return [coefficients for rest, coefficients in _eliminate(rows, None) if not rest]


def combinations_without(
    rows: Sequence[Mapping[Hashable, int]], columns: frozenset[Hashable]
) -> list[tuple[Row, list[int]]]:
    """Return the combinations of the rows, other than zero, that have only zeros in `columns`, and their coefficients.

    The list is a basis of all of these.
    """
    return [(rest, coefficients) for rest, coefficients in _eliminate(rows, columns) if rest]


def _eliminate(
    rows: Sequence[Mapping[Hashable, int]], columns: frozenset[Hashable] | None
) -> list[tuple[Row, list[int]]]:
    """Return the rows that are left when `columns` (None: all) are eliminated, and the coefficients that give them."""
    pivots: list[tuple[Hashable, Row, list[int]]] = []
    left: list[tuple[Row, list[int]]] = []
    for number, given in enumerate(rows):
        row: Row = {column: value % _PRIME for column, value in given.items() if value % _PRIME}
        own = [int(place == number) for place in range(len(rows))]
        for column, pivot, coefficients in pivots:
            factor = row.get(column, 0)
            if factor:
                _subtract(row, factor, pivot)
                own = [(mine - factor * other) % _PRIME for mine, other in zip(own, coefficients, strict=True)]
        column = next((one for one in row if columns is None or one in columns), None)
        if column is None:
            left.append((_centred(row), [_centre(value) for value in own]))
            continue
        inverse = pow(row[column], -1, _PRIME)
        scaled = {one: value * inverse % _PRIME for one, value in row.items()}
        pivots.append((column, scaled, [value * inverse % _PRIME for value in own]))
    return left


def _subtract(row: Row, factor: int, pivot: Row) -> None:
    for column, value in pivot.items():
        rest = (row.get(column, 0) - factor * value) % _PRIME
        if rest:
            row[column] = rest
        else:
            row.pop(column, None)


def _centred(row: Row) -> Row:
    return {column: _centre(value) for column, value in row.items()}


def _centre(value: int) -> int:
    value %= _PRIME
    return value - _PRIME if value > _PRIME // 2 else value
