"""Measure CKKS: TenSEAL's usual pipeline, and ours."""

from __future__ import annotations

import contextlib
import io
from typing import Final

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from bench.overhead_parts.rows import Row
from bench.overhead_parts.steps import Steps, medians
from protocols.layout import TRAINED, Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import CkksPlan

__all__ = ["layout_of", "ours", "tenseal_usual", "vector_of"]

CLIP: Final = 0.1


def layout_of(values: int) -> VectorLayout:
    """A layout of one block of `values` values: the paper's vector, without touch counts."""
    return VectorLayout((Block("update", (Segment("values", values, CLIP),)),), sum_class=TRAINED)


def vector_of(values: int) -> NDArray[np.float64]:
    """float64 (values,), distributed like an update: normal, clipped to CLIP."""
    return np.clip(np.random.default_rng(20240513).normal(0.0, CLIP / 2, values), -CLIP, CLIP)


def tenseal_usual(row: Row, _clients: int, repetitions: int) -> Steps:
    """`ts.ckks_vector` with N=8192, moduli of 60-40-40-60 bits, scale 2^40; its warnings are suppressed."""
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    context.global_scale = 2**40
    vector = vector_of(row.values)
    with contextlib.redirect_stdout(io.StringIO()):
        body = bytes(ts.ckks_vector(context, vector).serialize())
        total = ts.ckks_vector_from(context, body)
        times = medians(
            {
                "seal": lambda: ts.ckks_vector(context, vector).serialize(),
                "open": lambda: ts.ckks_vector_from(context, body).decrypt(),
                "fold": lambda: total.add_(ts.ckks_vector_from(context, body)),
            },
            repetitions,
            _calls(row.values),
        )
    return Steps(**times, ciphertext_bytes=len(body))


def ours(row: Row, clients: int, repetitions: int) -> Steps:
    """The defaults of a task: set `standard`, seeded."""
    return _measure(CKKS.plan({}, layout_of(row.values), clients), repetitions)


def _measure(plan: CkksPlan, repetitions: int) -> Steps:
    keyring, route, vector = CKKS.generate_keyring(plan), whole_route(plan.layout), vector_of(plan.layout.length)
    clients = plan.max_contributions
    bodies = [(route, CKKS.seal(plan, route, [vector], keyring)) for _ in range(clients)]
    aggregate = CKKS.release(plan, CKKS.fold(plan, None, bodies))
    times = medians(
        {
            "seal": lambda: CKKS.seal(plan, route, [vector], keyring),
            "open": lambda: CKKS.open(plan, aggregate, clients, keyring),
            "check": lambda: CKKS.check(plan, *bodies[0]),
            "fold": lambda: CKKS.fold(plan, None, bodies),
        },
        repetitions,
        _calls(plan.layout.length),
    )
    return Steps(times["seal"], times["open"], times["check"] + times["fold"] / clients, len(bodies[0][1]))


def _calls(values: int) -> int:
    """Calls per repetition: more for short vectors, so that a step lasts about as long as for long ones."""
    return max(1, 2**16 // values)
