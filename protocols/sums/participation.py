"""Whether enough contributions to an opened sum carry data.

Whether training works can depend on an opened sum. In tasks over `ckks` and `paillier`, whose server must not learn
what opening shows, a client whose training failed therefore uploads a ciphertext of zeros, which looks like any other.
So that such zeros do not count toward `min_clients`, every block of the task's sums ends with one more value: 1 in a
contribution with data, 0 in one of zeros. Members use a sum only if enough contributions to each of its blocks carry
data.

    plan_of_task           (mechanism, parameters, layout, ...)   -> SumPlan   with the additional values
    with_participation     (plan, blocks, participates)           -> blocks    client: what is sealed
    require_participants   (plan, total, min_clients)             -> None      client: may the sum be used?
    without_participation  (plan, total)                          -> total     what the recipe absorbs

Sums of other mechanisms stay as they are: there a client that has nothing to add sends nothing. So do sums whose
contributions choose their blocks (`VectorLayout.chosen`): the choice is public, and no block is every client's.

This counts honest zeros. It does not bind the server, which can add numbers to ciphertexts, or hand out a sum of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError
from protocols.layout import Block, Segment, VectorLayout
from protocols.sums.base import Mechanism, SumPlan, plan_sum

_PARTICIPANTS: Final = Segment("participants", 1, 1.0, integral=True)


def plan_of_task(
    mechanism: Mechanism,
    parameters: Mapping[str, Any],
    layout: VectorLayout,
    max_contributions: int,
    main: VectorLayout | None = None,
) -> SumPlan:
    """Return the plan of a sum of a task: that of `plan_sum`, with participants in each block if members open it.

    layout, main: as the task's recipe has them. Raises what `plan_sum` raises.
    """
    if mechanism.needs_keyring:
        layout, main = _counted(layout), None if main is None else _counted(main)
    return plan_sum(mechanism, parameters, layout, max_contributions, main)


def with_participation(
    plan: SumPlan, blocks: Sequence[NDArray[np.float64]], participates: bool = True
) -> list[NDArray[np.float64]]:
    """Return the blocks of a contribution along any route, each with its participation where the plan has it.

    plan: of `plan_of_task`. blocks: of the recipe. participates: False for a client whose blocks are zeros.
    """
    if not _counts(plan):
        return list(blocks)
    return [np.append(block, float(participates)) for block in blocks]


def require_participants(plan: SumPlan, total: NDArray[np.float64], min_clients: int) -> None:
    """Raise `CodecError` if fewer than `min_clients` contributions to a block of an opened sum carry data.

    plan: of `plan_of_task`. total: float64 (plan.layout.length,). A block to which no contribution with data was added
    is allowed beside others: no client's route may reach it.
    """
    if not _counts(plan):
        return
    counts = total[_places(plan.layout)]
    carrying = counts[counts > 0]
    fewest = round(carrying.min()) if carrying.size else 0
    if fewest < min_clients:
        raise CodecError(
            f"{fewest} contributions to a block of the opened sum carry data, fewer than the task's min_clients, "
            f"{min_clients}"
        )


def without_participation(plan: SumPlan, total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an opened sum, float64 (plan.layout.length,), as the recipe's layout has it."""
    return np.delete(total, _places(plan.layout)) if _counts(plan) else total


def _counts(plan: SumPlan) -> bool:
    return plan.opened_by == "members" and not plan.layout.chosen


def _counted(layout: VectorLayout) -> VectorLayout:
    if layout.chosen:
        return layout
    return replace(layout, blocks=tuple(Block(b.name, (*b.segments, _PARTICIPANTS)) for b in layout.blocks))


def _places(layout: VectorLayout) -> list[int]:
    """Where the participants of each block are: its last value."""
    return [end - 1 for end in accumulate(block.length for block in layout.blocks)]
