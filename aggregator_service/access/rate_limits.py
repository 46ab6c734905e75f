"""Rate limits: token buckets in this process's memory, for what is known of a caller.

Who has shown a good token is limited by that token, generously: a fleet of a thousand clients behind one address is a
normal thing. Who has not is limited by its address, and only what failed counts: wrong tokens, wrong invitations. So
nobody can hold up the good requests of others at its address, except for enrolments, which begin without a token.

The buckets are not shared: behind N processes each caller may have up to N times as much.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from aggregator_service.problems import Problem
from aggregator_service.settings import Settings

__all__ = ["Buckets", "Limits"]

_SECONDS: Final = 20.0
"""A bucket holds what its rate brings in this time, so bursts this long go through at once."""
_MOST_BUCKETS: Final = 100_000


class Buckets:
    """One bucket a key, each filled at `rate` tokens a second up to `rate` times 20; a rate of 0 has no limit.

    Full buckets are forgotten, and beyond 100,000 keys the one that was used longest ago. Safe to share between
    threads. now: seconds, never going back.
    """

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._now = rate, now
        self._size = max(1.0, rate * _SECONDS)
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take a token: 0 when there was one, else the seconds until there is."""
        if not self._rate:
            return 0.0
        with self._lock:
            level, wait = self._look(key)
            if not wait:
                self._levels[key] = (level - 1.0, self._now())
                self._levels.move_to_end(key)
                if len(self._levels) > _MOST_BUCKETS:
                    self._levels.popitem(last=False)
            return wait

    def wait(self, key: str) -> float:
        """Seconds until the bucket has a token; 0 when it has. Nothing is taken."""
        if not self._rate:
            return 0.0
        with self._lock:
            return self._look(key)[1]

    def _look(self, key: str) -> tuple[float, float]:
        now = self._now()
        level, then = self._levels.get(key, (self._size, now))
        level += (now - then) * self._rate
        if level >= self._size:
            level = self._size
            self._levels.pop(key, None)
        return level, 0.0 if level >= 1.0 else (1.0 - level) / self._rate


class Limits:
    """The limits of one process."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self._clients = Buckets(settings.client_rate, now)
        self._operators = Buckets(settings.operator_rate, now)
        self._failures = Buckets(settings.failure_rate, now)

    def client(self, client_id: str) -> None:
        """Count a request of an enrolled client; 429 too-many-requests when there are too many."""
        _refuse(self._clients.take(client_id), "this client sends too many requests")

    def operator(self, name: str) -> None:
        """Count a request of an operator's token, or of a key holder, who acts for all members."""
        _refuse(self._operators.take(name), "this token sends too many requests")

    def failure(self, address: str) -> None:
        """Count an attempt that failed; 429 instead of its own refusal when the address has had too many."""
        _refuse(self._failures.take(_network(address)), "too many attempts from this address have failed")

    def attempt(self, address: str) -> None:
        """429 before work is done for an address whose attempts keep failing; nothing is counted."""
        _refuse(self._failures.wait(_network(address)), "too many attempts from this address have failed")


def _network(address: str) -> str:
    """An IPv4 address itself; of an IPv6 address the /64, all of which is one customer's."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)


def _refuse(wait: float, why: str) -> None:
    if wait:
        raise Problem("too-many-requests", why, headers={"Retry-After": str(ceil(wait))})
