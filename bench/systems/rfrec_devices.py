"""All devices of an RFRec federation in one process, trained with the client half's steps, without sealing.

With one user per device the result equals that of `Federation`; a test checks this, including dropouts. Devices with
several users, as in the released notebook, exist only here. Absent devices take their training steps at once instead of
when they come back, which gives the same result.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions
from client_sdk.training.adam import Adam
from client_sdk.training.rfrec import LocalModel, Ratings, predicted_ratings
from protocols.crypto.domain import derive_seed
from protocols.errors import ParameterError
from protocols.recipes.base import Local, RoundSpec
from protocols.recipes.rfrec import INITIAL_STD, RFRec

__all__ = ["Devices"]


class Devices:
    """The devices of all users in `train`: one per user, or `blocks` of consecutive users of about equal size.

    Devices without ratings take no part. A device starts in the round in which it is first present, with the average of
    that round. Raises `ParameterError` if the data has no ratings.
    """

    def __init__(self, train: Interactions, recipe: RFRec, seed: int, blocks: int | None = None) -> None:
        if train.ratings is None:
            raise ParameterError("RFRec needs ratings, and the data set has none")
        self.recipe, self._rule = recipe, recipe.parameters.rule
        self.task_seed = derive_seed(str(seed).encode(), "simulation task")
        self.state = recipe.initial_state(self.task_seed)
        shape = (train.n_users, recipe.parameters.dim)
        first = INITIAL_STD * np.random.default_rng([seed, 1]).standard_normal(shape)
        self.users = first.astype(np.float32)
        count = train.n_users if blocks is None else blocks
        edges = np.arange(count + 1) * train.n_users // count
        self._owned = [slice(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        self._ratings = [_ratings(train, owned, recipe) for owned in self._owned]
        self._models: list[LocalModel | None] = [None] * count
        self._known: list[NDArray[np.float32]] = [self.state.item_factors] * count
        self.clipped = 0

    @cached_property
    def able(self) -> NDArray[np.intp]:
        """Numbers of the devices that have ratings, ascending."""
        return np.array([number for number, ratings in enumerate(self._ratings) if ratings.items.size])

    def round(self, present: NDArray[np.intp], all_receive: bool = False) -> None:
        """Run one sum over the `present` devices, which must have ratings. Absent devices train if they have started.

        all_receive: absent devices receive the average too; only their contribution is lost.
        """
        spec = self.recipe.round_spec(self.task_seed, self.state.round_number + 1)
        total = np.zeros(self.recipe.layout().length)
        sending, receiving = set(present.tolist()), set((self.able if all_receive else present).tolist())
        for number in self.able.tolist():
            model = self._train(number, spec, number in receiving)
            if model is not None and number in sending:
                made = self.recipe.contribute(self.state, spec, Local(model.items))
                total += made.vector
                self.clipped += made.clipped
        self.state = self.recipe.absorb(self.state, spec, total, present.size)

    def _train(self, number: int, spec: RoundSpec, receives: bool) -> LocalModel | None:
        """Take a device's steps for the round's sum, with the newest average if it `receives` it.

        Returns its model, or None if the device has not started.
        """
        model = self._models[number]
        if model is None:
            if not receives:
                return None
            model = self._models[number] = self._begin(number)
        if receives:
            self._known[number] = self.state.item_factors
        known, stretch = self._known[number], self.recipe.stretch(self.state, spec.sum_index)
        if spec.sum_index > 1:
            model.move(known, self._rule, self.recipe.stretch(self.state, spec.sum_index - 1).moves)
        for _ in range(stretch.local):
            model.train(self._ratings[number], known, self._rule)
        return model

    def _begin(self, number: int) -> LocalModel:
        model = LocalModel(self.users[self._owned[number]], self.state.item_factors.copy())
        if self._rule.adam:
            model.adam = Adam([model.users, model.items], [self._rule.rate] * 2)
        return model

    def predictions(self, users: NDArray[np.int32], items: NDArray[np.int32]) -> NDArray[np.float32]:
        """Predicted ratings of k pairs, float32 (k,), from each user's own factor and the average."""
        products = np.einsum("kd,kd->k", self.users[users], self.state.item_factors[items])
        return predicted_ratings(products, self.recipe.parameters)


def _ratings(train: Interactions, owned: slice, recipe: RFRec) -> Ratings:
    """The ratings of the users in `owned`, with users numbered from 0 on their device."""
    rows = slice(int(train.indptr[owned.start]), int(train.indptr[owned.stop]))
    count = owned.stop - owned.start
    users = np.repeat(np.arange(count), train.user_degrees()[owned])
    assert train.ratings is not None
    return Ratings.of(users, train.items[rows], train.ratings[rows], recipe.parameters, count)
