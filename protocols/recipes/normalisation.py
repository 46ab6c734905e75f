"""What an item's summed row of changes is divided by: the clients that are expected to have touched the item.

A client touches its items in every round, and others by chance, as drawn negatives. The released CoLR code divides the
sum of a row by the number of clients that touched the item, which each contribution states. The sums of these numbers
over many rounds give the clients' items, so no contribution states them here, except with explicit consent:

    expected   n (p_i + (1 - p_i) q_i), from the public item counts of the task
    clients    n, the number of contributions
    touched    the number that the contributions state (released code); needs `reveal_touched`

p_i = c_i / C: share of the C counted clients that have item i. q_i: the chance that i is among the negatives of a
client that does not have it. A client with m items draws k m negatives in a round, independently and uniformly from the
N - m others, and trains on the same ones in all epochs, so q is about 1 - exp(-k m / (N - m)). How m is spread over the
clients is not known. If everybody had the mean number of items, sum(c) / C, q would come out 7 % too large on
MovieLens, where few clients have most of the items. With exponentially spread numbers q = k m / (N - m + k m), m the
mean; that is right within 4 % on MovieLens, FilmTrust and a Gowalla sample. Every divisor is at least 1, as in the
released code.
"""

from __future__ import annotations

from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.layout import Segment
from protocols.recipes.base import ModelState
from protocols.recipes.item_counts import BiasedParameters, CountedFactors
from protocols.recipes.state import state_as

__all__ = [
    "NEGATIVES",
    "TOUCHED",
    "Normalise",
    "NormalisedParameters",
    "divisors",
    "expected_touches",
    "touch_segments",
]

NEGATIVES: Final = 4
"""Negatives drawn for each positive where a task does not say (released CoLR code)."""

Normalise = Literal["expected", "clients", "touched"]
"""See the module."""

TOUCHED: Final = "touched"
"""Name of the segment that counts how many contributions touched each item."""


class NormalisedParameters(BiasedParameters):
    """Parameters of the recipes whose summed rows are divided by a number of clients."""

    normalise: Normalise | None = Field(
        default=None,
        description="Divisor of an item's summed row. expected: the clients expected to have touched the item, from "
        "the item counts. clients: all contributions. touched: the clients that touched it, as in the released code; "
        "needs reveal_touched. Unset: expected with item counts, else clients.",
    )
    reveal_touched: bool = Field(
        default=False,
        description="Consent to normalise 'touched': every sum shows how many of its clients touched each item.",
    )

    @model_validator(mode="after")
    def _check_normalise(self) -> Self:
        if self.normalise == "expected" and not self.has_counts:
            raise ValueError("normalise 'expected' needs the item counts of item_bias 'counts'")
        what = " and ".join(self.shows_touched())
        if what and not self.reveal_touched:
            raise ValueError(
                f"{what} shows how many clients touched each item, and the sums of many rounds show which items each "
                f"client has: consent with reveal_touched=true, or leave {what.split()[0]} out"
            )
        if self.reveal_touched and not what:
            raise ValueError("reveal_touched=true is for normalise 'touched': no sum of this task shows touched items")
        return self

    def shows_touched(self) -> tuple[str, ...]:
        """Return which parameters make the sums show touched items, as "name 'value'"."""
        return ("normalise 'touched'",) if self.normalise == "touched" else ()

    @property
    def divides_by(self) -> Normalise:
        """What an item's row is divided by: `normalise`, or what it stands for where it is not set."""
        return self.normalise or ("expected" if self.has_counts else "clients")

    def touch_warnings(self) -> tuple[str, ...]:
        """Return the warning that goes with `reveal_touched`; nothing without."""
        return (_WARNING,) if self.reveal_touched else ()


_WARNING: Final = (
    "Every sum shows how many of its clients touched each item. A client touches its own items in every round, so "
    "whoever sees the sums of many rounds can compute which items each client has."
)


def touch_segments(p: NormalisedParameters) -> tuple[Segment, ...]:
    """Return the segment of touch counts, 0 or 1 per item and client, with normalise "touched"; else nothing."""
    return (Segment(TOUCHED, p.items, 1.0, integral=True),) if p.divides_by == "touched" else ()


def expected_touches(
    item_counts: NDArray[np.float64], clients: int, negatives: int, contributions: int
) -> NDArray[np.float64]:
    """Return how many of `contributions` clients are expected to touch each item in a round, float64 (items,).

    item_counts: how many of the `clients` counted clients have each item, float64 (items,). negatives: drawn for each
    positive. Every operation is exact or rounded as IEEE 754 says, so the result is the same on every machine. Without
    counted clients it is `contributions`.
    """
    if not clients:
        return np.full(item_counts.size, float(contributions))
    has = np.minimum(item_counts / clients, 1.0)
    mean = float(item_counts.sum()) / clients
    drawn = negatives * mean
    chance = drawn / (max(item_counts.size - mean, 1.0) + drawn)
    return np.asarray(contributions * (has + (1.0 - has) * chance))


def divisors(
    p: NormalisedParameters, state: ModelState, contributions: int, touched: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the divisor of each item's summed row, float64 (items,), at least 1.

    touched: the summed touch counts (items,) with normalise "touched", else None. Raises `ParameterError` for a state
    without item counts where the parameters need them.
    """
    if p.divides_by == "clients":
        found = np.full(p.items, float(contributions))
    elif touched is not None:
        found = touched
    else:
        own = state_as(state, CountedFactors)
        found = expected_touches(own.item_counts, own.clients, p.negatives or NEGATIVES, contributions)
    return np.asarray(np.maximum(found, 1.0))
