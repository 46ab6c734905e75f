"""RFRec with item means, all devices in every sum: their steps at once, in memory for the ratings only.

A device trains its own copy V_i of all item factors. The rows of items that it has not rated follow the average in the
same way on every device, so that one copy of them serves all; only the rated rows differ. The memory is then that of
one row for each rating instead of items x dim values for each device.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from client_sdk.training.adam import Adam
from client_sdk.training.rfrec_local import predicted_ratings, scaled_ratings
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, Recipe
from protocols.recipes.rfrec.means import item_means, rating_offsets
from protocols.recipes.rfrec.recipe import RFRec, RFRecMeansState, rfrec_state

__all__ = ["WholeRatings", "can_train_whole"]

Array = NDArray[np.float32]
_MOST_VALUES: Final = 100_000_000
"""Factor values of all ratings up to which this needs less than 3 GB."""


def can_train_whole(recipe: Recipe, train: Interactions) -> bool:
    """Return whether `WholeRatings` takes the steps of this recipe: of `rfrec` with means from one sum, and Adam."""
    return (
        isinstance(recipe, RFRec)
        and recipe.name == "rfrec"
        and recipe.parameters.counting == 1
        and recipe.parameters.rule.adam
        and recipe.parameters.ldp is None
        and train.ratings is not None
        and train.size * recipe.parameters.dim <= _MOST_VALUES
    )


class WholeRatings:
    """All devices of a task after its sum of ratings. users: their factors, float32 (users, dim), trained in place.

    Raises `ParameterError` for what `can_train_whole` refuses, and for a state without item means.
    """

    def __init__(self, train: Interactions, recipe: Recipe, state: ModelState, users: Array) -> None:
        if not (isinstance(recipe, RFRec) and can_train_whole(recipe, train) and train.ratings is not None):
            raise ParameterError("this needs ratings, item means from one sum, and variant 'released'")
        if not isinstance(state, RFRecMeansState):
            raise ParameterError("this needs a state with item means")
        p = recipe.parameters
        self.recipe, self.users, self._train, self._rule = recipe, users, train, p.rule
        self._owners, self._places = train.users.astype(np.intp), train.items.astype(np.intp)
        self._targets = scaled_ratings(train.ratings, p)
        self._means = item_means(state.item_totals)
        self._offsets = np.zeros(train.size, np.float32)
        for user in np.flatnonzero(train.user_degrees()):
            own = self._rows(int(user))
            self._offsets[own] = self._offsets_of(int(user))[train.items[own]]
        self._shared = rfrec_state(state).item_factors.copy()
        self._rated = self._shared[self._places]
        self._adam = Adam([self._shared, self._rated, users], [p.rule.rate] * 3)
        self._raters = np.bincount(self._places, minlength=p.items)
        self._devices = int(np.count_nonzero(train.user_degrees()))

    def sum(self, state: ModelState) -> tuple[NDArray[np.float64], int]:
        """Take a step of every device; return the sum of V_i - V, float64 (items * dim,), and how many were clipped.

        state: the newest average V, known to all devices.
        """
        average, bound = rfrec_state(state).item_factors, self.recipe.parameters.bound
        self._step(average)
        shared, rated = self._shared - average, self._rated - average[self._places]
        others = (self._devices - self._raters)[:, None]
        clipped = int((others * (np.abs(shared) > bound)).sum()) + int(np.count_nonzero(np.abs(rated) > bound))
        shared, rated = np.clip(shared, -bound, bound), np.clip(rated, -bound, bound)
        total = others * shared.astype(np.float64) + _summed(self._places, rated, len(average))
        return total.ravel(), clipped

    def scores(self, state: ModelState, users: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the predicted rating of each item for users with ratings, float32 (users, items)."""
        logits = self.users[users] @ rfrec_state(state).item_factors.T
        logits += np.stack([self._offsets_of(int(user)) for user in users])
        return predicted_ratings(logits, self.recipe.parameters)

    def _step(self, average: Array) -> None:
        rule, own = self._rule, self.users[self._owners]
        fitted = np.einsum("kd,kd->k", own, self._rated) + self._offsets
        fitted = np.asarray(0.5 + 0.5 * np.tanh(0.5 * fitted), dtype=np.float32)
        weights = (-2 * fitted * (1 - fitted) * (self._targets - fitted))[:, None]
        users = _summed(self._owners, weights * self._rated, len(self.users)).astype(np.float32)
        users += np.float32(rule.decay) * self.users
        rated = weights * own + np.float32(rule.pull) * (self._rated - average[self._places])
        shared = np.float32(rule.pull) * (self._shared - average)
        self._adam.step([shared, rated, users])

    def _rows(self, user: int) -> slice:
        return slice(int(self._train.indptr[user]), int(self._train.indptr[user + 1]))

    def _offsets_of(self, user: int) -> Array:
        """Return the logit offsets of all items, float32 (items,)."""
        own = self._rows(user)
        return rating_offsets(self._means, self._train.items[own], self._targets[own])


def _summed(places: NDArray[np.intp], values: Array, length: int) -> NDArray[np.float64]:
    """Return the sums of `values` (k, d) with the same place, float64 (length, d)."""
    columns = [np.bincount(places, values[:, column], length) for column in range(values.shape[1])]
    return np.stack(columns, axis=1)
