"""RFRec with item means, all devices in every sum: the same steps as `Federation`, in memory for the ratings only.

A device trains its own copy V_i of all item factors. The rows of items that it has not rated follow the average in the
same way on every device, so that one copy of them serves all; only the rated rows differ. The memory is then that of
one row for each rating instead of items x dim values for each device. A test compares the result with `Federation`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from client_sdk.training.adam import Adam
from client_sdk.training.rfrec_local import predicted_ratings, scaled_ratings
from protocols.crypto.domain import derive_seed
from protocols.errors import ParameterError
from protocols.recipes.rfrec.means import ItemMeans, item_means, rating_offsets
from protocols.recipes.rfrec.recipe import INITIAL_STD, RFRec

__all__ = ["RFRecTogether"]

Array = NDArray[np.float32]


class RFRecTogether:
    """All devices of a task whose first sum is of ratings (`item_bias` "means", `count_sums` 1, `variant` "released").

    Raises `ParameterError` for other parameters and without ratings.
    """

    def __init__(self, train: Interactions, recipe: RFRec, seed: int) -> None:
        p = recipe.parameters
        if train.ratings is None or p.counting != 1 or not p.rule.adam:
            raise ParameterError("this needs ratings, item means from one sum, and variant 'released'")
        self.recipe, self._train, self._rule = recipe, train, p.rule
        self._owners, self._places = train.users.astype(np.intp), train.items.astype(np.intp)
        self._targets = scaled_ratings(train.ratings, p)
        totals = np.stack(
            [np.bincount(train.items, minlength=p.items), np.bincount(train.items, self._targets - 0.5, p.items)]
        )
        self._means: ItemMeans = item_means(totals.astype(np.float32))
        self._offsets = np.zeros(train.size, np.float32)
        for user in range(train.n_users):
            own = slice(int(train.indptr[user]), int(train.indptr[user + 1]))
            if own.start < own.stop:
                self._offsets[own] = self.offsets(user)[train.items[own]]
        self.average: Array = recipe.initial_state(derive_seed(str(seed).encode(), "simulation task")).item_factors
        draws = np.random.default_rng([seed, 1])
        self.users = (INITIAL_STD * draws.standard_normal((train.n_users, p.dim))).astype(np.float32)
        self._shared, self._rated = self.average.copy(), self.average[self._places]
        self._adam = Adam([self._shared, self._rated, self.users], [p.rule.rate] * 3)
        self._devices = int(np.count_nonzero(train.user_degrees()))

    def offsets(self, user: int) -> Array:
        """Return the logit offsets of all items for a user with ratings, float32 (items,)."""
        own = slice(int(self._train.indptr[user]), int(self._train.indptr[user + 1]))
        return rating_offsets(self._means, self._train.items[own], self._targets[own])

    def run(self, sums: int, tick: Callable[[int], object] = lambda _: None) -> None:
        """Take so many sums of item factors. Nothing may be clipped, or `ParameterError` is raised."""
        raters = np.bincount(self._places, minlength=len(self.average))
        for number in range(1, sums + 1):
            self._step()
            for change in (self._shared - self.average, self._rated - self.average[self._places]):
                if np.abs(change).max(initial=0.0) > self.recipe.parameters.bound:
                    raise ParameterError("a change is longer than the clip, which this simulation leaves out")
            total = (self._devices - raters)[:, None] * self._shared.astype(np.float64)
            total += _summed(self._places, self._rated, len(self.average))
            self.average = (total / self._devices).astype(np.float32)
            tick(number)

    def _step(self) -> None:
        """Take one step of every device with the average that all of them know."""
        rule = self._rule
        own = self.users[self._owners]
        fitted = np.einsum("kd,kd->k", own, self._rated) + self._offsets
        fitted = np.asarray(0.5 + 0.5 * np.tanh(0.5 * fitted), dtype=np.float32)
        weights = (-2 * fitted * (1 - fitted) * (self._targets - fitted))[:, None]
        users = _summed(self._owners, weights * self._rated, len(self.users)).astype(np.float32)
        users += np.float32(rule.decay) * self.users
        rated = weights * own + np.float32(rule.pull) * (self._rated - self.average[self._places])
        shared = np.float32(rule.pull) * (self._shared - self.average)
        self._adam.step([shared, rated, users])

    def predictions(self, test: Interactions) -> NDArray[np.float64]:
        """Return the predicted ratings of the test rows; the mean of all training ratings for users without any."""
        assert self._train.ratings is not None
        found = np.full(test.size, self._train.ratings.mean(dtype=np.float64))
        for user in np.flatnonzero((test.user_degrees() > 0) & (self._train.user_degrees() > 0)):
            rows = slice(int(test.indptr[user]), int(test.indptr[user + 1]))
            items = test.items[rows]
            logits = self.average[items] @ self.users[user] + self.offsets(int(user))[items]
            found[rows] = predicted_ratings(logits, self.recipe.parameters)
        return found


def _summed(places: NDArray[np.intp], values: Array, length: int) -> NDArray[np.float64]:
    """Return the sums of `values` (k, d) with the same place, float64 (length, d)."""
    columns = [np.bincount(places, values[:, column], length) for column in range(values.shape[1])]
    return np.stack(columns, axis=1)
