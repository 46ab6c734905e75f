"""Which groups of a cohort a sum is made of, where each group has a sum of its own: those that are near the others.

A cohort is split into groups, so that a client that lies reaches the mean of its own group only. With x_g the mean of
the contributions of group g, c the coordinate-wise median of all x_g and d_g = ||x_g - c||, the groups with
d_g <= tau m are kept, m the median of the d_g. At least half of the groups are. Each segment of a sum has a rule of its
own, since values of one unit would hide those of another.

**What that promises.** Each kept mean is within tau m of c. So if the groups that hold a client that lies have a share
f of the clients of all kept groups, the mean of these differs from that of the others by at most f 2 tau m:

    mean(all kept) - mean(honest kept) = f (mean(lying kept) - mean(honest kept))

It says nothing of liars that stay within tau m, each in another group, and nothing of groups that honest data put far
away: they are dropped, too.

Trimmed means of each coordinate are no alternative for sums of matrices: the rare cells of a Gram matrix become zero,
and the matrix of what is left need not be definite.

**What is released** are the sums of all groups, each over `min_clients` clients or more. So sums over the same data are
not split more than once: a part of them would be a sum over few clients. Nor are sums with parts of their own.

A partial sum with groups is the partial sums of all groups, one after the other; a released one has the number of
contributions (8 bytes, little-endian) before each group's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, Floats, Route, VectorLayout
from protocols.sums.base import COUNT_BYTES, Buffer, Mechanism, SumPlan
from protocols.sums.possible import require_possible

LEAST_GROUPS: Final = 3
"""Groups without which a median has no meaning: of two, neither is nearer."""
MOST_GROUPS: Final = 100
TAU: Final = 1.2
"""Default of tau: what a liar reaches grows with it, and honest groups are nearly equally far (`bench/robust.py`)."""
_PIECE: Final = 2**16
"""Coordinates of which the median is taken at a time."""


@dataclass(frozen=True)
class KeptGroups:
    """The result of the rule. distances: d_g, by group. median: m. kept: indices of the kept groups, ascending."""

    distances: tuple[float, ...]
    median: float
    kept: tuple[int, ...]

    def relative(self, group: int) -> float:
        """Return the distance of a group by the median distance; 1 where all are equal."""
        return self.distances[group] / self.median if self.median else 1.0

    def deviation(self, share: float, tau: float) -> float:
        """Return how far the mean of the kept groups can be from that of those without a liar.

        share: of the clients of all kept groups, those in groups with a liar.
        """
        return share * 2.0 * tau * self.median


def keep_groups(means: Sequence[NDArray[np.floating]], tau: float) -> KeptGroups:
    """Return the groups whose means are near the others.

    means: of each group, all of one length. tau: at least 1, how many times the median distance a group may be away.
    Raises `ParameterError` for fewer than `LEAST_GROUPS` groups, other lengths, values that are not finite, and other
    tau.
    """
    if len(means) < LEAST_GROUPS:
        raise ParameterError(f"groups are compared from {LEAST_GROUPS} on, got {len(means)}")
    if not (isfinite(tau) and tau >= 1):
        raise ParameterError(f"tau must be finite and at least 1, or the rule keeps less than half, got {tau}")
    if means[0].ndim != 1 or any(mean.shape != means[0].shape for mean in means):
        raise ParameterError("the means of all groups must be vectors of one length")
    squares = np.zeros(len(means))
    for start in range(0, means[0].size, _PIECE):
        piece = np.array([mean[start : start + _PIECE] for mean in means], np.float64)
        if not np.isfinite(piece).all():
            raise ParameterError("the mean of a group holds a value that is not finite")
        off = piece - np.median(piece, axis=0)
        squares += np.einsum("gi,gi->g", off, off)
    distances = np.sqrt(squares)
    median = float(np.median(distances))
    kept = np.flatnonzero(distances <= tau * median * CLIP_SLACK)
    return KeptGroups(tuple(distances.tolist()), median, tuple(kept.tolist()))


def sum_of_kept(sums: Sequence[NDArray[np.floating]], clients: Sequence[int], kept: Sequence[int]) -> Floats:
    """Return the sum of the `kept` groups, times what makes it one of all clients; exact if all groups are kept.

    sums, clients: of each group, clients at least 1.
    """
    total: Floats = np.sum([sums[group] for group in kept], axis=0, dtype=np.float64)
    counted = sum(clients[group] for group in kept)
    return total if counted == sum(clients) else np.asarray(total * (sum(clients) / counted))


# --- sums of a mechanism, by group -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupSums:
    """The opened sums of all groups. clients: contributions by group. sums: None for one that no honest clients have.

    kept: what the rule says of each segment, by `block/segment`, with indices of groups.
    """

    clients: tuple[int, ...]
    sums: tuple[Floats | None, ...]
    kept: Mapping[str, KeptGroups]

    def total(self, layout: VectorLayout) -> Floats:
        """Return the sum of the groups that are used, as one of all clients, float64 (layout.length,)."""
        parts, none = list[Floats](), np.zeros(layout.length)
        for name, start, stop, integral in _segments(layout):
            sums = [(none if one is None else one)[start:stop] for one in self.sums]
            part = sum_of_kept(sums, self.clients, self.kept[name].kept)
            parts.append(np.rint(part) if integral else part)
        return np.concatenate(parts)

    def report(self) -> dict[str, float]:
        """Return, for a round's record, how many groups are used in all segments, and how far each is.

        The distance of a group is its largest one in a segment, by the median distance there. A sum that no honest
        clients have has none.
        """
        everyone = range(len(self.clients))
        used = set(everyone).intersection(*(found.kept for found in self.kept.values()))
        farthest = {
            f"group_{group + 1}_distance": max(found.relative(group) for found in self.kept.values())
            for group in everyone
            if self.sums[group] is not None
        }
        return {"groups": float(len(everyone)), "groups_used": float(len(used)), **farthest}


def _segments(layout: VectorLayout) -> Iterable[tuple[str, int, int, bool]]:
    """Yield the name of each segment, where its values begin and end, and whether they are counts."""
    start = 0
    for block in layout.blocks:
        for segment in block.segments:
            yield f"{block.name}/{segment.name}", start, start + segment.length, segment.integral
            start += segment.length


def require_groups(layout: VectorLayout, cohort: int, groups: int) -> None:
    """Raise `ParameterError` if sums of this layout over `cohort` clients cannot be split into so many groups."""
    if cohort % groups:
        raise ParameterError(
            f"a cohort of {cohort} cannot be split into {groups} equal groups: choose cohort_size "
            f"{cohort - cohort % groups or groups} or {cohort + groups - cohort % groups}"
        )
    if layout.sum_class.repeated and layout.sum_class.data == "rows":
        raise ParameterError(
            "all sums of this task are over the same rows, and sums of groups say more of them: an item needs "
            "min_owners owners in every group, and so many items are left out that recommendations are far worse "
            "(53 % on a sample of Gowalla with 3 groups): leave groups out"
        )
    if len(layout.blocks) > 1:
        raise ParameterError(
            "a sum of several levels is not split into groups: each level in each group would need its own floor"
        )


def aggregate_bytes(groups: int, of_group: int) -> int:
    """Return the length of a released sum of so many groups. of_group: that of one of them without its count."""
    return of_group if groups == 1 else groups * (COUNT_BYTES + of_group)


def split_groups(plan: SumPlan, partial: Buffer | None) -> list[memoryview | None]:
    """Return the partial sums of all groups; `CodecError` for another length than the plan's."""
    if partial is None:
        return [None] * plan.groups
    view = memoryview(partial).cast("B")
    if view.nbytes != plan.partial_bytes:
        raise CodecError(f"a partial sum has {plan.partial_bytes} bytes, got {view.nbytes}")
    length = plan.partial_bytes // plan.groups
    return [view[start : start + length] for start in range(0, view.nbytes, length)]


