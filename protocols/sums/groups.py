"""Which groups of a cohort a sum is made of, where each group has a sum of its own, and how far each may move it.

A cohort is split into groups, so that a client that lies reaches the mean of its own group only. The same clients are
together in every round (`split_clients`): sums over groups that are drawn anew are many equations in what each client
has (`bench/exposure.py`). Each segment of a sum has a rule of its own, since values of one unit would hide those of
another. With x_g the mean of the contributions of group g, c the coordinate-wise median of all x_g, d_g = ||x_g - c||,
and m the median of the d_g,

1. the groups with d_g <= tau m are kept; at least half are;
2. of these, each row is limited: with d_gi = ||x_gi - c_i|| in row i of R, m_i the median of the d_gi over all groups
   and l_i = tau max(m_i, m / sqrt(R)), a row with d_gi > l_i becomes c_i + (x_gi - c_i) l_i / d_gi.

A row is what belongs to one item, for example, and the whole segment where the recipe states none: then the second part
changes nothing. Without it, a liar puts the whole distance that the segment has room for into one item. m / sqrt(R) is
the root mean square of a row's distance in a middling group. It is there for rows that few clients train: the median
group has nothing in them, and they would be taken from all others, too. Limiting the distance from a robust centre in
place of leaving out is from Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization" (ICML
2021, section 4); here the centre is the median.

**What that promises.** In row i, all kept groups are within l_i of c_i. So if the groups that hold a client that lies
have a share f of the clients of all kept groups, the used mean of a row differs from that of the others by at most
f 2 l_i:

    mean(all kept) - mean(honest kept) = f (mean(lying kept) - mean(honest kept))

As long as fewer than half of the groups hold a liar, c_i is within what honest groups have in each coordinate, and m_i
and m are at most the largest such distance of an honest group. It says nothing of liars that stay within l_i, each in
another group, and nothing of groups that honest data put far away: they are left out or limited, too.

Trimmed means of each coordinate are no alternative for sums of matrices: the rare cells of a Gram matrix become zero,
and the matrix of what is left need not be definite.

**What is released** are the sums of all groups, each over `min_clients` clients or more. So sums over the same data are
not split more than once: a part of them would be a sum over few clients. Nor are sums with parts of their own.

**Without the rule**, with tau 0, groups are nothing but smaller sums: the sum that is used is that of all groups,
exactly, and one group that no honest clients have, or that does not open, spoils it. So a round can be larger than a
roster or a sum of a ring can be.

How the sums of groups stand in partial and released sums, and how they are opened: `protocols.sums.group_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.crypto.keys import digest
from protocols.errors import ParameterError
from protocols.layout import CLIP_SLACK, Floats, VectorLayout
from protocols.messages.base import SparseMessage

MIN_CLIENTS: Final = 3
"""Fewest clients of a sum: of two, each learns the other's vector."""
LEAST_GROUPS: Final = 3
"""Groups without which a median has no meaning: of two, neither is nearer."""
MOST_GROUPS: Final = 100
TAU: Final = 1.5
"""Default of tau: less limits what honest groups have, and a liar's reach grows with it (`bench/robust.py`)."""
NO_RULE: Final = 0.0
"""The tau with which the sums of all groups are added up, and none is compared."""
_PIECE: Final = 2**16
"""Coordinates of which the median is taken at a time."""


