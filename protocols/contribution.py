"""A contribution: what a recipe's blocks become before they leave the device. Everybody who contributes calls `make`.

1. *Noise.* A task's privacy block bounds the blocks, counts them in steps and adds the client's share of the noise.
2. *Participants.* Where members open the sums, each block ends with a 1; with a 0 in the zeros of a failed training.
3. *The message*, of the mechanisms in which a contribution is one message; of the others the ring elements, to which
   the client adds its masks within the round.

What a task has of these follows from its recipe, its mechanism and its plans, which are asked here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import Keyring
from protocols.crypto.random import Randomness
from protocols.errors import CodecError, ParameterError
from protocols.layout import Block, Segment, VectorLayout
from protocols.recipes.base import Contribution, ModelState, Recipe, RoundSpec
from protocols.sums.base import Mechanism, OneMessage, SumPlan, TakeAhead

Elements = NDArray[Any]
"""Ring elements (layout.length,), of the type that the plan encodes to."""


@dataclass(frozen=True)
class TaskSum:
    """One sum of a task, as all parties compute it."""

    recipe: Recipe
    """With the evaluation and the privacy block of the task."""
    mechanism: Mechanism
    plan: SumPlan
    """That of `spec` (`plan_of_task`)."""
    spec: RoundSpec


@dataclass(frozen=True, eq=False)
class Made:
    """A contribution as it leaves the device."""

    contribution: Contribution
    """The blocks that are in it: with noise, in a task with a privacy block."""
    payload: bytes | Elements
    """The message, or the ring elements (layout.length,)."""

    @property
    def message(self) -> bytes:
        """What is uploaded, where a contribution is one message; `ParameterError` elsewhere."""
        if not isinstance(self.payload, bytes):
            raise ParameterError("this contribution is made within a round of several messages")
        return self.payload

    @property
    def elements(self) -> Elements:
        """What is masked, in rounds of several messages; `ParameterError` elsewhere."""
        if isinstance(self.payload, bytes):
            raise ParameterError("this contribution is one message, which has no masks")
        return self.payload


def make(
    of: TaskSum,
    state: ModelState,
    client_id: str,
    contribution: Contribution,
    keyring: Keyring | None = None,
    *,
    has_data: bool = True,
    take_ahead: TakeAhead | None = None,
    random: Randomness = os.urandom,
    simulated_noise: bool = False,
) -> Made:
    """Return what a client sends in place of `contribution`, of the recipe's own blocks.

    state: the model before the sum. keyring: the task's, if its mechanism has one. has_data: False for the zeros of a
    training that failed. take_ahead: None where nothing was made in idle time. random: n -> n secret random bytes, for
    the noise; keys and ciphertexts use the system's generator. simulated_noise: leave out the noise, for simulations
    alone, which add that of all clients to the sum. Raises `ParameterError` for values that are not finite or do not
    fit the route, `BudgetError` for a value above its clip, and `KeyringError`.
    """
    add_noise = of.recipe.limited if simulated_noise else of.recipe.noised
    sent, route = add_noise(state, of.spec, contribution, random), of.recipe.route(of.spec, client_id)
    blocks = list(sent.blocks)
    if _counts(of.plan):
        blocks = [np.append(block, float(has_data)) for block in blocks]
    mechanism = of.mechanism
    if not isinstance(mechanism, OneMessage):
        return Made(sent, of.plan.encode(route, blocks))
    if take_ahead is not None:
        return Made(sent, mechanism.seal_ahead(of.plan, route, blocks, keyring, take_ahead))
    return Made(sent, mechanism.seal(of.plan, route, blocks, keyring))


# --- participants: whether enough contributions to an opened sum carry data ------------------------------------------
# Whether training works can depend on an opened sum. In tasks over `ckks` and `paillier`, whose server must not learn
# what opening shows, a client whose training failed therefore uploads a ciphertext of zeros, which looks like any
# other. So that such zeros do not count toward `min_clients`, every block of the task's sums ends with one more value:
# 1 in a contribution with data, 0 in one of zeros. Members use a sum only if enough contributions to each of its blocks
# carry data.
#
#     plan_of_task           (mechanism, parameters, layout, ...)   -> SumPlan   with the additional values
#     make                   (of, state, ..., has_data)             -> Made      client: adds them to what is sealed
#     require_participants   (plan, total, min_clients)             -> None      client: may the sum be used?
#     without_participation  (plan, total)                          -> total     what the recipe absorbs
#
# Sums of other mechanisms stay as they are: there a client that has nothing to add sends nothing. So do sums whose
# contributions choose their blocks (`VectorLayout.chosen`): the choice is public, and no block is every client's.
#
# This counts honest zeros. It does not bind the server, which can add numbers to ciphertexts, or hand out a sum of one.

_PARTICIPANTS: Final = Segment("participants", 1, 1.0, integral=True)


def plan_of_task(
    mechanism: Mechanism,
    parameters: Mapping[str, Any],
    layout: VectorLayout,
    max_contributions: int,
    main: VectorLayout | None = None,
) -> SumPlan:
    """Return the plan of a sum of a task, with participants in each block if members open it.

    layout: as the task's recipe has it. main: that of the task's main sum, with which all sums share keys; None for any
    keys. Raises what `Mechanism.plan` raises.
    """
    if mechanism.needs_keyring:
        layout, main = _counted(layout), None if main is None else _counted(main)
        if main is not None and main != layout:
            parameters = {**parameters, **mechanism.plan(parameters, main, max_contributions).key_parameters}
    return mechanism.plan(parameters, layout, max_contributions)


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
