"""Measure Top-K over packed Paillier sums, with the key size of the usual way."""

from __future__ import annotations

from bench.overhead_parts.ckks import layout_of, vector_of
from bench.overhead_parts.phe_usual import KEY_BITS
from bench.overhead_parts.rows import Row
from bench.overhead_parts.steps import Steps, medians
from protocols.crypto.keyring import Keyring
from protocols.layout import whole_route
from protocols.sums.paillier.mechanism import PAILLIER

__all__ = ["Paillier"]

_MOST_WORK = 4
"""Limit of repetitions times sixty-fourths: a long vector takes seconds, and its time hardly varies."""


class Paillier:
    """Measures rows. The keys are made once."""

    def __init__(self) -> None:
        self._keyring: Keyring | None = None

    def __call__(self, row: Row, clients: int, repetitions: int) -> Steps:
        """Measure the steps of `row` for a sum over `clients` contributions."""
        plan = PAILLIER.plan({"key_bits": KEY_BITS}, layout_of(row.values), clients)
        if self._keyring is None:
            self._keyring = PAILLIER.generate_keyring(plan)
        keyring = self._keyring
        route, vector = whole_route(plan.layout), vector_of(row.values)
        body = PAILLIER.seal(plan, route, [vector], keyring)
        aggregate = PAILLIER.release(plan, PAILLIER.fold(plan, None, [(route, body)] * clients))
        times = medians(
            {
                "seal": lambda: PAILLIER.seal(plan, route, [vector], keyring),
                "check": lambda: PAILLIER.check(plan, route, body),
                "fold": lambda: PAILLIER.fold(plan, None, [(route, body)] * clients),
                "open": lambda: PAILLIER.open(plan, aggregate, clients, keyring),
            },
            max(1, min(repetitions // 3, _MOST_WORK // row.share)),
            warm=False,
        )
        return Steps(times["seal"], times["open"], times["check"] + times["fold"] / clients, len(body))
