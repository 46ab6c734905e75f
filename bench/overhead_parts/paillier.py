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
    """Measures rows in one mode. The holder's keys are made once.

    In mode `shared` every client holds the secret key and makes randomisers by the Chinese remainder theorem. In mode
    `public` clients hold the public key and its table of fixed-base powers, which is made before the measurement
    (bench/paillier.py measures its time).
    """

    def __init__(self, mode: str) -> None:
        self._parameters = {"key_bits": KEY_BITS, "mode": mode}
        self._keyring: Keyring | None = None

    def __call__(self, row: Row, clients: int, repetitions: int) -> Steps:
        """Measure the steps of `row` for a sum over `clients` contributions."""
        plan = PAILLIER.plan(self._parameters, layout_of(row.values), clients)
        if self._keyring is None:
            self._keyring = PAILLIER.generate_keyring(plan)
        holder = self._keyring
        member = holder.without_secret_key() if plan.opened_by == "holder" else holder
        route, vector = whole_route(plan.layout), vector_of(row.values)
        body = PAILLIER.seal(plan, route, [vector], member)
        aggregate = PAILLIER.release(plan, PAILLIER.fold(plan, None, [(route, body)] * clients))
        times = medians(
            {
                "seal": lambda: PAILLIER.seal(plan, route, [vector], member),
                "check": lambda: PAILLIER.check(plan, route, body),
                "fold": lambda: PAILLIER.fold(plan, None, [(route, body)] * clients),
                "open": lambda: PAILLIER.open(plan, aggregate, clients, holder),
            },
            max(1, min(repetitions // 3, _MOST_WORK // row.share)),
            warm=False,
        )
        return Steps(times["seal"], times["open"], times["check"] + times["fold"] / clients, len(body))
