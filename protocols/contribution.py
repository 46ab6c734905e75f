"""A contribution: what a recipe's blocks become before they leave the device. Everybody who contributes calls `make`.

1. *Noise.* A task's privacy block bounds the blocks, counts them in steps and adds the client's share of the noise.
2. *Participants.* Where members open the sums, each block ends with a 1; with a 0 in the zeros of a failed training.
3. *The message*, of the mechanisms in which a contribution is one message; of the others the ring elements, to which
   the client adds its masks within the round.

What a task has of these follows from its recipe, its mechanism and its plans, which are asked here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from protocols.crypto.keys import Keyring
from protocols.crypto.random import Randomness
from protocols.errors import ParameterError
from protocols.layout import Route
from protocols.recipes.base import Contribution, ModelState, Recipe, RoundSpec
from protocols.sums.base import Mechanism, SumPlan, one_message, several_messages
from protocols.sums.participation import with_participation

Elements = NDArray[Any]
"""Ring elements (layout.length,), of the type that the mechanism encodes to."""
TakeAhead = Callable[[int], Sequence[Any]]
"""n -> at most n pieces of the next message, which were made in idle time (`OneMessage.pieces`)."""


@dataclass(frozen=True)
class TaskSum:
    """One sum of a task, as all parties compute it."""

    recipe: Recipe
    """With the evaluation and the privacy block of the task."""
    mechanism: Mechanism
    plan: SumPlan
    """That of `spec` (`protocols.sums.participation.plan_of_task`)."""
    spec: RoundSpec

    def route(self, client_id: str) -> Route:
        """Return the blocks to which a client contributes."""
        return self.recipe.route(self.spec, client_id)


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
    sent, route = add_noise(state, of.spec, contribution, random), of.route(client_id)
    blocks = with_participation(of.plan, sent.blocks, has_data)
    if of.mechanism.interactive:
        return Made(sent, several_messages(of.mechanism).encode(of.plan, route, blocks))
    mechanism = one_message(of.mechanism)
    if take_ahead is not None:
        return Made(sent, mechanism.seal_ahead(of.plan, route, blocks, keyring, take_ahead))
    return Made(sent, mechanism.seal(of.plan, route, blocks, keyring))
