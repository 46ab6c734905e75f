"""All devices of an RFRec federation in one process, trained by the client half's own steps, nothing sealed.

One user a device gives what `Federation` gives with the recipe and its half: a test says so, drop-outs included.
Devices of several users, as the released notebook has them, exist here only. Devices that are absent train on at once
instead of when they come back; nothing else is in these steps, so it is the same.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from client_sdk.training.adam import Adam
from client_sdk.training.rfrec_local import LocalModel, Ratings, predicted_ratings
from protocols.crypto.domain import derive_seed
from protocols.errors import ParameterError
from protocols.recipes.base import RoundSpec
from protocols.recipes.rfrec.recipe import INITIAL_STD, RFRec

__all__ = ["Devices"]


class Devices:
    """The devices of everyone in `train`: one each, or `blocks` of consecutive users, as near in size as can be.

    Devices without ratings take no part. A device begins when it is first present, with the average it finds.
    """

    def __init__(self, train: Interactions, recipe: RFRec, seed: int, blocks: int | None = None) -> None:
        if train.ratings is None:
            raise ParameterError("the data has no ratings")
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
        """The devices that have ratings."""
        return np.array([number for number, ratings in enumerate(self._ratings) if ratings.items.size])

    def round(self, present: NDArray[np.intp], all_hear: bool = False) -> None:
        """One sum, over the `present` devices, each of which has ratings; those that began before train on.

        all_hear: the others get the average, too, and train on it; only what they send is lost.
        """
        spec = self.recipe.round_spec(self.task_seed, self.state.round_number + 1)
        total = np.zeros(self.recipe.layout().length)
        sending, hearing = set(present.tolist()), set((self.able if all_hear else present).tolist())
        for number in self.able.tolist():
            model = self._train(number, spec, number in hearing)
            if model is not None and number in sending:
                blocks, clipped = self.recipe.contribute(self.state, model.items)
                total += blocks[0]
                self.clipped += clipped
        self.state = self.recipe.absorb(self.state, spec, total, present.size)

    def _train(self, number: int, spec: RoundSpec, hears: bool) -> LocalModel | None:
        """Take the steps of the round's sum, with the newest average if it hears it; None where it never began."""
        model = self._models[number]
        if model is None:
            if not hears:
                return None
            model = self._models[number] = self._begin(number)
        if hears:
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
        """Predicted ratings of pairs, float32 (k,), each user's own factor with the average."""
        products = np.einsum("kd,kd->k", self.users[users], self.state.item_factors[items])
        return predicted_ratings(products, self.recipe.parameters)


def _ratings(train: Interactions, owned: slice, recipe: RFRec) -> Ratings:
    """The ratings of the users in `owned`, whose rows on their device are numbered from 0."""
    rows = slice(int(train.indptr[owned.start]), int(train.indptr[owned.stop]))
    count = owned.stop - owned.start
    users = np.repeat(np.arange(count), train.user_degrees()[owned])
    assert train.ratings is not None
    return Ratings.of(users, train.items[rows], train.ratings[rows], recipe.parameters, count)
