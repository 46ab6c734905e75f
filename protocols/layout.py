"""The layout of contribution and aggregate vectors, which clients contribute to which part, and the class of a sum.

A *segment* is a run of values that share one bound. A *block* is a run of segments that is sealed, sent and folded as
one piece. A recipe defines the blocks of the AGGREGATE. A *route* is the number of blocks, from the first, to which a
client contributes (SCoLR: those of the columns that it trains).

**Few clients of one route.** A sum has a value of its own for each block, and whoever sees it can compare them: the
difference of two neighbouring blocks comes from the clients of one route. So a sum may only be released if each route
is that of no client, or of at least `min_clients` (`short_routes`). The counts of all blocks are sums over routes, so
they keep to the same floor. Clients whose resources differ draw levels; `levels_in_use` lowers some of them before a
round, so that each level has enough clients, with room for dropouts.

**The class of a sum** is how often the data of one client may enter sums like it. `min_clients` and the differencing
guard are about the clients of ONE released sum. What several sums give away together depends on what clients put into
them: a function of data that do not change (`once`), of the same data again (`repeated`), or of fresh randomness
(`trained`). So the layout of every sum states its class, and a recipe cannot leave it out. The rules: docs/rounds.md.

Zeros of a client without data never count towards `min_clients`: it abstains. The guard
(`protocols.privacy.differencing`) judges all sums of class `once` or `repeated` of the same data together. The class
also states which data: `rows`, the interactions that a client trains on, or `held-out`, the rows on which it measures
the model. The sums of one task are over one data set, and so are those of all tasks with one `data_set` label. The
class belongs to the sum, not to the recipe: a task may count items in its first sum and train in the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf, sqrt
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocols.errors import BudgetError, ParameterError, RefusalError, RoutingError

Floats = NDArray[np.float64]
PartOfSum = Callable[[int, int], Floats]
"""Returns values `start` to `stop` of an opened sum, float64 (stop - start,)."""

CLIP_SLACK: Final = 1.0 + 2.0**-22
"""Relative amount by which a value may exceed its clip, for float32 rounding of the clip itself."""


Rule = Literal["once", "repeated", "trained"]  # how often a client's data may enter sums of this class
Data = Literal["rows", "held-out"]  # of which of the client's rows the summed values are a function


@dataclass(frozen=True)
class SumClass:
    """The class of a sum.

    Raises `ParameterError` for `once` or `repeated` without data, and for `trained` with data.
    """

    rule: Rule
    data: Data | None = None
    """Which data it is of; None for `trained`, whose values are not a function of the data."""

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


ONCE_ROWS: Final = SumClass("once", "rows")  # item counts, rating sums
REPEATED_ROWS: Final = SumClass("repeated", "rows")  # power iteration, degrees of a frozen cohort
REPEATED_HELD_OUT: Final = SumClass("repeated", "held-out")  # measurements of the model on held-out rows
TRAINED: Final = SumClass("trained")  # updates, gradients, changes of factors


Route = int
"""The number of blocks, from the first, to which a contribution is added; 0 where contributions name their blocks."""


@dataclass(frozen=True)
class Segment:
    """`length` values of one kind, each at most `clip` in size in ONE contribution.

    Raises `ParameterError` for a length below 1 or that is no multiple of a row, and for a bound that is not finite and
    positive.
    """

    name: str
    length: int
    clip: float
    integral: bool = False
    """The values are whole numbers, and the opened sum is rounded to such."""
    sum_bound: float | None = None
    """A proven bound on every value of the SUM, if the recipe has one below contributions * clip; a ring needs no more
    room."""
    signed: bool = False
    """They may be negative, as with noise; False for counts."""
    norm: float | None = None
    sum_norm: float | None = None
    """Bounds on the L2 norm of all `length` values together, in one contribution and in a sum; None where the values'
    own bounds are all that is known."""
    noise: float = 0.0
    """Standard deviation of the noise in each value of one contribution, which `norm` leaves out."""
    gram: bool = False
    """The values are the upper triangle of r^T r, row by row, for a vector r with |r|^2 at most `norm`."""
    row: int | None = None
    """Number of values that belong to one item, or to one of whatever there are many of; None where the values are not
    of such parts."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ParameterError(f"segment {self.name!r}: length must be at least 1, got {self.length}")
        if self.row is not None and (self.row < 1 or self.length % self.row):
            raise ParameterError(f"segment {self.name!r}: {self.length} values are no rows of {self.row}")
        for name in ("clip", "sum_bound", "norm", "sum_norm"):
            bound = getattr(self, name)
            if bound is not None and not (np.isfinite(bound) and bound > 0):
                raise ParameterError(f"segment {self.name!r}: {name} must be finite and positive, got {bound}")

    def bound_on_sum(self, contributions: int) -> float:
        """Return the bound on the size of any value of a sum over `contributions` contributions."""
        worst = self.clip * contributions
        return worst if self.sum_bound is None else min(worst, self.sum_bound)

    def norm_of_sum(self, contributions: int) -> float:
        """Return the bound on the L2 norm of a sum over `contributions` contributions; infinite if none is known.

        Noise is allowed twice the norm that it has on average, and 8 deviations more: it exceeds that with a
        probability below 2^-64.
        """
        longest = inf if self.norm is None else self.norm * contributions
        longest = longest if self.sum_norm is None else min(longest, self.sum_norm)
        return longest + 2.0 * self.noise * sqrt(contributions) * (sqrt(self.length) + 8.0)


