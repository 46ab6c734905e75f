"""The models of the bench, the changes that its clients send, and the mean that must come out."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.arrays import ArraysRound
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import ModelState

__all__ = ["MAX_WEIGHT", "DrawnUpdates", "parameters_of", "shapes_of"]

CLIP = 0.1
MAX_WEIGHT = 100


def shapes_of(values: int) -> dict[str, list[int]]:
    """Return named shapes with `values` values in all: two embedding tables, a layer and its bias.

    values: a multiple of 1,000.
    """
    rows = values // 1000
    return {
        "items.weight": [10 * rows, 64],
        "users.weight": [5 * rows, 64],
        "head.weight": [39 * rows, 1],
        "head.bias": [rows],
    }


def parameters_of(values: int) -> dict[str, Any]:
    """Return the parameters of recipe `arrays` for such a model: weighted, server optimiser `mean`."""
    shapes = shapes_of(values)
    assert sum(map(prod, shapes.values())) == values
    return {"shapes": shapes, "clip": CLIP, "max_weight": MAX_WEIGHT, "reveal_weights": True}


@dataclass
class DrawnUpdates:
    """Trainers that send drawn changes of every array, and the sum of what they sent, which the bench knows.

    weight: the sum of the weights so far. cpu_seconds: what drawing and adding took, which is not a client's work.
    """

    values: int
    weight: float = 0.0
    cpu_seconds: float = 0.0
    _total: NDArray[np.float64] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def trainer(self, number: int) -> Any:
        """Return the trainer of client `number`."""

        def train(round_: ArraysRound) -> None:
            started = time.thread_time()
            update, weight = self._drawn(number)
            spent = time.thread_time() - started
            round_.contribute(update, weight)
            with self._lock:
                started = time.thread_time()
                self._add(update, weight)
                self.cpu_seconds += spent + time.thread_time() - started

        return train

    def _drawn(self, number: int) -> tuple[dict[str, NDArray[np.float32]], float]:
        rng, update = np.random.default_rng([1, number]), {}
        for name, shape in shapes_of(self.values).items():
            drawn = rng.random(prod(shape), np.float32)
            drawn -= np.float32(0.5)
            drawn *= np.float32(2 * CLIP)
            update[name] = drawn.reshape(shape)
        return update, float(rng.integers(1, MAX_WEIGHT + 1))

    def _add(self, update: dict[str, NDArray[np.float32]], weight: float) -> None:
        self.weight += weight
        if self._total is None:
            self._total = np.zeros(self.values)
        start = 0
        for name in sorted(update):
            array = update[name].ravel()
            self._total[start : start + array.size] += np.multiply(array, weight, dtype=np.float64)
            start += array.size

    def largest_error(self, recipe: Arrays, before: ModelState, after: ModelState) -> float:
        """Return the largest difference between the model's change and the weighted mean of what was sent."""
        if self._total is None:
            raise ValueError("the sum of the changes is not known")
        old, new, start, largest = recipe.arrays(before), recipe.arrays(after), 0, 0.0
        for name in sorted(new):
            moved = new[name].ravel().astype(np.float64) - old[name].ravel()
            mean = self._total[start : start + moved.size] / self.weight
            largest = max(largest, float(np.abs(moved - mean).max()))
            start += moved.size
        return largest
