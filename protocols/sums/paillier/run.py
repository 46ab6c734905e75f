"""A complete Paillier sum with all parties in one function, from the task's parameters to the opened sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.layout import VectorLayout, whole_route
from protocols.sums.paillier.keys import generate_keyring
from protocols.sums.paillier.mechanism import PAILLIER
from protocols.sums.paillier.plan import make_plan

__all__ = ["run_paillier_sum"]


def run_paillier_sum(
    parameters: Mapping[str, Any], layout: VectorLayout, vectors: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the sum of `vectors`, each float64 (layout.length,), as a task with `parameters` computes it.

    parameters: the fields of `PaillierParameters`.
    """
    # All parties compute the same plan from the task: slots, scales and lengths.
    plan = make_plan(parameters, layout, len(vectors))
    route = whole_route(layout)

    # The key holder makes p and q with phe. Every client gets them, sealed, through its mailbox. The holder publishes
    # n: from then on the task names it, and contributions under another n are refused.
    keyring = generate_keyring(plan)
    plan = plan.with_public_key(keyring.public_key)

    # Each client packs round(value * scale) into slots and computes (1 + m n) r^n mod n^2; it can make the randomisers
    # r^n in idle time (`PAILLIER.seal_ahead`).
    contributions = [PAILLIER.seal(plan, route, layout.split(vector), keyring) for vector in vectors]

    # The server checks that ciphertexts are in range, invertible and under n, and multiplies them modulo n^2; the
    # partial sum starts with its count.
    for body in contributions:
        PAILLIER.check(plan, route, body)
    partial = PAILLIER.fold(plan, None, ((route, body) for body in contributions))

    # Members decrypt modulo p^2 and q^2 and read the slots.
    return PAILLIER.open(plan, PAILLIER.release(plan, partial), len(vectors), keyring)