@dataclass(frozen=True)
class Block:
    """Segments that are sealed, sent and folded as one piece. Raises `ParameterError` without segments."""

    name: str
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments:
            raise ParameterError(f"block {self.name!r} has no segments")

    @property
    def length(self) -> int:
        """Number of values of all segments together."""
        return sum(segment.length for segment in self.segments)

    @property
    def shape(self) -> tuple[tuple[int, float, bool], ...]:
        """Length, clip and kind of each segment; a block can be added to blocks of equal shape only."""
        return tuple((s.length, s.clip, s.integral) for s in self.segments)

    def bounds(self) -> Floats:
        """Return the bound of each value in one contribution, float64 (length,)."""
        return np.repeat([s.clip for s in self.segments], [s.length for s in self.segments])

    def integral_mask(self) -> NDArray[np.bool_]:
        """Return which values are counts, bool (length,)."""
        return np.repeat([s.integral for s in self.segments], [s.length for s in self.segments])

    def check_clips(self, values: Floats) -> None:
        """Raise `BudgetError` for a value, of (..., length), that is not finite or exceeds its clip."""
        for segment, (first, last) in zip(self.segments, spans_of(s.length for s in self.segments), strict=True):
            part = values[..., first:last]
            if not max(part.max(), -part.min()) <= segment.clip * CLIP_SLACK:
                raise BudgetError(f"block {self.name!r} holds a value that is not finite or exceeds its clip")

    def check_values(self, values: Floats) -> None:
        """Do `check_clips` for a vector; `ParameterError` for another shape than (length,)."""
        if values.shape != (self.length,):
            raise ParameterError(f"block {self.name!r} needs {self.length} values, got shape {values.shape}")
        self.check_clips(values)

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return where each segment is: first place and the one behind the last, by name."""
        return dict(zip((s.name for s in self.segments), spans_of(s.length for s in self.segments), strict=True))

    def split(self, values: Floats) -> dict[str, Floats]:
        """Return views of `values` (length,) by segment name."""
        return {name: values[first:last] for name, (first, last) in self.spans().items()}

    def join(self, parts: Mapping[str, NDArray[np.floating]]) -> Floats:
        """Return one float64 vector (length,) of the parts by segment name; `ParameterError` if a part does not fit."""
        if set(parts) != {s.name for s in self.segments}:
            raise ParameterError(f"block {self.name!r} needs {[s.name for s in self.segments]}, got {sorted(parts)}")
        for segment in self.segments:
            if parts[segment.name].size != segment.length:
                raise ParameterError(
                    f"segment {segment.name!r} needs {segment.length} values, got {parts[segment.name].size}"
                )
        return np.concatenate([np.asarray(parts[s.name], dtype=np.float64).ravel() for s in self.segments])


@dataclass(frozen=True)
class VectorLayout:
    """The blocks of an aggregate, in their order in the opened vector.

    Raises `ParameterError` without blocks, or for an invalid `chosen`.
    """

    blocks: tuple[Block, ...]
    sum_class: SumClass = field(kw_only=True)
    """How often the data of one client may enter such sums (`protocols.layout`)."""
    chosen: int = field(default=0, kw_only=True)
    """0 if routes are public.

    Otherwise the number of blocks, all of equal shape, that each contribution adds to and names itself, in the clear:
    this reveals the choice, so a recipe needs explicit consent. The route is then 0 (`protocols.sums.wire` defines the
    wire form).
    """
    in_groups: bool | None = field(default=None, kw_only=True)
    """Whether the sum is split into groups in a task whose cohorts are. None: a sum of class `repeated` is not, and a
    task whose main sum is one of rows has no groups. True of one of rows: it is the first, of counts, and each client's
    part enters one such sum; all others over these rows say False: they stay whole.
    """
    is_floor: bool = field(default=False, kw_only=True)
    """Whether other sums are safe only if as many clients have something as this sum of counts says. Where it is in
    groups, no value that is used is above what all groups have together, though the rule of groups can count more.
    """
    narrow: bool = field(default=False, kw_only=True)
    """Whether masked sums have a ring that is only as wide as counts need; all values are counts then."""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ParameterError("a layout needs at least one block")
        if not 0 <= self.chosen <= len(self.blocks):
            raise ParameterError(f"{self.chosen} of {len(self.blocks)} blocks cannot be chosen")
        first = self.blocks[0]
        if self.chosen and any(block is not first and block.shape != first.shape for block in self.blocks):
            raise ParameterError("blocks that a contribution chooses among must have equal shapes")

    def __hash__(self) -> int:
        # fast, because layouts are keys of caches
        return hash((len(self.blocks), self.blocks[0], self.chosen, self.sum_class))

    @property
    def is_split(self) -> bool:
        """Whether the sum is split into groups in a task whose cohorts are."""
        return not self.sum_class.repeated if self.in_groups is None else self.in_groups

    @property
    def length(self) -> int:
        """Number of values in the whole aggregate."""
        return len(self.blocks) * self.blocks[0].length if self.chosen else sum(block.length for block in self.blocks)

    def integral_spans(self) -> list[tuple[int, int]]:
        """Return where the counts of the aggregate are: first place and the one behind the last, of each segment."""
        blocks = (self.blocks[0],) * len(self.blocks) if self.chosen else self.blocks
        segments = [segment for block in blocks for segment in block.segments]
        spans = spans_of(segment.length for segment in segments)
        return [span for segment, span in zip(segments, spans, strict=True) if segment.integral]

    def contribution_bounds(self, route: Route, start: int = 0, stop: int | None = None) -> Floats:
        """Return the clips of values `start` to `stop` (None: all) of a contribution along `route`, in the order sent.

        float64, for as many of these values as there are.
        """
        if self.chosen:
            self.check_route(route)
            return np.tile(self.blocks[0].bounds(), self.chosen)[start:stop]
        segments = [segment for block in self.contribution_blocks(route) for segment in block.segments]
        ends = np.cumsum([segment.length for segment in segments], dtype=np.int64)
        stop = int(ends[-1]) if segments and stop is None else stop or 0
        inside = np.clip(ends, start, stop)
        return np.repeat([segment.clip for segment in segments], np.diff(inside, prepend=start))

    def split(self, values: Floats) -> tuple[Floats, ...]:
        """Return views of `values` (length,) by block, in order; `ParameterError` for another shape."""
        if values.shape != (self.length,):
            raise ParameterError(f"expected a vector of {self.length} values, got shape {values.shape}")
        return tuple(values[first:last] for first, last in spans_of(block.length for block in self.blocks))

    def scatter(self, route: Route, blocks: Sequence[Floats]) -> Floats:
        """Return the vector, float64 (length,), that a contribution along `route` adds to the sum: 0 outside its route.

        Raises `ParameterError` for a block of another shape.
        """
        whole = np.zeros(self.length)
        places = self.split(whole)
        for place, block, values in zip(places[:route], self.contribution_blocks(route), blocks, strict=True):
            if values.shape != (block.length,):
                raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {values.shape}")
            place[:] = values
        return whole

    def check_route(self, route: Route) -> None:
        """Raise `RoutingError` unless a contribution can have this route."""
        if self.chosen and route:
            raise RoutingError("contributions to this sum name their blocks themselves: their route must be 0")
        if not 0 <= route <= len(self.blocks):
            raise RoutingError(f"the sum has {len(self.blocks)} blocks, a contribution cannot have {route}")

    def contribution_blocks(self, route: Route) -> tuple[Block, ...]:
        """Return the blocks of a contribution along `route`, in the order sent; `RoutingError` for an invalid route."""
        self.check_route(route)
        return self.blocks[:route]

    def check_contribution(self, route: Route, vectors: Sequence[Floats]) -> tuple[Block, ...]:
        """Return the blocks of a contribution along `route` that is made of these vectors.

        Raises `ParameterError` for another number or shape of vectors, `BudgetError` as `Block.check_clips` does.
        """
        blocks = self.contribution_blocks(route)
        if len(vectors) != len(blocks):
            raise ParameterError(f"the route has {len(blocks)} blocks, {len(vectors)} were given")
        for block, values in zip(blocks, vectors, strict=True):
            block.check_values(values)
        return blocks


def spans_of(lengths: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield where parts of these lengths are, one behind the other: first place and the one behind the last."""
    return pairwise(accumulate(lengths, initial=0))


