"""The sums of groups, as bytes and opened: what a mechanism that adds ring elements does with the sum of each group.

A partial sum with groups is the partial sums of all groups, one after the other; a released one has the number of
contributions (8 bytes, little-endian) before each group's. In place of a group's sum that does not open, where others
do, stands `no_sum`, which is a sum of nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Final

import numpy as np

from protocols.errors import CodecError, ParameterError
from protocols.layout import Floats, Route, Segment, VectorLayout
from protocols.sums.base import COUNT_BYTES, Buffer, Mechanism, SumPlan
from protocols.sums.groups import LEAST_GROUPS, NO_RULE, KeptGroups, UsedSum, sum_of_kept, use_groups
from protocols.sums.possible import require_possible
from protocols.sums.wire import pack, ring_dtype

SMALLEST: Final = "smallest_group"
"""Name of the number of clients in the smallest group, in a round's record."""


@dataclass(frozen=True)
class GroupSums:
    """The opened sums of all groups."""

    clients: tuple[int, ...]
    """Contributions by group."""
    sums: tuple[Floats | None, ...]
    """None for one that no honest clients have."""
    used: Mapping[str, UsedSum]
    """What the rule makes of each segment, by `block/segment`, with indices of groups."""
    compared: bool = True
    """Whether there is a rule."""

    def total(self) -> Floats:
        """Return the sum that is used, as one of all clients, float64 (layout.length,)."""
        return np.concatenate([used.total for used in self.used.values()])

    def report(self) -> dict[str, float]:
        """Return, for a round's record, how many groups are used in all segments, the clients of the smallest, how far
        each is, and how limited.

        The distance of a group is its largest one in a segment, by the median distance there. A sum that no honest
        clients have has none. Limited is the largest share of its rows of a segment.
        """
        everyone = range(len(self.clients))
        kept = set(everyone).intersection(*(used.groups.kept for used in self.used.values()))
        found = {"groups": float(len(everyone)), "groups_used": float(len(kept)), SMALLEST: float(min(self.clients))}
        for group in everyone if self.compared else ():
            if self.sums[group] is not None:
                farthest = max(used.groups.relative(group) for used in self.used.values())
                found[f"group_{group + 1}_distance"] = farthest
                found[f"group_{group + 1}_limited"] = max(used.limited[group] for used in self.used.values())
        return found


def _segments(layout: VectorLayout) -> Iterable[tuple[str, Segment, int, int]]:
    """Yield the name of each segment, the segment, and where its values begin and end."""
    start = 0
    for block in layout.blocks:
        for segment in block.segments:
            yield f"{block.name}/{segment.name}", segment, start, start + segment.length
            start += segment.length


def merge_by_group(merge: Callable[[Iterable[Buffer]], bytes], plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums of all groups. merge: returns that of partial sums of one group."""
    parts = zip(*(split_groups(plan, partial) for partial in partials), strict=True)
    merged = [merge(one for one in of_group if one is not None) for of_group in parts]
    return b"".join(merged or [merge(())] * plan.groups)


def no_sum(bits: int, values: int) -> bytes:
    """Return the released elements of a sum that does not open: all are 2^(bits - 1), which no sum can have."""
    return pack(np.full(values, 1 << (bits - 1), ring_dtype(bits)), bits)


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
    mechanism: Mechanism, of_group: SumPlan, groups: int, tau: float, aggregate: Buffer, contributions: int
) -> GroupSums:
    """Return the opened sums of all groups of a released one. of_group: the plan of one group.

    Raises `CodecError` for another length, other contributions than the groups state, a group without any, and if half
    of the sums or more are none that honest clients can have; without a rule if one is.
    """
    view, length = memoryview(aggregate).cast("B"), COUNT_BYTES + of_group.aggregate_bytes
    if view.nbytes != groups * length:
        raise CodecError(f"a sum of {groups} groups has {groups * length} bytes, got {view.nbytes}")
    parts = [view[start : start + length] for start in range(0, view.nbytes, length)]
    clients = tuple(int.from_bytes(part[:COUNT_BYTES], "little") for part in parts)
    if sum(clients) != contributions or not 1 <= min(clients) <= max(clients) <= of_group.max_contributions:
        raise CodecError(f"the groups of the sum state other contributions than {contributions}")
    sums = [_opened(mechanism, of_group, part[COUNT_BYTES:], count) for part, count in zip(parts, clients, strict=True)]
    possible = [group for group, one in enumerate(sums) if one is not None]
    if 2 * len(possible) <= groups or (tau == NO_RULE and len(possible) < groups):
        raise CodecError(f"the sums of {groups - len(possible)} of {groups} groups are none that honest clients have")
    return used_sums(of_group.layout, sums, clients, tau)


def used_sums(layout: VectorLayout, sums: Sequence[Floats | None], clients: Sequence[int], tau: float) -> GroupSums:
    """Return what the rule makes of opened sums, float64 (layout.length,) each, and clients by group; see `GroupSums`.

    tau: `NO_RULE`, or at least 1. Of a layout that `is_floor` no value is above what the groups with a sum have
    together. There a liar can lower all values by the share of its group, which the rule alone would make good.
    """
    possible, used = [group for group, one in enumerate(sums) if one is not None], {}
    for name, segment, start, stop in _segments(layout):
        parts_of_sum = [one[start:stop] for one in sums if one is not None]
        found = _used(parts_of_sum, [clients[group] for group in possible], tau, segment.row or segment.length)
        scaled = found.total * (sum(clients) / sum(clients[group] for group in possible))
        total = np.rint(scaled) if segment.integral else scaled
        if layout.is_floor:
            total = np.minimum(total, np.sum(parts_of_sum, axis=0))
        used[name] = _of_all(replace(found, total=total), possible, len(sums))
    return GroupSums(tuple(clients), tuple(sums), used, compared=tau != NO_RULE)


def _opened(mechanism: Mechanism, plan: SumPlan, part: Buffer, count: int) -> Floats | None:
    """Return the sum of one group; None if honest clients can have no such sum."""
    try:
        total = mechanism.open(plan, part, count, None)
        require_possible(plan, total, count)
    except CodecError:
        return None
    return total


def _used(sums: Sequence[Floats], clients: Sequence[int], tau: float, row: int) -> UsedSum:
    """Return what the rule makes of a segment; of two groups, the third of which lied beyond all bounds, both whole."""
    if tau != NO_RULE and len(sums) >= LEAST_GROUPS:
        return use_groups(sums, clients, tau, row)
    everyone = tuple(range(len(sums)))
    kept = KeptGroups((0.0,) * len(sums), 0.0, everyone)
    return UsedSum(sum_of_kept(sums, clients, everyone), kept, (0.0,) * len(sums), np.full(sums[0].size // row, inf))


def _of_all(found: UsedSum, possible: Sequence[int], groups: int) -> UsedSum:
    """Return what the rule makes of the `possible` groups with the indices of all."""
    distances, limited = [inf] * groups, [0.0] * groups
    for group, distance, share in zip(possible, found.groups.distances, found.limited, strict=True):
        distances[group], limited[group] = distance, share
    kept = tuple(possible[group] for group in found.groups.kept)
    return replace(found, groups=KeptGroups(tuple(distances), found.groups.median, kept), limited=tuple(limited))
