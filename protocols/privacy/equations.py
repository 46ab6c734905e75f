"""How many linear equations sums over the same rows may give: too few to solve them for a member's items.

That is measured, not proven: it holds for the attack of `bench/exposure.py` on the data sets that it names.

The sums of the power iteration are Y = P Q for matrices Q that everybody knows: with M columns in all, they are M
equations for each row of the unknown P, the item-item matrix. Three counts limit M:

- a row of P has as many unknowns as items, and P is symmetric: m / 2 equations a row determine it;
- P has the rank of the number of clients: as many columns as clients give all of it (Halko, Martinsson and Tropp 2011,
  section 5.5), and fewer if rows are known otherwise;
- a row of P is sparse and not negative: an item with few owners occurs with few others, and such a row follows from
  fewer equations than unknowns (Donoho and Tanner, PNAS 2005, theorem 1.1).

The last one is the sharpest. `bench/spectral.py` solves for such rows by least squares, by linear programming and by
expectation propagation (Minka, UAI 2001) over 200 rows at once, which uses that P is symmetric. There are two bounds,
and no solver reads a row within twice of both:

- an eighth of the smaller number of items and clients, for all rows: with items of at least 5 owners least squares and
  linear programming read the first rows between a quarter and a half of it;
- where lists are short, a sixth of the entries of a row. The row of an item whose owners have e items in all has at
  most e entries. Of m items, e that are drawn at random are m (1 - (1 - 1/m)^e) different ones, and at least
  e m / (e + m); owners have more items in common than that, so this estimates the entries of most rows, and is no bound
  on them. Expectation propagation reads the first rows of a sample of Gowalla with one equation for 3 of e, and of 100
  to 300 clients with 15 items each with more than one for 3 of e m / (e + m).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

EQUATIONS: Final = 8
"""The smaller number of items and clients, divided by this, is how many equations the sums may give for each item."""


ENTRIES: Final = 6
"""Entries that an item's row must be estimated to have, from its owners' lists, for each equation."""


def most_equations(items: int, clients: int) -> int:
    """Return M, the number of columns that all sums over rows of so many items and clients may have together."""
    return min(items, clients) // EQUATIONS


def equations_within(entries: NDArray[np.float64], items: int) -> NDArray[np.int64]:
    """Return how many of these columns each row may have, for the `entries` e of its owners' lists, float64 (any,), of
    m `items` that have rows.

    That is e m / (e + m) / `ENTRIES`, rounded down.
    """
    within: NDArray[np.float64] = entries * items / (ENTRIES * np.maximum(entries + items, 1.0))
    return np.floor(within).astype(np.int64)