def whole_route(layout: VectorLayout) -> Route:
    """Return the route of a contribution to all blocks of the sum; 0 if contributions choose their blocks."""
    return 0 if layout.chosen else len(layout.blocks)


def check_finite(values: NDArray[np.floating], what: str) -> None:
    """Raise `ParameterError` for a value that is not finite. what: the name of the values in the error's text."""
    if not np.isfinite(values).all():
        raise ParameterError(f"{what} holds values that are not finite: training diverged")


def norm_of(values: Floats) -> float:
    """Return the L2 norm; squares of a few values need no matrix library and its threads."""
    return sqrt(float(np.square(values).sum()))


def clip_to_bounds(block: Block, values: Floats) -> tuple[Floats, int]:
    """Return `values` (length,) clipped to the block's bounds, and how many were clipped, which callers must report.

    Raises `ParameterError` for a value that is not finite: training diverged.
    """
    check_finite(values, f"block {block.name!r}")
    bounds = block.bounds()
    clipped = int(np.count_nonzero(np.abs(values) > bounds))
    return (np.clip(values, -bounds, bounds) if clipped else values), clipped


def levels_in_use(drawn: Iterable[int], min_clients: int) -> tuple[int, ...]:
    """Return the levels, ascending from 1, to which clients that drew the levels `drawn` (from 1) are lowered.

    From the highest level down, a level is used if at least `least` clients are left for it: those that drew it or a
    higher one that is not used. `least` is min_clients, a quarter more and one, since some may drop out. The lowest
    level used above 1 is given up if too few are left for level 1.
    """
    least, counts, waiting = min_clients + min_clients // 4 + 1, Counter(drawn), 0
    used: list[int] = []
    for level in sorted((level for level in counts if level > 1), reverse=True):
        waiting += counts[level]
        if waiting >= least:
            used.append(level)
            waiting = 0
    if used and 0 < waiting + counts[1] < least:
        used.pop()
    return (1, *reversed(used))


