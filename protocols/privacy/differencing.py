"""The differencing guard: two released sums over the same data must not differ by the data of a few clients.

A task that sums the same data repeatedly (power iteration, repeated degrees) releases S(A) and later S(B). If the
vectors of the clients in both are equal, or follow from one public model, the difference of the sums is a sum over
the symmetric difference of A and B: over one client, if one dropped out. A sum over fewer than `min_clients` clients
reveals too much about each, so `min_clients` is the threshold for differences too: two released sets of survivors are
equal, or differ by at least that many clients. This holds for every pair of released sums, not only consecutive ones.

The rules (`judge` decides, the service acts):

*The cohort is frozen.* The first sum draws it; each later sum asks the survivors of the last released sum. A client
that drops out of a released sum has left the task. The sets therefore only shrink.

*A few clients drop out.* Their number is known when the contributions are in, before anything is opened. The sum is not
released: its masks are never removed. The dropouts leave the task, together with as many others, drawn at random, as
the threshold requires, and the same sum is repeated over the remaining clients. If the dropouts were asked again
instead, a client that comes and goes could block the task; and contributions cannot be removed from a sum once they
are folded.

*Too few clients remain.* Below `min_clients` there is no sum, and the task ends.

Every such attempt removes at least one client from the task, so their number is finite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from protocols.crypto.public_random import permutation
from protocols.errors import ParameterError

__all__ = ["Allowed", "TooSimilar", "Verdict", "judge"]


@dataclass(frozen=True)
class Allowed:
    """The sum may be released."""


@dataclass(frozen=True)
class TooSimilar:
    """The sum must not be released: an earlier one differs by `difference` clients, below the threshold.

    leave_out: survivors that must leave as well; the sum over the others may be released.
    """

    difference: int
    leave_out: frozenset[str]


Verdict = Allowed | TooSimilar


def judge(earlier: Iterable[Collection[str]], survivors: AbstractSet[str], threshold: int, seed: bytes) -> Verdict:
    """Return whether the sum over `survivors` may be released after the sums over the `earlier` sets of the same task.

    Two sets may be equal, or differ by `threshold` clients or more (symmetric difference). seed: 32 secret random bytes
    that determine who must leave. Raises `ParameterError` for a threshold below 1.
    """
    if threshold < 1:
        raise ParameterError(f"the threshold must be at least 1, got {threshold}")
    released = [frozenset(clients) for clients in earlier]
    differences = [len(survivors ^ clients) for clients in released]
    close = [difference for difference in differences if 0 < difference < threshold]
    if not close:
        return Allowed()
    return TooSimilar(
        min(close), frozenset(survivors) - _largest_safe_subset(released, frozenset(survivors), threshold, seed)
    )


def _largest_safe_subset(
    released: list[frozenset[str]], kept: frozenset[str], threshold: int, seed: bytes
) -> frozenset[str]:
    """Return a subset of `kept` that is close to no released set; possibly empty. Each turn removes a client."""
    while kept:
        other = next((clients for clients in released if 0 < len(kept ^ clients) < threshold), None)
        if other is None:
            break
        if kept > other:  # without its additional clients it is the released set
            kept = other
            continue
        shared = sorted(kept & other)
        missing = threshold - len(kept ^ other)
        order = permutation(seed, "differencing guard", len(shared))
        kept = kept - {shared[place] for place in order[:missing]} if shared else frozenset()
    return kept
