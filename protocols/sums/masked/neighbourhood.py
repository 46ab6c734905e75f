"""The neighbours k of a client in a masked round, and the threshold t of the shares that reconstruct its secrets.

Every client shares its two secrets among k neighbours, and t of the shares reconstruct a secret. Of n clients at most
A = max(1, floor(corrupt * n)) collude with the server, none if corrupt is 0, and at most D = floor(dropout * n) drop
out, so S = n - D survive. The graph is the circle of the cohort in random order, each linked with the k/2 nearest on
either side, hence the corrupt neighbours of a client are hypergeometric (Bell et al., CCS 2020; here a client holds no
share of its own). Per round, over all clients, with probability

    2^-(sigma+1)  at most, the honest survivors fall apart, and the server would learn the sum of each part.
                  curious: n(n-k-1)/2 * prod_{i<k} (A+D-i)/(n-i);
                  semi-malicious: n(n-k-1)/2 * Pr[two windows of k/2 places hold t - k/2 of the A or more, each]
    2^-(sigma+1)  at most, a client has so many corrupt neighbours that they reconstruct its secret:
                  n * Pr[Hyp(n, A, k) >= t]; semi-malicious: n * Pr[Hyp(n, A, k) >= 2t-k]
    2^-eta        at most, a client has too few survivors among its neighbours, and the round fails:
                  n * Pr[Hyp(n, S, k) < t]

*Parts.* A curious server's dropouts do not depend on the graph. A semi-malicious server declares clients dropped out
after it has seen the graph, as many as it likes. Parts need two gaps of at least k/2 places without an honest survivor.
The honest survivor before a gap has at most k/2 surviving neighbours on its other side, and answers only if t of its
neighbours signed the survivors, so the k/2 places after it hold at least t - k/2 corrupt clients. The two windows are
disjoint, with an honest survivor before each: n(n-k-1)/2 pairs. Their k places are a uniform sample, so with
Z = Hyp(n, A, k) and h = t - k/2

    Pr[both hold h or more] = sum_z Pr[Z = z] * sum_{h <= x <= z-h} C(k/2, x) C(k/2, z-x) / C(k, z)

exactly; 0 if A < 2h. The union bound over the pairs is the only loss.

A semi-malicious server may also report a client as alive to some neighbours and as dropped out to others. It must not
get t honest shares for both, hence 2t > k + corrupt neighbours: the semi-malicious form of the second line.

*The complete graph.* In small cohorts no sparse graph has such tails. Then every client is a neighbour of every other,
k = n-1, and the conditions are exact: at most A neighbours of an honest client are corrupt and at least S-1 survive, so

    A < t <= S-1   (curious)      n-1+A < 2t and t <= S-1   (semi-malicious)

with t at least 2. At least two honest clients survive, and their graph is complete: all three probabilities are 0.

*Tries.* The graph follows from the digest of the roster, which the clients' keys of the round are in, so a server can
try rosters only while the round waits for one. After T tries the probability is T * 2^-sigma at most: sigma = 64 leaves
2^-33 after 2^31 tries, which 1,000 cores make in an hour at 1.9 ms each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, inf, log2
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.sums.groups import MIN_CLIENTS

Mode = Literal["curious", "semi-malicious"]
MOST_CLIENTS: Final = 2**31 - 1
_MOST_NEIGHBOURS: Final = 1024
_MORE_CLIENTS: Final = 32
"""How many larger cohorts are tried for the text of a refusal."""


@dataclass(frozen=True)
class Neighbourhood:
    """The parameters of a round's neighbour graph."""

    clients: int
    degree: int
    """Neighbours of each client."""
    threshold: int
    """Shares that reconstruct a secret."""
    corrupt: float
    dropout: float
    mode: Mode
    sigma: int
    eta: int
    log2_disconnected: float
    """Base-2 logarithm of the probability in the module's docstring, over all clients, as of the two below; -inf for
    0."""
    log2_too_many_corrupt: float
    log2_too_few_survivors: float

    def describe(self) -> dict[str, Any]:
        """Return the fields, JSON-ready; the logarithm of an impossible event is None."""
        return {name: None if value == -inf else value for name, value in asdict(self).items()}