def lowered(level: int, used: tuple[int, ...]) -> int:
    """Return the largest of the levels `used` that is not above `level`; `level` itself where `used` is empty."""
    return max((each for each in used if each <= level), default=level)


def check_levels(used: tuple[int, ...], most: int) -> None:
    """Raise `ParameterError` unless these are levels in use: from 1, ascending, at most `most`; none if most is 0."""
    if most == 0 and not used:
        return
    if not used or used[0] != 1 or used[-1] > most or list(used) != sorted(set(used)):
        stated = ", ".join(map(str, used)) or "none"
        raise ParameterError(f"the levels in use are {stated}: 1 and others up to {most} were expected, ascending")


def short_routes(routes: Iterable[Route], min_clients: int) -> list[int]:
    """Return the number of clients of each route that fewer than `min_clients` have, ascending; empty if none has."""
    return sorted(count for count in Counter(routes).values() if count < min_clients)


def refuse_short_routes(clients: Iterable[str], route: Callable[[str], Route], min_clients: int, what: str) -> None:
    """Raise `RefusalError` if fewer than `min_clients` of these clients, but not none, have a route in common.

    route: returns the route of a client. what: which clients these are, such as "the roster".
    """
    short = short_routes(map(route, clients), min_clients)
    if short:
        raise RefusalError(
            f"{what} has {short[0]} clients that contribute to the same blocks of the sum, and {min_clients} are "
            "needed: the sum would show what these few sent"
        )
