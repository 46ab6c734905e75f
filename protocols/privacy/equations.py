"""How many linear equations sums over the same rows may give: too few to solve them for a member's items.

That is measured, not proven: it holds for the attack of `bench/exposure.py` on the data sets that it names.

The sums of the power iteration are Y = P Q for matrices Q that everybody knows: with M columns in all, they are M
equations for each row of the unknown P, the item-item matrix. Three counts limit M:

- a row of P has as many unknowns as items, and P is symmetric: m / 2 equations a row determine it;
- P has the rank of the number of clients: as many columns as clients give all of it (Halko, Martinsson and Tropp 2011,
  section 5.5), and fewer if rows are known otherwise;
- a row of P is sparse and not negative: an item with few owners occurs with few others, and such a row follows from
  fewer equations than unknowns (Donoho and Tanner, PNAS 2005, theorem 1.1).

The last one is the sharpest. `bench/exposure.py` solves for such rows by least squares, by linear programming and by
expectation propagation (Minka, UAI 2001) over all rows at once, which uses that P is symmetric. With items of at least
5 owners least squares and linear programming read the first rows between a quarter and a half of the smaller number of
items and clients; half of that, an eighth, is one bound for all rows. It is not enough where lists are short: the row
of an item whose owners have e items in all has at most e entries, however many items there are, and fewer where the
owners have the same items. Linear programming read the first rows of a sample of Gowalla between one equation for every
2 of these entries and one for each, so one for 4 is the bound of a row. Expectation propagation, which was tried later,
reads rows with about as many equations as entries that are not 0: with one equation for 3 of those e, the rows of
owners who have much the same items. It reads nothing within both bounds, but against it their margin is below two
where lists are short: 1.3 on that sample.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

EQUATIONS: Final = 8
"""The smaller number of items and clients, divided by this, is how many equations the sums may give for each item."""


ENTRIES: Final = 4
"""Entries that the owners' lists need for each equation of an item's row."""


def most_equations(items: int, clients: int) -> int:
    """Return M, the number of columns that all sums over rows of so many items and clients may have together."""
    return min(items, clients) // EQUATIONS


def equations_within(entries: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of these columns a row may have, for the `entries` of its owners' lists, float64 (m,)."""
    return np.floor(entries / ENTRIES).astype(np.int64)
