"""What `/metrics` says of requests and uploads: counted per kind of request, and added up when it is asked for.

prometheus_client counts each series in several steps with a lock. A request belongs to four series, and so counting
took as long as finding the route. Here it is one lookup and three additions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from protocols.messages.problem import PROBLEM_TYPES

if TYPE_CHECKING:
    from aggregator_service.observability.request_record import RequestRecord

__all__ = ["RequestTallies"]

_CONTRIBUTION: Final = "contribution"
_KINDS: Final = {
    "/contributions/{client}": _CONTRIBUTION,
    "/stages/{stage}/{client}": "stage",
    "/snapshots/{number}": "snapshot",
    "/keyring/{client}": "envelope",
    "/public-key": "public-key",
    "/committee/{client}/keys/{number}": "committee-key",
}
"""Kind of a raw body, by the end of the path of its route."""
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of durations, each included."""
_NAMES: Final = (*(str(bound) for bound in _SECONDS), "+Inf")
_Key = tuple[str, str, int, bool, str | None]


class _Tally:
    """Requests of one kind: sum of their durations in seconds, bytes received, and requests in each bucket."""

    __slots__ = ("buckets", "received", "seconds")

    def __init__(self) -> None:
        self.seconds, self.received = 0.0, 0
        self.buckets = [0] * len(_NAMES)


class RequestTallies(Collector):
    """Counts requests in the event loop; `collect` may be called in any thread."""

    def __init__(self) -> None:
        self._tallies: dict[_Key, _Tally] = {}

    def count(self, record: RequestRecord) -> None:
        """Count a finished request and its body."""
        key = record.method, record.route, record.status, record.waited, record.problem
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        tally.seconds += record.seconds
        tally.received += record.received
        tally.buckets[bisect_left(_SECONDS, record.seconds)] += 1

    def describe(self) -> Iterable[Metric]:
        """Return the metrics, of which the registry takes the names."""
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        """Return the requests, their durations, the contributions and the bytes of raw bodies so far."""
        tallies = list(self._tallies.items())
        yield _requests(tallies)
        yield _durations(tallies)
        yield _contributions(tallies)
        yield _upload_bytes(tallies)


_Tallies = list[tuple[_Key, _Tally]]


def _requests(tallies: _Tallies) -> Metric:
    family = CounterMetricFamily("hushrec_requests", "Requests answered.", labels=["method", "route", "status"])
    found = Counter[tuple[str, str, int]]()
    for (method, route, status, _, _), tally in tallies:
        found[method, route, status] += sum(tally.buckets)
    for (method, route, status), count in found.items():
        family.add_metric([method, route, str(status)], count)
    return family


def _durations(tallies: _Tallies) -> Metric:
    family = HistogramMetricFamily(
        "hushrec_request_seconds",
        "Time from a request's headers to the end of its response; waited: it was a long poll.",
        labels=["method", "route", "waited"],
    )
    sums: dict[tuple[str, str, bool], _Tally] = {}
    for (method, route, _, waited, _), tally in tallies:
        total = sums.setdefault((method, route, waited), _Tally())
        total.seconds += tally.seconds
        total.buckets = [one + other for one, other in zip(total.buckets, tally.buckets, strict=True)]
    for (method, route, waited), total in sums.items():
        buckets = list(zip(_NAMES, accumulate(total.buckets), strict=True))
        family.add_metric([method, route, "yes" if waited else "no"], buckets, total.seconds)
    return family


def _contributions(tallies: _Tallies) -> Metric:
    family = CounterMetricFamily(
        "hushrec_contributions",
        "Uploads of contributions by result; reason: problem type of refused ones.",
        labels=["result", "reason"],
    )
    # Series with value 0, so that Prometheus sees the change when the first one is counted.
    found = Counter({("accepted", ""): 0, ("repeated", ""): 0, ("conflict", ""): 0})
    for (method, route, status, _, problem), tally in tallies:
        if _kind(method, route) == _CONTRIBUTION and status != 204:  # a chunk is no contribution yet
            found[_outcome(status, problem)] += sum(tally.buckets)
    for (result, reason), count in found.items():
        family.add_metric([result, reason], count)
    return family


def _upload_bytes(tallies: _Tallies) -> Metric:
    family = CounterMetricFamily("hushrec_upload_bytes", "Bytes of raw bodies received, by kind.", labels=["kind"])
    found = Counter(dict.fromkeys(_KINDS.values(), 0))
    for (method, route, _, _, _), tally in tallies:
        kind = _kind(method, route)
        if kind is not None:
            found[kind] += tally.received
    for kind, count in found.items():
        family.add_metric([kind], count)
    return family


@lru_cache(maxsize=256)  # the routes of the application
def _kind(method: str, route: str) -> str | None:
    """Return the kind of the raw body that a request uploads; None for other requests."""
    if method not in ("PUT", "PATCH"):
        return None
    return next((kind for end, kind in _KINDS.items() if route.endswith(end)), None)


def _outcome(status: int, problem: str | None) -> tuple[str, str]:
    """Return result and reason of the upload of a contribution."""
    if status in (200, 201):
        return ("accepted" if status == 201 else "repeated"), ""
    if problem == "contribution-conflict":
        return "conflict", ""
    return "refused", problem if problem in PROBLEM_TYPES else "no-answer"
