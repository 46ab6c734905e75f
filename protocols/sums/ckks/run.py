"""A complete CKKS sum with all parties in one function, from the task's parameters to the opened sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.layout import VectorLayout, whole_route
from protocols.sums.ckks.encryption import generate_keyring, open_aggregate, seal_blocks
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.plan import make_plan

__all__ = ["run_ckks_sum"]


def run_ckks_sum(
    parameters: Mapping[str, Any], layout: VectorLayout, vectors: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the sum of `vectors`, each float64 (layout.length,), as a task with `parameters` computes it.

    parameters: the fields of `CkksParameters`.
    """
    # All parties compute the same plan from the task: ring degree, scale and lengths.
    plan = make_plan(parameters, layout, len(vectors))
    route = whole_route(layout)

    # The key holder makes the keys with SEAL. Every client gets them, sealed, through its mailbox.
    keyring = generate_keyring(plan)

    # Each client packs values / clip into complex slots, encodes at the plan's scale, encrypts, and splits residues
    # into byte planes.
    contributions = [seal_blocks(plan, route, layout.split(vector), keyring) for vector in vectors]

    # The server checks that residues are below q and adds them modulo q; the partial sum starts with its count.
    for body in contributions:
        CKKS.check(plan, route, body)
    partial = CKKS.fold(plan, None, ((route, body) for body in contributions))

    # Members decrypt and round the counts.
    return open_aggregate(plan, CKKS.release(plan, partial), keyring)
