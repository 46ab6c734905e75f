"""Who shares secrets with whom: a regular graph in random order, the same for everyone who knows the seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import permutation
from protocols.errors import ParameterError

__all__ = ["neighbours"]

_PURPOSE = "masked sum graph"


def neighbours(clients: int, degree: int, seed: bytes) -> NDArray[np.int32]:
    """int32 (clients, degree): row i holds the neighbours of client i, ascending, never i itself.

    The clients stand in a circle in an order drawn from `seed`, each linked with the degree/2 nearest on either side: a
    Harary graph, which stays in one piece unless `degree` of its clients leave it (Harary, PNAS 1962). `degree` is
    even, or clients-1: the complete graph. `ParameterError` otherwise.
    """
    if degree == clients - 1 and clients >= 2:
        rows = np.broadcast_to(np.arange(degree, dtype=np.int32), (clients, degree))
        return rows + (rows >= np.arange(clients)[:, None]).astype(np.int32)
    if not 2 <= degree < clients or degree % 2:
        raise ParameterError(f"{clients} clients have an even number of neighbours below it, or all; got {degree}")
    circle = permutation(seed, _PURPOSE, clients).astype(np.int32)
    steps = np.arange(1, degree // 2 + 1)
    beside = np.add.outer(np.arange(clients), np.concatenate([-steps, steps])) % clients
    graph = np.empty((clients, degree), np.int32)
    graph[circle] = np.sort(circle[beside], axis=1)
    return graph
