"""The differencing guard: two sums over the same data must not differ by the data of a few.

A job that sums the same data again and again (power iteration, repeated degrees) releases S(A) and later S(B). Where
the vectors of those in both are the same, or follow from one public model, the difference of the sums is a sum over the
symmetric difference of A and B: of one client, if one dropped out. `min_clients` says below how many clients a sum is
too much about each of them, so it is the threshold for differences as well: two released sets of survivors are either
the same, or at least that many clients apart. Every pair of released sums counts, not only neighbours in time.

What a job does about it (`judge` says what, the service does it):

*The cohort is frozen.* The first sum draws it; each later one asks the survivors of the last released sum. A client
that drops out of a released sum has left for good. So the sets only shrink, and no client is added and subtracted.

*A few drop out.* Their number is known when the contributions are in, before anything is opened. The sum is then not
released at all: its masks are never taken off. Those that dropped out leave the job, and with them as many others,
drawn at random, as the threshold wants; the same sum is made again over those who stay. Had the missing ones been asked
again instead, a client that comes and goes could hold the job up for ever; and a sum cannot be cut down to fewer
clients once their contributions are folded into it.

*Too few would stay.* Below `min_clients` there is no sum, and the job is over.

Every such attempt takes at least one client out of the job, so there are finitely many.
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

    leave_out: survivors that must leave, too; the sum over the others may be released.
    """

    difference: int
    leave_out: frozenset[str]


Verdict = Allowed | TooSimilar


def judge(earlier: Iterable[Collection[str]], survivors: AbstractSet[str], threshold: int, seed: bytes) -> Verdict:
    """Whether the sum over `survivors` may follow the released sums over the `earlier` sets of the same job.

    Two sets may be equal, or differ by `threshold` clients or more (symmetric difference). seed: 32 secret random bytes
    that choose who must leave. `ParameterError` for a threshold below 1.
    """
    if threshold < 1:
        raise ParameterError(f"sums differ by at least 1 client, if they differ, got a threshold of {threshold}")
    released = [frozenset(clients) for clients in earlier]
    differences = [len(survivors ^ clients) for clients in released]
    close = [difference for difference in differences if 0 < difference < threshold]
    if not close:
        return Allowed()
    return TooSimilar(min(close), frozenset(survivors) - _kept(released, frozenset(survivors), threshold, seed))


def _kept(released: list[frozenset[str]], kept: frozenset[str], threshold: int, seed: bytes) -> frozenset[str]:
    """A part of `kept` that is close to no released set; empty in the worst case. Each turn takes somebody out."""
    while kept:
        other = next((clients for clients in released if 0 < len(kept ^ clients) < threshold), None)
        if other is None:
            break
        if kept > other:  # without those who came in addition it is the released sum once more
            kept = other
            continue
        shared = sorted(kept & other)
        missing = threshold - len(kept ^ other)
        order = permutation(seed, "differencing guard", len(shared))
        kept = kept - {shared[place] for place in order[:missing]} if shared else frozenset()
    return kept
