"""Measure masked sums: a whole round of all clients in one process, without dropouts.

A masked round has no ciphertexts but several messages. A client's time and bytes include its part of all five stages.
The server's time includes unmasking and is divided by the number of clients.
"""

from __future__ import annotations

from statistics import median
from typing import Final

import numpy as np

from bench.overhead_parts.ckks import vector_of
from bench.overhead_parts.rows import Row
from bench.overhead_parts.steps import Steps
from bench.protocol_round import Shape, play_round

__all__ = ["masked"]

_MOST_ROUNDS: Final = 3
"""A round is already a mean over its clients, so few repetitions suffice."""


def masked(row: Row, clients: int, repetitions: int) -> Steps:
    """The defaults of a task: a 32-bit ring, semi-malicious mode, 5 % corrupt clients, 10 % dropouts."""
    shape = Shape(clients, row.values, parameters="{}")
    vectors = np.broadcast_to(vector_of(row.values), (clients, row.values))
    rounds = [play_round(shape, vectors) for _ in range(max(1, min(repetitions // 3, _MOST_ROUNDS)))]
    opening = median(median(clock.clients["open"]) for clock in rounds)
    whole = median(sum(map(sum, clock.clients.values())) for clock in rounds)
    return Steps(
        seal=(whole - opening) / clients,
        open=opening,
        fold=median(clock.server_seconds for clock in rounds) / clients,
        ciphertext_bytes=rounds[0].sent,
    )
