"""The class of a sum: how often the data of one client may enter sums like it.

`min_clients` and the differencing guard are about the clients of ONE released sum. What several sums give away together
depends on what clients put into them. So the layout of every sum states its class, and a recipe cannot leave it out:

| class | a contribution is | rule |
|---|---|---|
| `once` | a function of data that does not change: | a client's data enter one such sum of a data set, ever; a client |
|        | item counts, sums of ratings | that is in one abstains from the others before its first message |
| `repeated` | a function of the same data again: | a frozen cohort, one set of survivors that only shrinks, a quorum |
|            | power iteration, measurements | of signatures, and the differencing guard |
| `trained` | dependent on fresh randomness | it contains no constant of the client; cohorts are drawn anew |

Zeros of a client without data never count towards `min_clients`: it abstains. The guard
(`protocols.privacy.differencing`) judges all sums of class `once` or `repeated` of the same data together. The class
also states which data: `rows`, the interactions that a client trains on, or `held-out`, the rows on which it measures
the model. The sums of one task are over one data set, and so are those of all tasks with one `data_set` label.

The class belongs to the sum, not to the recipe: a task may count items in its first sum and train in the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from protocols.errors import ParameterError

__all__ = ["ONCE_ROWS", "REPEATED_HELD_OUT", "REPEATED_ROWS", "TRAINED", "Data", "Rule", "SumClass"]

Rule = Literal["once", "repeated", "trained"]
"""How often a client's data may enter sums of this class."""
Data = Literal["rows", "held-out"]
"""Of which of the client's rows the summed values are a function."""


@dataclass(frozen=True)
class SumClass:
    """The class of a sum. data: which data it is of; None for `trained`, whose values are not a function of the data.

    Raises `ParameterError` for `once` or `repeated` without data, and for `trained` with data.
    """

    rule: Rule
    data: Data | None = None

    def __post_init__(self) -> None:
        if (self.rule == "trained") != (self.data is None):
            raise ParameterError(f"a sum of class {self.rule!r} cannot be of data {self.data!r}")

    @property
    def once(self) -> bool:
        """Whether a client's data may enter one such sum only."""
        return self.rule == "once"

    @property
    def repeated(self) -> bool:
        """Whether the same data are summed again, over a frozen cohort."""
        return self.rule == "repeated"


ONCE_ROWS: Final = SumClass("once", "rows")
"""Item counts, rating sums."""
REPEATED_ROWS: Final = SumClass("repeated", "rows")
"""Power iteration, degrees of a frozen cohort."""
REPEATED_HELD_OUT: Final = SumClass("repeated", "held-out")
"""Measurements of the model on held-out rows."""
TRAINED: Final = SumClass("trained")
"""Updates, gradients, changes of factors."""
