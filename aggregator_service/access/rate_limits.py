"""Rate limits: token buckets in the memory of this process.

A request with a valid token counts against that token. Requests without one count against their address, and only if
they fail (wrong tokens, wrong invitations), because a thousand clients may share one address. So nobody can block valid
requests from the same address, except enrolments, which have no token yet.

Processes do not share buckets: with N processes a caller may send up to N times as many requests.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import ceil, inf
from typing import Final

from cachetools import LRUCache

from aggregator_service.problems import Problem
from aggregator_service.settings import Settings

_TOO_MANY_FAILURES: Final = "too many failed attempts from this address"
_SECONDS: Final = 20.0
"""Capacity of a bucket, as the seconds that its rate takes to fill it: the longest burst."""
_MAX_BUCKETS: Final = 100_000
_AT_ONCE: Final = 8
_POLLS: Final = 0.75
"""Share of the connections in which polls may wait: the rest is left to requests that are answered at once."""
_BODIES: Final = 0.875
"""Share of the connections that polls, uploads and downloads may occupy together."""


class Buckets:
    """A token bucket for each key, filled at `rate` tokens a second up to 20 times `rate`; 0: no limit.

    Full buckets are dropped, and beyond 100,000 keys the least recently used one. Thread-safe. now: a monotonic clock,
    seconds.
    """

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._now = rate, now
        self._size = max(1.0, rate * _SECONDS)
        self._lock = threading.Lock()
        self._levels: LRUCache[str, tuple[float, float]] = LRUCache(_MAX_BUCKETS)

    def take(self, key: str, tokens: float = 1.0) -> float:
        """Take `tokens` and return 0 if the bucket has at least one, else return the seconds until it has one."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._now()
            level, then = self._levels.pop(key, (self._size, now))
            level = min(self._size, level + (now - then) * self._rate)
            wait = max(0.0, 1.0 - level) / self._rate
            if not wait:
                level -= tokens
            if level < self._size:
                self._levels[key] = (level, now)
            return wait

    def wait(self, key: str) -> float:
        """Return the seconds until the bucket has a token, 0 if it has one. Takes none."""
        return self.take(key, 0.0)


class Limits:
    """The rate limits of one process, as the settings `client_rate`, `operator_rate` and `failure_rate` define them.

    now: a monotonic clock, seconds. Every method raises `Problem` too-many-requests with Retry-After over the limit.
    """

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self._clients = Buckets(settings.client_rate, now)
        self._operators = Buckets(settings.operator_rate, now)
        self._failures = Buckets(settings.failure_rate, now)

    def client(self, client_id: str) -> None:
        """Count a request of an enrolled client."""
        _refuse(self._clients.take(client_id), "too many requests from this client")

    def operator(self, name: str) -> None:
        """Count a request of an operator or a key holder, who acts for all members, under the key `name`."""
        _refuse(self._operators.take(name), "too many requests with this token")

    def failure(self, address: str) -> None:
        """Count a failed attempt from an address. Over the limit, this error replaces the attempt's own."""
        _refuse(self._failures.take(network(address)), _TOO_MANY_FAILURES)

    @contextmanager
    def attempt(self, address: str) -> Iterator[None]:
        """Refuse the block for an address with too many failed attempts; count one if it raises a `Problem`."""
        _refuse(self._failures.wait(network(address)), _TOO_MANY_FAILURES)
        try:
            yield
        except Problem:
            self.failure(address)
            raise


class Room:
    """Counts the connections that are occupied for long, by waiting polls, uploads and downloads. Thread-safe.

    Polls wait in three quarters of the connections, all three together occupy seven eighths: health checks and what is
    answered at once find the rest free. connections: the setting `max_connections`; 0: no limit.
    """

    def __init__(self, connections: int) -> None:
        self._lock, self._taken = threading.Lock(), 0
        self._polls, self._bodies = (
            max(1, int(connections * share)) if connections else inf for share in (_POLLS, _BODIES)
        )

    def take(self, *, for_a_poll: bool) -> bool:
        """Count one more, until `give_back`; return False, and count none, if there is no room for it."""
        with self._lock:
            free = self._taken < (self._polls if for_a_poll else self._bodies)
            self._taken += free
            return free

    def give_back(self) -> None:
        """Count one less."""
        with self._lock:
            self._taken -= 1


class AtOnce:
    """Counts what the server does for each client at the same time, at most eight of it. Thread-safe.

    More than one, because a retry need not wait until the server drops the broken connection. what: such as
    "sending 8 downloads to". room: for those of all clients; None: no limit.
    """

    def __init__(self, what: str, room: Room | None = None) -> None:
        self._what, self._room, self._lock = what, room, threading.Lock()
        self._open: Counter[str] = Counter()

    def start(self, client_id: str) -> None:
        """Count one more, until `end`. Raises `Problem` too-many-requests with Retry-After over the limit."""
        with self._lock:
            if self._open[client_id] >= _AT_ONCE:
                _refuse(1.0, f"the server is already {self._what} this client")
            if self._room is not None and not self._room.take(for_a_poll=False):
                _refuse(1.0, "most connections of the server are occupied by polls, uploads and downloads")
            self._open[client_id] += 1

    def end(self, client_id: str) -> None:
        """Count one less."""
        with self._lock:
            self._open[client_id] -= 1
            if self._room is not None:
                self._room.give_back()
            if not self._open[client_id]:
                del self._open[client_id]

    @contextmanager
    def counted(self, client_id: str) -> Iterator[None]:
        """Count one within the block."""
        self.start(client_id)
        try:
            yield
        finally:
            self.end(client_id)


@lru_cache(maxsize=4096)
def network(address: str) -> str:
    """Return an IPv4 address as it is, and the /64 network of an IPv6 address, which belongs to one customer."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)


def _refuse(wait: float, reason: str) -> None:
    if wait:
        raise Problem("too-many-requests", reason, headers={"Retry-After": str(ceil(wait))})
