"""Settings of the filter that makes scores of a spectrum, which members of a PriviRec task measure, and which is used.

Which filter ranks best depends on the data, and members have items to choose by. A share of them keeps one item each
out of all sums, and nobody else knows who. After the last iteration these measure NDCG@20 of that item under every
setting (`client_sdk.training.validation`); one more sum adds up the values. The model holds the sums and the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.layout import Floats


@dataclass(frozen=True)
class Setting:
    """How the scores D_i^-b -> V -> D_i^(b + shift) of a spectrum are made: with V diag(w) V^T, w = s^2 / (s^2 + l)."""

    zero: bool = True
    """Whether it is EASE, whose weights have a zero diagonal; otherwise ridge regression, which GF-CF's linear part is
    for a large l."""
    weight: float = 1.0
    """l as a multiple of `chosen_weight`."""
    part: int = 1
    """1 / the part of the vectors that is used, those with the largest singular values."""
    shift: float = 0.0
    """Added to the exponent b of the scores, so that popular items are ranked higher, or lower."""
    share: float = 0.0
    """Of what follows the last items (`next_item`)."""
    sizes: float = 0.0
    """Above 0 it is SLIM, of P itself: its penalty on the sizes of weights, as a multiple of the mean of P's diagonal,
    as `weight` is then that on their squares."""

    @property
    def text(self) -> str:
        """In words, for people."""
        words = ["ease" if self.zero else "ridge regression", f"with {self.weight:g} times the usual weight"]
        words += ["of all vectors" if self.part == 1 else f"of 1/{self.part} of the vectors"]
        words += [f"and b {self.shift:+g}"] if self.shift else []
        if self.sizes:
            words = ["slim", *([f"with b {self.shift:+g}"] if self.shift else [])]
        elif self.share == 1:
            words = ["what follows the last items", *([f"with b {self.shift:+g}"] if self.shift else [])]
        elif self.share:
            words += [f"and {self.share:.0%} of what follows the last items"]
        return " ".join(words)


SETTINGS: Final = tuple(
    sorted(
        (Setting(*one) for one in product((True, False), (0.0625, 0.25, 1.0, 4.0), (1, 4), (0.0, -0.1))),
        key=lambda one: one != Setting(),
    )
)
"""What members measure, in this order. The first one is used unless another is clearly better."""

_SHARES: Final = (0.2, 0.5, 0.75)
_WITH_NEXT: Final = (
    *SETTINGS,
    *(
        Setting(True, weight, 1, shift, share)
        for share, weight, shift in product(_SHARES, (0.25, 1.0, 4.0), (0.0, -0.1))
    ),
    *(Setting(share=1.0, shift=shift) for shift in (0.0, -0.1)),
)


_WHOLE: Final = tuple(
    sorted(
        (Setting(*one) for one in product((True, False), (0.0625, 0.25, 1.0, 4.0), (1, 4, 16, 64), (0.0, -0.1))),
        key=lambda one: (one != Setting(part=4), one != Setting()),
    )
)
"""Of the spectrum of a whole matrix: a quarter of its vectors fits most data, all of them some with many items."""


_SLIM: Final = tuple(Setting(sizes=0.03, shift=shift) for shift in (-0.2, -0.1, 0.0))
"""All of the same weights, so that a device computes these once."""
_WITH_SLIM: Final = (_WHOLE[0], *_SLIM, *_WHOLE[1:])
"""The first one is used where nobody measured, so it is the filter that fits most data."""
MOST_SLIM_ITEMS: Final = 4_000
"""Items of a task up to which members can measure SLIM: its weights take a device 22 s of a core and 0.5 GB for so
many, as measured, 2 s for 1,682, and the time grows with m^3."""


def settings_of(next_items: bool, whole: bool = False, slim: bool = False) -> tuple[Setting, ...]:
    """Return what members of a task measure; without a sum of validation the first one is used.

    next_items: whether it has a sum of next items. whole: whether it counts the pairs of its items, which are the whole
    matrix. slim: whether it measures SLIM of that as well.
    """
    if whole:
        return _WITH_SLIM if slim else _WHOLE
    return _WITH_NEXT if next_items else SETTINGS


def usual_of(settings: tuple[Setting, ...]) -> int:
    """Return of how many of the first settings the better one is used unless another is clearly better than that.

    Of a whole matrix these are two: a quarter of the vectors, and SLIM or, without it, all vectors.
    """
    return 1 if settings[0] == Setting() else 2


_CLEAR: Final = 0.75


def held_out(drawn: Floats, items: NDArray[np.integer], share: float, is_last: bool = False) -> int | None:
    """Return which of its items, distinct (k,), a member keeps out of all sums; None for none of them.

    is_last: whether it is the last one, where order counts and the member knows it.

    drawn: two uniform numbers from 0 to 1, float64 (2,), that the member drew once and tells nobody. With the first one
    a `share` of the members is chosen, of those that have two items, with the second one the item, unless it is the
    last one: any is as likely.
    """
    if items.size < 2 or not drawn[0] < share:
        return None
    return int(items[-1] if is_last else np.sort(items)[int(drawn[1] * items.size)])


def chosen_setting(sums: Floats, noise: float = 0.0, usual: int = 1) -> int:
    """Return the index of the setting to use. sums: how many measured, and of each setting's values, (1 + settings,).

    It is the first one, also where nobody measured, unless the best is above it by more than three quarters of the
    standard error of a mean: about 2.5 of those of their difference, as measured, because the best of many is above
    others by chance. usual: 2 for the better of the first two in place of the first. noise: deviation of it in a value
    of the sums; of the difference of two of them three deviations come on top.
    """
    clients = float(sums[0])
    if clients < 1:
        return 0
    means = np.clip(sums[1:] / clients, 0.0, 1.0)
    best, first = int(means.argmax()), int(means[:usual].argmax())
    mean = float(means[first])
    margin = _CLEAR * sqrt(mean * (1.0 - mean) / clients) + 3.0 * sqrt(2.0) * noise / clients
    return best if means[best] > mean + margin else first
