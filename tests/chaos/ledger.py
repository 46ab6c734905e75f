"""The answers that clients got during faults, checked against the released sums.

The invariants are those of `tests/simulation/invariants.py`, for the answers of a real server: each released sum is the
sum of its survivors, counts nobody twice, is over at least `min_clients`, and contains every acknowledged contribution;
a round without a sum gives a reason. The server answers no error but 503.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import httpx
import numpy as np
from numpy.typing import NDArray

from tests.support.api import TestTask

__all__ = ["BASE", "Ledger", "value_of"]

BASE = 4.0


def value_of(index: int) -> float:
    """The value of client `index`: the digits of a sum to base 4 show how often each client is in it."""
    return BASE**index


@dataclass
class Ledger:
    """The answers to all clients of one task. Thread-safe."""

    task: TestTask
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    broken: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, answer: httpx.Response) -> None:
        """Record an answer."""
        with self._lock:
            self.statuses[answer.status_code] += 1
            if answer.status_code >= 500 and answer.status_code != 503:
                self.errors.append(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")

    def note_broken(self) -> None:
        """Record a connection that broke or was refused."""
        with self._lock:
            self.broken += 1

    def fail(self, what: str) -> None:
        """Record an error that no fault explains."""
        with self._lock:
            self.errors.append(what)

    def acknowledge(self, number: int, index: int) -> None:
        """Record the receipt for the contribution of client `index`."""
        with self._lock:
            self.acknowledged.add((number, index))

    def check(self, clients: int) -> int:
        """Check every invariant over all rounds of a finished task; return the number of sums."""
        api, task = self.task.api, self.task
        assert not self.errors, self.errors
        floor = task.view["schedule"]["min_clients"]
        rounds = api.http.get(f"{task.path}/rounds", params={"limit": 1000}, headers=api.operator).json()["rounds"]
        released = 0
        for row in rounds:
            number = row["number"]
            view = task.round(number)
            if view["state"] == "failed":
                assert view["failure"], f"round {number} failed without a reason"
                continue
            assert view["state"] == "complete", f"round {number} is {view['state']} although the task is over"
            survivors = self._survivors(number, clients)
            assert len(survivors) == view["survivors"] >= floor
            lost = {index for told, index in self.acknowledged if told == number} - survivors
            assert not lost, f"clients {sorted(lost)} have a receipt for round {number} and are not in its sum"
            released += 1
        return released

    def _survivors(self, number: int, clients: int) -> set[int]:
        """The clients in a sum; checks that it is exactly the sum of their contributions."""
        total = self.task.opened(number)
        mask = np.concatenate([block.integral_mask() for block in self.task.plan.layout.blocks])
        values, counts = _one_value(total[~mask]), _one_value(np.rint(total[mask]))
        digits = [values // int(BASE) ** index % int(BASE) for index in range(clients)]
        assert max(digits) <= 1, f"round {number} counts a client twice: {digits}"
        survivors = {index for index, digit in enumerate(digits) if digit}
        assert values == sum(int(value_of(index)) for index in survivors)
        assert counts == len(survivors)
        return survivors


def _one_value(values: NDArray[np.float64]) -> int:
    """The integer that all values are equal to, up to the rounding of a masked sum."""
    assert np.abs(values - values[0]).max() < 0.4, "the values of the sum differ"
    return round(float(values[0]))
