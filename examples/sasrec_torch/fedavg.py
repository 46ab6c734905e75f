"""What the federation asks of a model, and plain FedAvg in one process: no server, no masks, the mean in numpy.

It computes what recipe `arrays` computes, written down once more: the mean of an array is over the clients' weights,
that of a row of an embedding table over the weights of those who touched it; the server's optimiser is Adam of Reddi et
al. (ICLR 2021, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
Histories = Sequence[NDArray[np.int32]]
"""Items of each user, the oldest first."""


class Learner(Protocol):
    """A model that clients train."""

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the arrays of which a client changes some rows."""
        ...

    def initial(self) -> Arrays:
        """Return the values of round 0."""
        ...

    def train(self, arrays: Arrays, items: NDArray[np.int32], seed: Sequence[int]) -> tuple[Arrays, int]:
        """Return the arrays after local training on one history, and the number of examples. A function of its
        arguments: `arrays` is not changed, and `seed` fixes all draws."""
        ...

    def scores(self, arrays: Arrays, histories: Histories) -> NDArray[np.float32]:
        """Return the score of every item as the next one of each history, float32 (histories, items)."""
        ...


def fedavg(learner: Learner, histories: Histories, parameters: Mapping[str, Any]) -> Iterator[Arrays]:
    """Yield the arrays after each round in which every client takes part, without end.

    parameters: those of the task.
    """
    model = learner.initial()
    first = {name: np.zeros(array.shape) for name, array in model.items()}
    second = {name: np.full(array.shape, parameters["adaptivity"] ** 2) for name, array in model.items()}
    fast, slow = parameters["momentum"], parameters["second_momentum"]
    for number in count(1):
        for name, update in mean_update(learner, histories, parameters, model, number).items():
            first[name] = fast * first[name] + (1 - fast) * update
            second[name] = slow * second[name] + (1 - slow) * update**2
            step = first[name] / (np.sqrt(second[name]) + parameters["adaptivity"])
            model[name] = (model[name] + parameters["server_rate"] * step).astype(np.float32)
        yield dict(model)


def mean_update(
    learner: Learner, histories: Histories, parameters: Mapping[str, Any], model: Arrays, number: int
) -> dict[str, NDArray[np.float64]]:
    """Return the weighted mean of the clients' changes in one round, float64, by name."""
    sums = {name: np.zeros(array.shape) for name, array in model.items()}
    weights = {name: np.zeros(len(array) if name in learner.rows else 1) for name, array in model.items()}
    for client, items in enumerate(histories):
        new, examples = learner.train(model, items, (client, number))
        weight = min(examples, parameters["max_weight"])
        for name, array in model.items():
            change = np.clip(new[name].astype(np.float64) - array, -parameters["clip"], parameters["clip"])
            sums[name] += weight * change
            touched = change.reshape(len(change), -1).any(axis=1) if name in learner.rows else 1.0
            weights[name] += weight * touched
    return {name: sums[name] / np.maximum(weights[name], 1).reshape(-1, *[1] * (sums[name].ndim - 1)) for name in sums}