def choose_neighbourhood(
    clients: int,
    corrupt: float,
    dropout: float,
    mode: Mode = "semi-malicious",
    sigma: int = 64,
    eta: int = 30,
    groups: int = 1,
) -> Neighbourhood:
    """Return the smallest even k, at most 1024, whose tails hold with some t, and the smallest such t.

    If there is none, return the complete graph. corrupt, dropout: at least 0 and below 1, taken as decimals exactly as
    written. groups: in which `clients` are split equally; then k and t are those within one group, all that collude may
    be in the same one, and those that drop out are in any by chance. Raises `ParameterError`, which names the condition
    that fails and what would fit.
    """
    if groups > 1:
        return _in_a_group(clients, corrupt, dropout, mode, sigma, eta, groups)
    if not MIN_CLIENTS <= clients <= MOST_CLIENTS:
        raise ParameterError(f"a masked sum has {MIN_CLIENTS} to {MOST_CLIENTS} clients, got {clients}")
    for name, share in (("corrupt", corrupt), ("dropout", dropout)):
        if not 0.0 <= share < 1.0:
            raise ParameterError(f"{name} is a share of the cohort, at least 0 and below 1, got {share}")
    if not (1 <= sigma <= 128 and 1 <= eta <= 128):
        raise ParameterError(f"sigma and eta are 1 to 128, got {sigma} and {eta}")
    found = _search(clients, corrupt, dropout, mode, sigma, eta)
    if isinstance(found, str):
        raise ParameterError(_error_text(found, clients, corrupt, dropout, mode, sigma, eta))
    return found


def _in_a_group(
    clients: int, corrupt: float, dropout: float, mode: Mode, sigma: int, eta: int, groups: int
) -> Neighbourhood:
    """Return the neighbourhood of a group: that of a round of its own, with all A, and `in_a_group` of D, in it.

    The server chooses who is asked, and so who is with whom. The failure probabilities are those of all groups
    together, half of that of a dropout for what is beyond.
    """
    size, more = clients // groups, ceil(log2(groups)) + 1
    if clients % groups or size < MIN_CLIENTS:
        raise ParameterError(
            f"{clients} clients cannot be split into {groups} equal groups of at least {MIN_CLIENTS}: choose a "
            f"multiple of {groups} from {MIN_CLIENTS * groups} on"
        )
    bad, gone = corrupt_clients(corrupt, clients), in_a_group(clients, _floor(dropout, clients), groups, eta)
    try:
        if max(bad, gone) >= size:
            raise ParameterError(f"{max(bad, gone)} clients may be all of a group of {size}")
        shares = _share_of(bad, size), _share_of(gone, size)
        return choose_neighbourhood(size, *shares, mode, min(sigma + more, 128), min(eta + more, 128))
    except ParameterError as error:
        raise ParameterError(
            f"{groups} groups of {size} clients, in one of which {bad} may collude, and {gone} drop out: {error}; or "
            "choose fewer groups, a larger cohort, or a smaller eta"
        ) from error


