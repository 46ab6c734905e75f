"""How many linear equations sums over the same rows may give: too few to solve them for a member's items.

That is measured, not proven: it holds for the attack of `bench/exposure.py` on the data sets that it names.

The sums of the power iteration are Y = P Q for matrices Q that everybody knows: with M columns in all, they are M
equations for each row of the unknown P, the item-item matrix. Three counts limit M:

- a row of P has as many unknowns as items, and P is symmetric: m / 2 equations a row determine it;
- P has the rank of the number of clients: as many columns as clients give all of it (Halko, Martinsson and Tropp 2011,
  section 5.5), and fewer if rows are known otherwise;
- a row of P is sparse and not negative: an item with few owners occurs with few others, and such a row follows from
  fewer equations than unknowns (Donoho and Tanner, PNAS 2005, theorem 1.1).

The last one is the sharpest. `bench/exposure.py` solves for sparse rows that are not negative. With items of at least 5
owners it read the first rows between a quarter and a half of the smaller number of items and clients; half of that, an
eighth, is one bound. It is not enough where lists are short: the row of an item with k owners, of whom each has L
items, has at most k L entries, however many items there are, and with 3,000 clients of 15 items an eighth read 650 of
them. So the sums also have at most k L columns, k the fewest owners of an item in them, L the mean of the lists.
"""

from __future__ import annotations

from typing import Final

EQUATIONS: Final = 8
"""The smaller number of items and clients, divided by this, is how many equations the sums may give for each item."""


def most_equations(items: int, clients: int, entries: float | None = None) -> int:
    """Return M, the number of columns that all sums over rows of so many items and clients may have together.

    entries: k L, the fewest owners of an item times the mean number of items of a client; None where the mean is not
    known yet, before the sum of degrees.
    """
    most = min(items, clients) // EQUATIONS
    return most if entries is None else min(most, int(entries))
