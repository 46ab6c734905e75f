"""The client half of RFRec and RFRecF: train on one's own ratings, send how far the item factors are from the average.

**Missed rounds.** A device that was not asked, or could not answer, trains on (the paper's section 3.3): when it is
asked again it first takes the steps of the sums that it missed, with the average that it last knew, and then those of
this sum with the new one. Doing so late gives what doing so in time would have: nothing else is in these steps.
The same goes for predictions. A device that was never asked has no model yet, and begins with the average of its first
round.

A round that failed is asked for again; the steps were taken then, so they are not taken twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.adam import Adam
from client_sdk.training.base import LocalResult
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.rfrec_local import LocalModel, Ratings, predicted_ratings
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.rfrec.recipe import INITIAL_STD, RFRec, RFRecState, rfrec_state

__all__ = ["AVERAGE", "OWN_ITEMS", "SUM_INDEX", "RFRecHalf"]

OWN_ITEMS: Final = "own_items"
"""Name in the memory: V_i, float32 (items, dim); without rows before the first round."""
AVERAGE: Final = "average"
"""Name in the memory: the average that was last known, float32 (items, dim); without rows before the first round."""
SUM_INDEX: Final = "step"
"""Name in the memory: int64 (1,), the sum up to which V_i is trained."""
_MOMENTS: Final = ("user_mean", "user_square", "items_mean", "items_square")
"""Names in the memory where Adam trains: its moments, shaped as what they are of."""
_ADAM_STEPS: Final = "adam_steps"
"""Name in the memory where Adam trains: int64 (1,)."""


@dataclass
class _Device:
    """A client's model while it trains. `known`: the average it knows; `sum_index`: trained up to this sum."""

    model: LocalModel
    known: NDArray[np.float32]
    sum_index: int


@dataclass(frozen=True)
class RFRecHalf:
    """A user factor and item factors that stay here; the item factors' difference to the average is summed."""

    recipe: RFRec
    entropy: Callable[[int], bytes] = field(default=os.urandom, repr=False)
    """For the noise, where the task has any."""

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """A fresh user factor, N(0, 10^-4), and nothing else yet."""
        dim = self.recipe.parameters.dim
        none = np.zeros((0, dim), np.float32)
        user = (INITIAL_STD * rng.standard_normal(dim)).astype(np.float32)
        client_state: dict[str, NDArray[Any]] = {
            USER_FACTOR: user,
            OWN_ITEMS: none,
            AVERAGE: none,
            SUM_INDEX: np.zeros(1, np.int64),
        }
        if self.recipe.parameters.rule.adam:
            client_state |= dict(zip(_MOMENTS, (np.zeros_like(user), np.zeros_like(user), none, none), strict=True))
            client_state[_ADAM_STEPS] = np.zeros(1, np.int64)
        return client_state

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> LocalResult:
        """Take the steps that are due and send V_i - V. `rng` and `excluded` are not needed: nothing is drawn.

        `ParameterError` also for ratings that are missing or outside the task's range.
        """
        ratings, newest = self._ratings(history), rfrec_state(state)
        if newest.sum_index != spec.sum_index - 1:
            raise ParameterError(
                f"sum {spec.sum_index} is over models trained from sum {spec.sum_index - 1}, not {newest.sum_index}"
            )
        device = self._device(newest, client_state)
        if device.sum_index > spec.sum_index:
            raise ParameterError(f"this client is trained up to sum {device.sum_index}, beyond sum {spec.sum_index}")
        self._train(device, ratings, newest, spec.sum_index - 1)
        device.known = newest.item_factors
        loss = self._train(device, ratings, newest, spec.sum_index)
        blocks, clipped = self.recipe.contribute(newest, device.model.items, self.entropy)
        return LocalResult(blocks, clipped, self._client_state(device), loss, len(history))

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """A user factor from as many steps as the task has seen, all with the newest average."""
        newest = rfrec_state(state)
        device = self._device(newest, self.initial_client_state(rng))
        device.sum_index = 0
        self._train(device, self._ratings(history), newest, newest.sum_index)
        return self._client_state(device)

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """The predicted rating of every item: the user factor, after the steps that were missed, with the average."""
        newest = rfrec_state(state)
        device = self._device(newest, client_state)
        if device.sum_index < newest.sum_index:
            self._train(device, self._ratings(history), newest, newest.sum_index)
        return predicted_ratings(newest.item_factors @ device.model.users[0], self.recipe.parameters)

    def check(self, history: History) -> None:
        """`ParameterError` for ratings that are missing or outside the task's range."""
        self._ratings(history)

    def _ratings(self, history: History) -> Ratings:
        if not len(history):
            raise ParameterError("a client without interactions has nothing to train on")
        if history.ratings is None:
            raise ParameterError(f"recipe {self.recipe.name!r} learns from ratings: pass {{item: rating}}")
        users = np.zeros(len(history), np.intp)
        return Ratings.of(users, history.items, history.ratings, self.recipe.parameters)

    def _device(self, state: RFRecState, client_state: ClientState) -> _Device:
        """What the memory holds, copied; for a client that was never asked, the average of `state`."""
        begins = not client_state[OWN_ITEMS].size
        start, known = (state.item_factors,) * 2 if begins else (client_state[OWN_ITEMS], client_state[AVERAGE])
        parameters = [client_state[USER_FACTOR][None].astype(np.float32), start.astype(np.float32)]
        model = LocalModel(parameters[0], parameters[1])
        rule = self.recipe.parameters.rule
        if rule.adam:
            model.adam = Adam(parameters, [rule.rate] * 2)
            if not begins:
                user_mean, user_square, items_mean, items_square = (client_state[name] for name in _MOMENTS)
                means, squares = (user_mean[None], items_mean), (user_square[None], items_square)
                model.adam.resume(int(client_state[_ADAM_STEPS][0]), means, squares)
        return _Device(model, known, state.sum_index if begins else int(client_state[SUM_INDEX][0]))

    def _train(self, device: _Device, ratings: Ratings, state: RFRecState, upto: int) -> float:
        """Take the steps up to sum `upto` with the average that the device knows; the loss before the last one."""
        loss, rule = float("nan"), self.recipe.parameters.rule
        for sum_index in range(device.sum_index + 1, upto + 1):
            if sum_index > 1:
                device.model.move(device.known, rule, self.recipe.stretch(state, sum_index - 1).moves)
            for _ in range(self.recipe.stretch(state, sum_index).local):
                loss = device.model.train(ratings, device.known, rule)
            device.sum_index = sum_index
        return loss

    def _client_state(self, device: _Device) -> ClientState:
        model = device.model
        client_state: dict[str, NDArray[Any]] = {
            USER_FACTOR: model.users[0],
            OWN_ITEMS: model.items,
            AVERAGE: device.known,
            SUM_INDEX: np.array([device.sum_index], np.int64),
        }
        if model.adam is not None:
            means, squares = model.adam.moments
            kept = (means[0][0], squares[0][0], means[1], squares[1])
            client_state |= dict(zip(_MOMENTS, kept, strict=True))
            client_state[_ADAM_STEPS] = np.array([model.adam.steps], np.int64)
        return client_state
