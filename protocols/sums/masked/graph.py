"""The neighbour graph of a masked round: a regular graph in random order, determined by a public seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import permutation
from protocols.errors import ParameterError

__all__ = ["neighbours"]

_PURPOSE = "masked sum graph"


def neighbours(clients: int, degree: int, seed: bytes) -> NDArray[np.int32]:
    """Return the neighbour graph, int32 (clients, degree): row i holds the neighbours of client i, ascending.

    The clients form a circle in an order drawn from `seed`, and each is linked with the degree/2 nearest on either
    side: a Harary graph, which stays connected unless `degree` of its clients leave it (Harary, PNAS 1962). degree:
    even, or clients-1 for the complete graph. Raises `ParameterError` otherwise.
    """
    if degree == clients - 1 and clients >= 2:
        rows = np.broadcast_to(np.arange(degree, dtype=np.int32), (clients, degree))
        return rows + (rows >= np.arange(clients)[:, None]).astype(np.int32)
    if not 2 <= degree < clients or degree % 2:
        raise ParameterError(f"{clients} clients need an even degree below {clients}, or {clients - 1}; got {degree}")
    circle = permutation(seed, _PURPOSE, clients).astype(np.int32)
    steps = np.arange(1, degree // 2 + 1)
    beside = np.add.outer(np.arange(clients), np.concatenate([-steps, steps])) % clients
    graph = np.empty((clients, degree), np.int32)
    graph[circle] = np.sort(circle[beside], axis=1)
    return graph
