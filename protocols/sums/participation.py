"""Whether an opened sum may be used: how many contributions carry data, and which values a sum can have.

Whether training works can depend on an opened sum. In tasks over `ckks` and `paillier`, whose server must not learn
what opening shows, a client whose training failed therefore uploads a ciphertext of zeros, which looks like any other.
So that such zeros do not count toward `min_clients`, every block of the task's sums ends with one more value: 1 in a
contribution with data, 0 in one of zeros. Members use a sum only if enough contributions to each of its blocks carry
data.

    plan_of_task           (mechanism, parameters, layout, ...)   -> SumPlan   with the additional values
    with_participation     (plan, blocks, participates)           -> blocks    client: what is sealed
    require_participants   (plan, total, min_clients)             -> None      client: may the sum be used?
    without_participation  (plan, total)                          -> total     what the recipe absorbs
    require_possible       (plan, total, contributions)           -> None      client: can it be a sum of so many?

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

from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, Block, Segment, VectorLayout, spans_of
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
    is allowed beside others: the routes of a recipe can leave it out.
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


def require_possible(plan: SumPlan, total: NDArray[np.float64], contributions: int) -> None:
    """Raise `CodecError` unless `total`, float64 (layout.length,), can be the sum of so many contributions.

    Any party can make a ciphertext of something else and put it in the place of the sum. What opening such a ciphertext
    shows depends on the secret key or on one client's contribution, so nobody may react to it visibly, and a key holder
    must not publish it.

    Counts must be whole numbers from 0 to contributions * clip, signed whole numbers within that bound, and all other
    values within the segment's bound on the sum plus the plan's error bound. Raises `ParameterError` for a vector of
    another shape.
    """
    layout = plan.layout
    if total.shape != (layout.length,):
        raise ParameterError(f"expected a vector of {layout.length} values, got shape {total.shape}")
    if layout.chosen:  # all blocks have the segments of the first
        rows, blocks = [total.reshape(len(layout.blocks), -1)], layout.blocks[:1]
    else:
        rows, blocks = [part[np.newaxis] for part in layout.split(total)], layout.blocks
    for block, values in zip(blocks, rows, strict=True):
        for segment, (first, last) in zip(block.segments, spans_of(s.length for s in block.segments), strict=True):
            part = values[:, first:last]
            largest = segment.bound_on_sum(contributions) * CLIP_SLACK + (
                0.0 if segment.integral else plan.predicted_error
            )
            smallest = 0.0 if segment.integral and not segment.signed else -largest
            possible = bool(part.min() >= smallest and part.max() <= largest)  # False for NaN
            if not possible or (segment.integral and not np.array_equal(part, np.rint(part))):
                raise CodecError(
                    f"{block.name}/{segment.name} of the opened sum holds a value that no sum of {contributions} "
                    "contributions has"
                )


def _counts(plan: SumPlan) -> bool:
    return plan.opened_by == "members" and not plan.layout.chosen


def _counted(layout: VectorLayout) -> VectorLayout:
    if layout.chosen:
        return layout
    return replace(layout, blocks=tuple(Block(b.name, (*b.segments, _PARTICIPANTS)) for b in layout.blocks))


def _places(layout: VectorLayout) -> list[int]:
    """Where the participants of each block are: its last value."""
    return [end - 1 for end in accumulate(block.length for block in layout.blocks)]