def fold_by_group(
    fold: Callable[[int, Iterable[tuple[Route, Buffer]]], bytes],
    plan: SumPlan,
    contributions: Iterable[tuple[int, Route, Buffer]],
) -> bytes:
    """Return the partial sum of all groups. fold: returns that of one group with these contributions more.

    contributions: with the index of their group, in ascending order of it, or `ParameterError`.
    """
    runs, parts = groupby(contributions, key=lambda one: one[0]), list[bytes]()
    following = next(runs, None)
    for group in range(plan.groups):
        own: Iterable[tuple[Route, Buffer]] = ()
        if following is not None and following[0] == group:
            own = ((route, body) for _, route, body in following[1])
        parts.append(fold(group, own))
        if following is not None and following[0] == group:
            following = next(runs, None)
    if following is not None:
        raise ParameterError("contributions are folded in ascending order of their groups")
    return b"".join(parts)


def open_by_group(
    how: Mechanism, of_group: SumPlan, groups: int, tau: float, aggregate: Buffer, contributions: int
) -> GroupSums:
    """Return the opened sums of all groups of a released one. of_group: the plan of one group.

    Raises `CodecError` for another length, other contributions than the groups state, a group without any, and if half
    of the sums or more are none that honest clients can have.
    """
    view, length = memoryview(aggregate).cast("B"), COUNT_BYTES + of_group.aggregate_bytes
    if view.nbytes != groups * length:
        raise CodecError(f"a sum of {groups} groups has {groups * length} bytes, got {view.nbytes}")
    parts = [view[start : start + length] for start in range(0, view.nbytes, length)]
    clients = tuple(int.from_bytes(part[:COUNT_BYTES], "little") for part in parts)
    if sum(clients) != contributions or not 1 <= min(clients) <= max(clients) <= of_group.max_contributions:
        raise CodecError(f"the groups of the sum state other contributions than {contributions}")
    sums = [_opened(how, of_group, part[COUNT_BYTES:], count) for part, count in zip(parts, clients, strict=True)]
    possible = [group for group, one in enumerate(sums) if one is not None]
    if 2 * len(possible) <= groups:
        raise CodecError(f"the sums of {groups - len(possible)} of {groups} groups are none that honest clients have")
    kept = {}
    for name, start, stop, _ in _segments(of_group.layout):
        means = [one[start:stop] / count for one, count in zip(sums, clients, strict=True) if one is not None]
        kept[name] = _of_all(_keep(means, tau), possible, groups)
    return GroupSums(clients, tuple(sums), kept)


def _opened(how: Mechanism, plan: SumPlan, part: Buffer, count: int) -> Floats | None:
    """Return the sum of one group; None if honest clients can have no such sum."""
    try:
        total = how.open(plan, part, count, None)
        require_possible(plan, total, count)
    except CodecError:
        return None
    return total


def _keep(means: Sequence[Floats], tau: float) -> KeptGroups:
    """Return what the rule says; of two groups, the third of which lied beyond all bounds, both."""
    if len(means) < LEAST_GROUPS:
        return KeptGroups((0.0,) * len(means), 0.0, tuple(range(len(means))))
    return keep_groups(means, tau)


def _of_all(found: KeptGroups, possible: Sequence[int], groups: int) -> KeptGroups:
    """Return what the rule says of the `possible` groups with the indices of all."""
    distances = [inf] * groups
    for group, distance in zip(possible, found.distances, strict=True):
        distances[group] = distance
    return KeptGroups(tuple(distances), found.median, tuple(possible[group] for group in found.kept))