def in_a_group(clients: int, marked: int, groups: int, bits: int) -> int:
    """Return how many of the `marked` are in any of the equal groups of `clients`, but with probability 2^-(bits + 1).

    They are in groups by chance, so their number in one is hypergeometric.
    """
    above = _Hypergeometric(clients, marked, clients // groups).at_least(clients // groups)
    return int(np.argmax(np.append(above, -inf) <= -(bits + 1.0) - log2(groups))) - 1


def _share_of(part: int, whole: int) -> float:
    """Return a decimal of which `_floor` makes `part` of `whole` again."""
    return float(f"{ceil(Fraction(part, whole) * 10**9) / 10**9:.9f}")


@lru_cache(maxsize=256)
def _search(clients: int, corrupt: float, dropout: float, mode: Mode, sigma: int, eta: int) -> Neighbourhood | str:
    """Return the neighbourhood, or the text of the condition that fails."""
    bad, gone = corrupt_clients(corrupt, clients), _floor(dropout, clients)
    most = min(clients - 2, _MOST_NEIGHBOURS)
    disconnected = _disconnected(clients, bad + gone, most)
    corrupt_tail, survivor_tail = _Hypergeometric(clients, bad, most), _Hypergeometric(clients, clients - gone, most)
    secret, alive = -(sigma + 1.0), float(-eta)
    failing = "no threshold is both above the number of corrupt neighbours and within that of survivors"
    for degree in range(2, most + 1, 2):
        above, below = corrupt_tail.at_least(degree) + log2(clients), survivor_tail.at_most(degree) + log2(clients)
        corrupt_most = int(np.flatnonzero(above > secret)[-1])  # at(0) is log2(n) > secret
        least = max(corrupt_most + 1 if mode == "curious" else (degree + corrupt_most) // 2 + 1, 2)
        for threshold in range(least, int(np.argmax(below > alive)) + 1):
            apart = float(disconnected[degree])
            if mode == "semi-malicious":
                pairs = log2(clients * (clients - degree - 1) / 2)
                apart = pairs + corrupt_tail.in_both_halves(degree, threshold - degree // 2)
            if apart > secret:
                failing = "the graph of the honest survivors would be disconnected"
                continue
            revealing = threshold if mode == "curious" else 2 * threshold - degree
            logs = (apart, float(above[revealing]), float(below[threshold - 1]))
            return Neighbourhood(clients, degree, threshold, corrupt, dropout, mode, sigma, eta, *logs)
    if clients - 1 <= _MOST_NEIGHBOURS:
        threshold = max(bad + 1 if mode == "curious" else (clients - 1 + bad) // 2 + 1, 2)
        if threshold <= clients - gone - 1:
            return Neighbourhood(clients, clients - 1, threshold, corrupt, dropout, mode, sigma, eta, -inf, -inf, -inf)
    return failing


def corrupt_clients(share: float, clients: int) -> int:
    """Return the number of clients that may collude: at least one unless the share is 0, however small the cohort."""
    return max(1, _floor(share, clients)) if share else 0


def quorum(share: float, members: int, groups: int = 1) -> int:
    """Return the signatures of one set that a client needs, its own included, where at most `share` of `members` lie.

    groups: in which the members are split; then the signatures are of members of one group, and all that lie may be
    among them.

    Of n members at most A sign two sets. Two sets with more than (n + A) / 2 signatures each have an honest member in
    common, which signs one set in a round, and over the same data only sets that fit. The neighbours alone, as in Bell
    et al. (2020, section 4), leave room for two sets in a sparse graph.
    """
    return (members // groups + corrupt_clients(share, members)) // 2 + 1


def _floor(share: float, clients: int) -> int:
    """Return floor(share * clients), with share as the decimal it is written as: 0.29 of 100 is 29."""
    return floor(Fraction(str(share)) * clients)


def _disconnected(clients: int, lost: int, most: int) -> NDArray[np.float64]:
    """Return log2 of the curious bound on the probability of a disconnected graph, for k from 0 to `most`."""
    steps = np.arange(most)
    with np.errstate(divide="ignore"):
        ratios = np.log2(np.maximum(lost - steps, 0.0)) - np.log2(clients - steps)
        pairs = np.log2(clients * (clients - np.arange(most + 1) - 1.0) / 2.0)
    bound: NDArray[np.float64] = pairs + np.concatenate([[0.0], np.cumsum(ratios)])
    return bound


class _Hypergeometric:
    """The tails, in log2, of the number of marked among k neighbours, if `marked` of `clients` are; for k up to `most`.

    Pr[x] = C(marked, x) C(rest, k-x) / C(clients, k); the logarithms of the coefficients are computed once.
    """

    def __init__(self, clients: int, marked: int, most: int) -> None:
        self._marked, self._rest = _log_binomials(marked, most), _log_binomials(clients - marked, most)
        self._all = _log_binomials(clients, most)

    def at_least(self, degree: int) -> NDArray[np.float64]:
        """Return log2 Pr[X >= x] for x = 0 to k."""
        return self._summed(self._log_weights(degree)[::-1])[::-1]

    def at_most(self, degree: int) -> NDArray[np.float64]:
        """Return log2 Pr[X <= x] for x = 0 to k."""
        return self._summed(self._log_weights(degree))

    def in_both_halves(self, degree: int, least: int) -> float:
        """Return log2 Pr[each half of the k places has `least` marked or more]; `least` from 0 to k/2."""
        half, among = (np.exp(_log_binomials(size, size)) for size in (degree // 2, degree))  # below 2^1024
        ways = np.zeros(degree + 1)
        ways[2 * least :] = np.convolve(half[least:], half[least:])
        probability = float(np.sum(np.exp(self._log_weights(degree)) * (ways / among)))
        return log2(probability) if probability else -inf

    def _log_weights(self, degree: int) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = self._marked[: degree + 1] + self._rest[degree::-1] - self._all[degree]
        return weights

    @staticmethod
    def _summed(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log2 of the cumulative sums; -inf for 0."""
        sums = np.cumsum(np.exp(log_weights), dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs: NDArray[np.float64] = np.minimum(np.log2(sums), 0.0)
        return logs


def _log_binomials(size: int, most: int) -> NDArray[np.float64]:
    """Return ln C(size, x) for x = 0 to `most`; -inf beyond `size`."""
    steps = np.arange(most)
    with np.errstate(divide="ignore"):
        return np.concatenate([[0.0], np.cumsum(np.log(np.maximum(size - steps, 0.0)) - np.log(steps + 1.0))])


def _error_text(failing: str, clients: int, corrupt: float, dropout: float, mode: Mode, sigma: int, eta: int) -> str:
    """Return the error text: the condition that fails, and the parameters that would fit."""
    fitting = []
    less = _largest_below(dropout, lambda share: _search(clients, corrupt, share, mode, sigma, eta))
    if less is not None:
        fitting.append(f"a dropout of at most {less:g}")
    less = _largest_below(corrupt, lambda share: _search(clients, share, dropout, mode, sigma, eta))
    if less:  # 0 would say that nobody colludes, which clients refuse
        fitting.append(f"a corrupt share of at most {less:g}")
    for more in range(clients + 1, clients + 1 + _MORE_CLIENTS) if clients <= _MORE_CLIENTS else ():
        if not isinstance(_search(more, corrupt, dropout, mode, sigma, eta), str):
            fitting.append(f"{more} clients")
            break
    if mode == "semi-malicious" and not isinstance(_search(clients, corrupt, dropout, "curious", sigma, eta), str):
        fitting.append("mode curious")
    return (
        f"no neighbourhood of {clients} clients, with at most {_MOST_NEIGHBOURS} neighbours each, withstands a "
        f"corrupt share of {corrupt:g} and a dropout of {dropout:g} in mode {mode}: {failing}; "
        f"{', or '.join(fitting) or 'smaller shares of both'} would fit"
    )


def _largest_below(share: float, search: Callable[[float], Neighbourhood | str]) -> float | None:
    """Return the largest share in hundredths, below `share`, that has a neighbourhood, by bisection; None if none."""
    low, high = -1, ceil(Fraction(str(share)) * 100)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if isinstance(search(middle / 100), str) else (middle, high)
    return None if low < 0 else low / 100
