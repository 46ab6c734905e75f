"""A pool of randomisers, filled in the background at low priority.

With a pool, sealing costs two multiplications per ciphertext. A randomiser leaves the pool once, is never put back or
stored, and a forked process starts with empty pools: a randomiser used twice would reveal the difference of two
plaintexts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, NoReturn
from weakref import WeakSet

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.sums.paillier.keys import SecretKey, crt_randomiser, load_secret_key
from protocols.sums.paillier.plan import PaillierPlan

__all__ = ["RandomiserPool", "standing_pool", "take_pooled"]

_NICE: Final = 19
"""Niceness of the filling thread on systems with per-thread priorities: the lowest priority."""


class RandomiserPool:
    """Up to `capacity` randomisers for one task's public key; sealing with that key takes from the pool first.

    `start` fills the pool in a thread of low priority and refills it; `fill` fills it at once, in the calling thread.
    From then until `stop`, or the end of the `with` block, every seal in this process can use it. Raises
    `ParameterError` for a capacity below 1.
    """

    def __init__(self, plan: PaillierPlan, keyring: Keyring, capacity: int) -> None:
        if capacity < 1:
            raise ParameterError(f"a pool holds at least 1 randomiser, got {capacity}")
        self._key = load_secret_key(plan, keyring)
        self._capacity = capacity
        self.forget()
        _EVERY.add(self)

    def forget(self) -> None:
        """Reset to an empty pool without a thread: in `__init__`, in `stop`, and in a forked process."""
        self._ready: deque[Any] = deque()
        self._wanted = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<RandomiserPool {len(self)} of {self._capacity}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool of randomisers cannot be copied or pickled")

    def __len__(self) -> int:
        """Number of randomisers in the pool."""
        return len(self._ready)

    def start(self) -> RandomiserPool:
        """Offer the pool and fill it in the background; `ParameterError` if it runs already, or another pool does."""
        self._offer()
        if self._thread is not None:
            raise ParameterError("this pool is already running")
        self._wanted.set()
        self._thread = threading.Thread(target=self._run, name="paillier-randomisers", daemon=True)
        self._thread.start()
        return self

    def fill(self) -> RandomiserPool:
        """Offer the pool and fill it in the calling thread; `ParameterError` if another pool serves this key."""
        self._offer()
        while len(self._ready) < self._capacity:
            self._ready.append(crt_randomiser(self._key))
        return self

    def stop(self) -> None:
        """Stop the thread, withdraw the pool and discard its randomisers."""
        if _OFFERED.get(self._key.n) is self:
            del _OFFERED[self._key.n]
        if self._thread is not None:
            self._stopping = True
            self._wanted.set()
            self._thread.join()
        self.forget()

    def __enter__(self) -> RandomiserPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _offer(self) -> None:
        if _OFFERED.setdefault(self._key.n, self) is not self:
            raise ParameterError("another pool serves this public key: stop it first")

    def _run(self) -> None:
        _lower_priority()
        while True:
            self._wanted.wait()
            self._wanted.clear()
            while not self._stopping and len(self._ready) < self._capacity:
                self._ready.append(crt_randomiser(self._key))
            if self._stopping:
                return

    def take(self, count: int) -> list[Any]:
        """Remove and return at most `count` randomisers."""
        taken: list[Any] = []
        with contextlib.suppress(IndexError):
            for _ in range(count):
                taken.append(self._ready.popleft())  # atomic: two threads never get the same one
        self._wanted.set()
        return taken


_OFFERED: Final[dict[Any, RandomiserPool]] = {}
"""Pools by n."""
_EVERY: Final[WeakSet[RandomiserPool]] = WeakSet()


@contextlib.contextmanager
def standing_pool(plan: PaillierPlan, keyring: Keyring) -> Iterator[None]:
    """Run a background pool with the randomisers of one contribution; a task has at most one per process.

    If another pool serves the key already, its randomisers are used, and missing ones are made when they are needed.
    """
    with contextlib.ExitStack() as held:
        pool = RandomiserPool(plan, keyring, capacity=plan.layout.chosen or plan.ciphertexts)
        with contextlib.suppress(ParameterError):
            held.enter_context(pool.start())
        yield


def take_pooled(key: SecretKey, count: int) -> list[Any]:
    """Remove and return at most `count` randomisers from the pool that serves `key`; none if there is no pool."""
    pool = _OFFERED.get(key.n)
    return [] if pool is None else pool.take(count)


def _lower_priority() -> None:
    """Give the calling thread the lowest priority, on Linux, where each thread has its own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _after_fork() -> None:
    for pool in list(_EVERY):
        pool.forget()
    _OFFERED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
