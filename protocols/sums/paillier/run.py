"""A Paillier sum with every party on one page, from the task's parameters to the opened sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.layout import VectorLayout, whole_route
from protocols.sums.paillier.encryption import open_aggregate, seal_blocks
from protocols.sums.paillier.fold import fold_contributions
from protocols.sums.paillier.keys import generate_keyring
from protocols.sums.paillier.planner import COUNT_BYTES, make_plan
from protocols.sums.paillier.pool import RandomiserPool
from protocols.sums.paillier.wire import check_contribution

__all__ = ["run_paillier_sum"]


def run_paillier_sum(
    parameters: Mapping[str, Any], layout: VectorLayout, vectors: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The sum of `vectors`, each (layout.length,), as a task with `parameters` (`PaillierParameters`) computes it."""
    # Everyone derives the same plan from the task: slots, scales and lengths.
    plan = make_plan(parameters, layout, len(vectors))
    route = whole_route(layout)

    # The key holder: phe makes p and q. Shared mode: every client gets them, sealed, through the mailbox. Public mode:
    # they get n only. The task names n from then on, so that nobody's contribution is under another one.
    holder = generate_keyring(plan)
    member = holder.without_secret_key() if plan.opened_by == "holder" else holder
    plan = plan.with_public_key(holder.public_key)

    # Each client: round(value * scale) into slots, (1 + m n) r^n mod n^2. Idle time goes into randomisers beforehand.
    with RandomiserPool(plan, member, capacity=plan.ciphertexts).fill():
        contributions = [seal_blocks(plan, route, layout.split(vector), member) for vector in vectors]

    # The server: in range, invertible, under n? Then multiply modulo n^2; the partial sum starts with its count.
    for body in contributions:
        check_contribution(plan, route, body)
    partial = fold_contributions(plan, None, ((route, body) for body in contributions))

    # Members (shared mode) or the holder (public mode) decrypt modulo p^2 and q^2 and read the slots.
    return open_aggregate(plan, partial[COUNT_BYTES:], holder)