class GroupedParameters(SparseMessage):
    """Parameters of a mechanism whose cohorts can be split into groups.

    They are left out of the terms of a task without groups. With groups tau is always in them.
    """

    left_out: ClassVar[Mapping[str, Any]] = {"groups": 1, "tau": None}
    free_for_clients: ClassVar[bool] = False
    """Whether a client sends the same with groups as without."""
    groups: int = Field(
        default=1,
        ge=1,
        le=MOST_GROUPS,
        description="Groups into which each cohort is split, with a sum each: those far from the others are not used. "
        "`min_clients` holds for every group. 1: one sum; else at least 3, or 2 with `tau` 0.",
    )
    tau: float | None = Field(
        default=None,
        ge=0.0,
        le=10.0,
        description="A group is used if it is at most so many times as far from the median as half of the groups are, "
        "and what it says of an item, say, as far as that allows: at least 1. 0: the sums of all groups are added up, "
        f"whatever they say. Unset: {TAU:g} with groups.",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_tau(cls, given: Any) -> Any:
        """Parties with another default would make other models of the same sums."""
        if isinstance(given, Mapping) and given.get("groups", 1) != 1 and given.get("tau") is None:
            return {**given, "tau": TAU}
        return given

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.groups == 1:
            if self.tau is not None:
                raise ValueError("tau is of groups: set groups, too")
        elif self.tau and self.tau < 1.0:
            raise ValueError(f"tau must be at least 1, or the rule keeps less than half, or 0 for none; got {self.tau}")
        elif self.tau and self.groups < LEAST_GROUPS:
            raise ValueError(
                f"groups are compared from {LEAST_GROUPS} on, got {self.groups}: or add them up with tau 0"
            )
        return self

    def works(self, clients: int, groups: int) -> bool:
        """Return whether a round of so many clients in so many groups works."""
        return clients >= MIN_CLIENTS * groups


class Split(NamedTuple):
    """A cohort of so many clients in so many groups of at least `min_clients`."""

    groups: int
    clients: int
    min_clients: int


FEWEST_IN_GROUP: Final = 30
"""Clients of a group from which on groups are advised, since the sums of smaller ones say more of each. Of NDCG@20 CoLR
kept 97 to 100 % with groups of 33 and 38, and 97 to 99 % with groups of 20 and 23 (`bench/robust.py`)."""
MOST_ADVISED: Final = 10
FEWEST_BY_DEFAULT: Final = 1000
"""Clients of a group from which on a cohort is split by itself. With 10 % absent, what 101 sums say of one of a group's
750 clients is at most 0.018 above what counts say, as area under the curve, and of one of 500 0.030 (`bench.exposure`);
a default may add 0.02."""

SMALLEST_SPLIT: Final = LEAST_GROUPS * FEWEST_BY_DEFAULT
"""Clients of the smallest cohort that is split by itself."""

FEWEST_IN_DEGREES: Final = 2000
"""Clients of a group from which on, and at least as many as items, a sum of item degrees is split by itself that alone
can be: who has what is told at most 0.02 better by the degrees of 3 such groups than by those of all, as area under the
curve, also where lists are short (docs/adr/0021-groups.md)."""
OWNERS_IN_GROUP: Final = 15
"""Owners that an item has in a group on average, from which on splitting that sum into 3 is advised where groups have
`FEWEST_OF_KNOWN_LISTS` clients: who has what is told at most 0.02 better on all measured data (the same page)."""
FEWEST_OF_KNOWN_LISTS: Final = 100

Works = Callable[[int, int], bool]
"""Whether a round of so many clients in so many groups works."""


def advised_cohort(clients: int, most: int, works: Works) -> Split | None:
    """Return the split with the most groups, at most `MOST_ADVISED`, of a cohort of `clients`, or up to a tenth more.

    None if none has any. most: clients of the largest cohort. Of cohorts with as many groups the smallest. Each group
    has at least the smallest `min_clients`, from half of a group on, with which a round of the fewest clients works as
    well as a full one.
    """
    largest = min(most, clients + clients // 10)
    for groups in _numbers_of_groups(largest):
        for size in range(-(-clients // groups) * groups, largest + 1, groups):
            split = _split(size, groups, works)
            if split is not None:
                return split
    return None


def default_groups(clients: int, min_clients: int) -> int:
    """Return the groups of a cohort of so many clients whose task says nothing of them; 1 where it is too small.

    They are as few as can be, equal, of `FEWEST_BY_DEFAULT` clients or more each, and twice `min_clients` or more, so
    that half may drop out.
    """
    fewest = max(FEWEST_BY_DEFAULT, 2 * min_clients)
    numbers = range(LEAST_GROUPS, min(MOST_ADVISED, clients // fewest) + 1)
    return next((groups for groups in numbers if clients % groups == 0), 1)


def default_groups_of_degrees(items: int, clients: int, min_clients: int, works: Works) -> int:
    """Return what `default_groups` does for a task of which only the sum of the degrees of `items` is split: 3, or 1.

    Groups have `FEWEST_IN_DEGREES` clients or more, and rounds of all and of the fewest clients work in as many. More
    groups would say more: with 5 on a sample of Gowalla nearly twice as much.
    """
    groups = LEAST_GROUPS
    fewest = max(FEWEST_IN_DEGREES, items, 2 * min_clients)
    fits = clients % groups == 0 and clients >= groups * fewest
    return groups if fits and works(clients, groups) and works(min_clients * groups, groups) else 1


def advised_groups_of_degrees(items: int, clients: int, interactions: int, works: Works) -> Split | None:
    """Return the cohort of a task of which only the sum of the degrees of `items` is split, into 3 groups; None for one
    sum, where an item would have fewer than `OWNERS_IN_GROUP` owners in a group on average.

    A round of half of each group works, too.
    """
    size = clients // LEAST_GROUPS
    if size < FEWEST_OF_KNOWN_LISTS or interactions < OWNERS_IN_GROUP * LEAST_GROUPS * items:
        return None
    return _split(LEAST_GROUPS * size, LEAST_GROUPS, works)


def _numbers_of_groups(clients: int) -> range:
    return range(min(MOST_ADVISED, clients // FEWEST_IN_GROUP), LEAST_GROUPS - 1, -1)


def _split(clients: int, groups: int, works: Works) -> Split | None:
    size = clients // groups
    if not works(clients, groups):
        return None
    smallest = range((size + 1) // 2, size + 1)  # with the last one the round of all works
    return Split(groups, clients, next(fewest for fewest in smallest if works(fewest * groups, groups)))


def split_clients(task_id: str, clients: Sequence[str], groups: int) -> list[NDArray[np.int32]]:
    """Return the places in `clients` of each group's, int32, ascending; sizes differ by at most one.

    Clients are in the order of a digest of the task and their id, which is cut into groups. So those that were together
    once are together whenever the same clients are there; one that is absent moves one client across each border.
    """
    places = range(len(clients))
    order = sorted(places, key=lambda place: digest("group order", task_id, clients[place])) if groups > 1 else places
    return [np.sort(part).astype(np.int32) for part in np.array_split(np.array(order, np.int32), groups)]


def group_of_each(task_id: str, clients: Sequence[str], groups: int) -> dict[str, int]:
    """Return the group of each client: see `split_clients`."""
    split = split_clients(task_id, clients, groups)
    return {clients[place]: group for group, places in enumerate(split) for place in places}


@dataclass(frozen=True)
class KeptGroups:
    """The result of the rule."""

    distances: tuple[float, ...]
    """d_g, by group."""
    median: float
    """M."""
    kept: tuple[int, ...]
    """Indices of the kept groups, ascending."""

    def relative(self, group: int) -> float:
        """Return the distance of a group by the median distance; 1 where all are equal."""
        return self.distances[group] / self.median if self.median else 1.0

    def deviation(self, share: float, tau: float) -> float:
        """Return how far the mean of the kept groups can be from that of those without a liar.

        share: of the clients of all kept groups, those in groups with a liar.
        """
        return share * 2.0 * tau * self.median


def _require_comparable(vectors: Sequence[NDArray[np.floating]], tau: float) -> None:
    if len(vectors) < LEAST_GROUPS:
        raise ParameterError(f"groups are compared from {LEAST_GROUPS} on, got {len(vectors)}")
    if not (isfinite(tau) and tau >= 1):
        raise ParameterError(f"tau must be finite and at least 1, or the rule keeps less than half, got {tau}")
    if vectors[0].ndim != 1 or any(one.shape != vectors[0].shape for one in vectors):
        raise ParameterError("the means of all groups must be vectors of one length")


def _kept(squares: NDArray[np.float64], tau: float) -> KeptGroups:
    """Return the groups that are near the others, by the squares of their distances from the median of all."""
    distances = np.sqrt(squares)
    median = float(_median(distances))
    kept = np.flatnonzero(distances <= tau * median * CLIP_SLACK)
    return KeptGroups(tuple(distances.tolist()), median, tuple(kept.tolist()))


def sum_of_kept(sums: Sequence[NDArray[np.floating]], clients: Sequence[int], kept: Sequence[int]) -> Floats:
    """Return the sum of the `kept` groups, times what makes it one of all clients; exact if all groups are kept.

    sums, clients: of each group, clients at least 1.
    """
    total: Floats = np.sum([sums[group] for group in kept], axis=0, dtype=np.float64)
    counted = sum(clients[group] for group in kept)
    return total if counted == sum(clients) else np.asarray(total * (sum(clients) / counted))


@dataclass(frozen=True)
class UsedSum:
    """What the rule makes of one segment."""

    total: Floats
    """The sum that is used, as one of all clients, float64 (values,)."""
    groups: KeptGroups
    """Which are kept."""
    limited: tuple[float, ...]
    """Of each group, the share of its rows that are limited; 0 of one that is left out."""
    limits: Floats
    """How far a row of a mean may be from the median of all, float64 (rows,)."""


def use_groups(sums: Sequence[NDArray[np.floating]], clients: Sequence[int], tau: float, row: int) -> UsedSum:
    """Return the sum of the kept groups with limited rows; exact if all are kept and none is limited.

    sums, clients: of each group, vectors of one length; clients at least 1. tau: at least 1, how many times the median
    distance a group may be away. row: how many values a row has. Raises `ParameterError` for fewer than `LEAST_GROUPS`
    groups, other lengths, a length that is no multiple of `row`, values that are not finite, and other tau.
    """
    _require_comparable(sums, tau)
    length, groups = sums[0].size, len(sums)
    if length % row:
        raise ParameterError(f"{length} values are no rows of {row}")
    centre, squares = np.empty(length), np.empty((groups, length // row))
    counts = np.array(clients, np.float64)[:, None]
    for start in range(0, length, step := max(1, _PIECE // row) * row):
        off, centre[start : start + step] = _off_centre(sums, start, start + step, counts)
        np.square(off, out=off)
        squares[:, start // row : (start + step) // row] = off.reshape(groups, -1, row).sum(axis=2) if row > 1 else off
    found = _kept(squares.sum(axis=1), tau)
    far = np.sqrt(squares)
    limits = tau * np.maximum(_median(far), found.median / np.sqrt(length // row))
    total = sum_of_kept(sums, clients, found.kept) if len(found.kept) < groups else np.sum(sums, axis=0, dtype=float)
    scale = sum(clients) / sum(clients[group] for group in found.kept)
    limited = [0.0] * groups
    for group in found.kept:
        over = np.flatnonzero(far[group] > limits * CLIP_SLACK)
        limited[group] = over.size / limits.size
        if over.size:
            excess = scale * clients[group] * (1.0 - limits[over] / far[group, over])
            off = sums[group].reshape(-1, row)[over] / clients[group] - centre.reshape(-1, row)[over]
            total.reshape(-1, row)[over] -= excess[:, None] * off
    return UsedSum(total, found, tuple(limited), limits)


def _off_centre(
    sums: Sequence[NDArray[np.floating]], start: int, stop: int, counts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means of all groups less their coordinate-wise median (groups, values), and this median."""
    piece = np.array([one[start:stop] for one in sums], np.float64) / counts
    if not np.isfinite(piece).all():
        raise ParameterError("the mean of a group holds a value that is not finite")
    centre = _median(piece)
    return piece - centre, centre


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each column of finite values; in half the time of `np.median`, which looks for NaN."""
    middle = ((len(values) - 1) // 2, len(values) // 2)
    ordered = np.partition(values, middle, axis=0)
    return np.asarray(ordered[middle[0]] if middle[0] == middle[1] else (ordered[middle[0]] + ordered[middle[1]]) / 2.0)


def trust_of_groups(groups: int, tau: float, layout: VectorLayout) -> list[str]:
    """Return, for a task's members, what it means that a cohort is split; nothing without groups.

    layout: of the main sum, which may be the only one that is split.
    """
    if groups == 1:
        return []
    used = (
        "The model is made of their total, which one member that lies can spoil."
        if tau == NO_RULE
        else "The model is made of those that are near the others, so that a member that lies spoils only its group's."
    )
    if layout.in_groups:
        used = used.replace("The model", "What is used of it")
        return [
            f"The first sum is split into {groups} groups of clients, with a sum each, which everybody sees; all "
            f"others are of the whole cohort. {used}"
        ]
    return [
        f"A cohort is split into {groups} groups of clients that are together in every round, with a sum each, which "
        f"everybody sees. {used}"
    ]


def each_group(groups: int, what: str) -> str:
    """Return the beginning of a sentence on a number of clients, which in a round with groups is one group's."""
    return what if groups == 1 else f"in a group, {what}"


def require_groups(layout: VectorLayout, cohort: int, groups: int) -> None:
    """Raise `ParameterError` if sums of this layout over `cohort` clients cannot be split into so many groups."""
    if cohort % groups:
        raise ParameterError(
            f"a cohort of {cohort} cannot be split into {groups} equal groups: choose cohort_size "
            f"{cohort - cohort % groups or groups} or {cohort + groups - cohort % groups}"
        )
    if layout.in_groups is None and layout.sum_class.repeated and layout.sum_class.data == "rows":
        raise ParameterError(
            "all sums of this task are over the same rows, and sums of groups say more of them: an item needs "
            "min_owners owners in every group, and so many items are left out that recommendations are far worse "
            "(53 % on a sample of Gowalla with 3 groups): leave groups out. Only a sum of item degrees is split, of "
            "tasks without a privacy block"
        )
    if len(layout.blocks) > 1:
        raise ParameterError(
            "a sum of several levels is not split into groups: each level in each group would need its own floor"
        )
