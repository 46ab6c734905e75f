"""The differencing guard: two released sums over the same data must not differ by the data of a few clients.

A task that sums the same data repeatedly (power iteration, repeated degrees) releases S(A) and later S(B). If the
vectors of the clients in both are equal, or follow from one public model, the difference of the sums is a sum over
the symmetric difference of A and B: over one client, if one dropped out. A sum over fewer than `min_clients` clients
reveals too much about each, so `min_clients` is the threshold for differences too: two released sets of survivors are
equal, or differ by at least that many clients. This holds for every pair of released sums, not only consecutive ones.

Pairs are not enough: S(P), S(Q) and S(P + Q + {u}) differ pairwise by many clients, and together they reveal u. So the
new sum must not make any linear combination of released sums one over fewer than the threshold
(`protocols.privacy.isolation`, exact). A sum that is itself a combination of released ones reveals nothing new. Sums
that overlap in so complex a way that this cannot be computed are refused.

The rules (`judge` decides, the service acts):

*The cohort is frozen.* The first sum draws it; each later sum asks the survivors of the last released sum. A client
that drops out of a released sum has left the task. The sets therefore only shrink.

*A few clients drop out.* Their number is known when the contributions are in, before anything is opened. The sum is not
released: its masks are never removed. The dropouts leave the task, together with as many others, drawn at random, as
the threshold requires, and the same sum is repeated over the remaining clients. If the dropouts were asked again
instead, a client that comes and goes could block the task; and contributions cannot be removed from a sum once they
are folded.

*A combination isolates a few.* These clients leave the task where they are among the survivors. Otherwise others leave,
drawn at random, until the sum over those who remain may be released.

*Too complex.* The sum is refused and nobody leaves. The round counts as failed, and the task ends after
`max_failed_rounds` of them.

*Too few clients remain.* Below `min_clients` there is no sum, and the task ends.

Every other attempt removes at least one client from the task, so their number is finite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from protocols.crypto.random import permutation
from protocols.errors import ParameterError
from protocols.privacy.isolation import TooComplexError, newly_isolated

_MOST_DRAWS: Final = 8
"""Draws of clients that leave because of combinations; afterwards only a set that was released before can remain."""


@dataclass(frozen=True)
class Allowed:
    """The sum may be released."""


@dataclass(frozen=True)
class TooSimilar:
    """The sum must not be released: an earlier one differs by `difference` clients, below the threshold."""

    difference: int
    leave_out: frozenset[str]
    """Survivors that must leave as well; the sum over the others may be released."""


@dataclass(frozen=True)
class Isolating:
    """The sum must not be released: together with earlier ones it isolates a sum over `clients` clients, too few."""

    clients: int
    leave_out: frozenset[str]
    """As in `TooSimilar`."""


@dataclass(frozen=True)
class TooComplex:
    """The sum must not be released: what it and the earlier ones reveal together cannot be computed. Nobody leaves."""

    reason: str


Judgement = Allowed | TooSimilar | Isolating | TooComplex


def judge(earlier: Iterable[Collection[str]], survivors: AbstractSet[str], threshold: int, seed: bytes) -> Judgement:
    """Return whether the sum over `survivors` may be released after the sums over the `earlier` sets of the same task.

    Two sets may be equal, or differ by `threshold` clients or more (symmetric difference). No combination of the new
    sum with earlier ones may be over fewer than `threshold` clients, or than `survivors` where these are fewer. seed:
    32 secret random bytes that determine who must leave. Raises `ParameterError` for a threshold below 1.
    """
    if threshold < 1:
        raise ParameterError(f"the threshold must be at least 1, got {threshold}")
    released, asked = [frozenset(clients) for clients in earlier], frozenset(survivors)
    differences = [len(asked ^ clients) for clients in released]
    close = [difference for difference in differences if 0 < difference < threshold]
    try:
        isolated = None if close else _isolated(released, asked, threshold)
        if not close and isolated is None:
            return Allowed()
        leave_out = asked - _largest_safe_subset(released, asked, threshold, seed)
    except TooComplexError as error:
        return TooComplex(str(error))
    return TooSimilar(min(close), leave_out) if isolated is None else Isolating(len(isolated), leave_out)


def _isolated(released: list[frozenset[str]], kept: frozenset[str], threshold: int) -> frozenset[str] | None:
    """Return the fewest clients that a combination of the sum over `kept` with released ones isolates, if too few."""
    return newly_isolated(released, kept, min(threshold, len(kept))) if kept else None


def _largest_safe_subset(
    released: list[frozenset[str]], kept: frozenset[str], threshold: int, seed: bytes
) -> frozenset[str]:
    """Return a subset of `kept` whose sum may be released; possibly empty. Each turn removes a client."""
    draws = 0
    while kept:
        other = next((clients for clients in released if 0 < len(kept ^ clients) < threshold), None)
        if other is None:
            isolated = _isolated(released, kept, threshold)
            if isolated is None:
                break
            if kept & isolated and draws == 0:
                kept, draws = kept - isolated, 1
            elif draws < _MOST_DRAWS:
                kept, draws = _without(kept, kept, threshold - len(isolated), seed), draws + 1
            else:
                kept = max((clients for clients in released if clients < kept), key=len, default=frozenset())
            continue
        if kept > other:  # without its additional clients it is the released set
            kept = other
            continue
        kept = _without(kept, kept & other, threshold - len(kept ^ other), seed)
    return kept


def _without(kept: frozenset[str], among: frozenset[str], count: int, seed: bytes) -> frozenset[str]:
    """Return `kept` without `count` clients `among` it, drawn at random; nobody remains where there are none."""
    if not among:
        return frozenset()
    ordered = sorted(among)
    order = permutation(seed, "differencing guard", len(ordered))
    return kept - {ordered[place] for place in order[:count]}
