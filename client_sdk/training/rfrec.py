"""The client side of RFRec and RFRecF: trains on the user's ratings, sends the item factors minus the average.

**Missed rounds.** A device that is not in a cohort, or cannot answer, continues to train (section 3.3 of the paper).
When it takes part again, it first takes the steps of the sums that it missed, with the last average that it knows,
and then the steps of the current sum with the new average. The result is the same as if it had taken the missed steps
in time, because they use no other input. Before predictions it takes missed steps too. A device that never took part
has no model and begins with the average of its first round.

After a failed round the sum is repeated. The device has taken its steps already and does not take them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.adam import Adam
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, refuse_settings
from client_sdk.training.factors import USER_FACTOR
from protocols.errors import ParameterError
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec
from protocols.recipes.rfrec import INITIAL_STD, RFRec, RFRecState, item_means, rating_offsets
from protocols.recipes.rfrec_parameters import LocalRule, RFRecParameters
from protocols.recipes.state import state_as

Array = NDArray[np.float32]

OWN_ITEMS: Final = "own_items"
"""Key in the client state: V_i, float32 (items, dim); (0, dim) before the first round."""
AVERAGE: Final = "average"
"""Key in the client state: the last known average, float32 (items, dim); (0, dim) before the first round."""
SUM_INDEX: Final = "step"
"""Key in the client state: int64 (1,), index of the last sum for which V_i is trained."""
_MOMENTS: Final = ("user_mean", "user_square", "items_mean", "items_square")
"""Keys in the client state if the rule is Adam: its moments, with the shapes of user factor and V_i."""
_ADAM_STEPS: Final = "adam_steps"
"""Key in the client state if the rule is Adam: int64 (1,), the number of steps."""


@dataclass
class _Device:
    """A client's model in training."""

    model: LocalModel
    known: Array
    """The last known average."""
    sum_index: int
    """The last sum it is trained for."""


@dataclass(frozen=True)
class RFRecSide(ClientSide):
    """User factor and item factors stay on the device; the difference of the item factors to the average is summed."""

    recipe: RFRec
    entropy: Callable[[int], bytes] = field(default=os.urandom, repr=False)
    """Source of random bytes for the noise, if the task has any."""

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return a random user factor, N(0, 10^-4), and empty item factors."""
        dim = self.recipe.parameters.dim
        user = (INITIAL_STD * rng.standard_normal(dim)).astype(np.float32)
        none = np.zeros((0, dim), np.float32)
        return self._client_state(_Device(self._model(user, none), none, 0))

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Take the missed steps and those of this sum; contribute V_i - V. Nothing is drawn."""
        newest = state_as(state, RFRecState)
        ratings, _ = self._ratings(history, newest)
        if newest.sum_index >= spec.sum_index:
            raise ParameterError(f"sum {spec.sum_index} follows an earlier model, not that of sum {newest.sum_index}")
        if spec.sum_index <= self.recipe.parameters.counting:
            return self._rate_items(ratings, client_state)
        device = self._device(newest, client_state)
        if device.sum_index > spec.sum_index:
            raise ParameterError(
                f"this client has already trained for sum {device.sum_index}, which is after sum {spec.sum_index}"
            )
        self._train(device, ratings, newest, spec.sum_index - 1)
        device.known = newest.item_factors
        loss = self._train(device, ratings, newest, spec.sum_index)
        made = self.recipe.contribute(newest, spec, Local(device.model.items, client_id, entropy=self.entropy))
        return LocalResult(made, {**client_state, **self._client_state(device)}, loss, len(history))

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: Rng) -> ClientState:
        """Return a user factor after the steps of all sums of the task so far, each with the newest average."""
        newest = state_as(state, RFRecState)
        initial = self.initial_client_state(rng)
        device = self._device(newest, initial)
        device.sum_index = 0
        self._train(device, self._ratings(history, newest)[0], newest, newest.sum_index)
        return {**initial, **self._client_state(device)}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> Array:
        """Return the predicted rating of each item, from the average and the user factor after all missed steps."""
        newest = state_as(state, RFRecState)
        device, offsets = self._device(newest, client_state), np.zeros(1, np.float32)
        if newest.item_totals.size or device.sum_index < newest.sum_index:
            ratings, offsets = self._ratings(history, newest)
            self._train(device, ratings, newest, newest.sum_index)
        return predicted_ratings(newest.item_factors @ device.model.users[0] + offsets, self.recipe.parameters)

    def check(self, history: History) -> None:
        """Raise `ParameterError` for ratings that are missing or outside the task's range."""
        self._ratings(history, None)

    def _ratings(self, history: History, state: RFRecState | None) -> tuple[Ratings, Array]:
        """Return the ratings, and the logit offsets of all items: (items,) with item means in `state`, otherwise (1,).

        Raises `ParameterError` for ratings that are missing or outside the task's range.
        """
        if not len(history):
            raise ParameterError("a client without interactions has nothing to train on")
        if history.ratings is None:
            raise ParameterError(f"recipe {self.recipe.name!r} learns from ratings: pass {{item: rating}}")
        users = np.zeros(len(history), np.intp)
        ratings = Ratings.of(users, history.items, history.ratings, self.recipe.parameters)
        if state is None or not state.item_totals.size:
            return ratings, np.zeros(1, np.float32)
        offsets = rating_offsets(item_means(state.item_totals), ratings.items, ratings.targets)
        return replace(ratings, offsets=offsets[ratings.items]), offsets

    def _rate_items(self, ratings: Ratings, client_state: ClientState) -> LocalResult:
        """Return the contribution to a sum of ratings."""
        own = np.zeros((2, self.recipe.parameters.items))
        own[0, ratings.items], own[1, ratings.items] = 1.0, ratings.targets.astype(np.float64) - 0.5
        return LocalResult(Contribution([own.ravel()]), client_state, float("nan"), ratings.items.size)

    def _device(self, state: RFRecState, client_state: ClientState) -> _Device:
        """Return a copy of the model in the client state, or the average of `state` for a client that never took
        part."""
        is_new = not client_state[OWN_ITEMS].size
        start, known = (state.item_factors,) * 2 if is_new else (client_state[OWN_ITEMS], client_state[AVERAGE])
        model = self._model(client_state[USER_FACTOR], start)
        if model.adam is not None and not is_new:
            model.adam.steps = int(client_state[_ADAM_STEPS][0])
            for name, moment in zip(_MOMENTS, chain(*model.adam.moments), strict=True):
                moment[:] = client_state[name]
        return _Device(model, known, state.sum_index if is_new else int(client_state[SUM_INDEX][0]))

    def _model(self, user: NDArray[Any], items: NDArray[Any]) -> LocalModel:
        """Return a model of one user that begins with copies of these factors, (dim,) and (items, dim)."""
        rule, users, own = self.recipe.parameters.rule, user[None].astype(np.float32), items.astype(np.float32)
        return LocalModel(users, own, Adam([users, own], [rule.rate] * 2) if rule.released else None)

    def _train(self, device: _Device, ratings: Ratings, state: RFRecState, upto: int) -> float:
        """Take the steps of all sums up to `upto` with the known average; return the loss before the last step."""
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
            (user_mean, user_square), of_items = model.adam.moments
            client_state |= dict(zip(_MOMENTS, (user_mean[0], user_square[0], *of_items), strict=True))
            client_state[_ADAM_STEPS] = np.array([model.adam.steps], np.int64)
        return client_state


def client_side(recipe: RFRec, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientSide:
    refuse_settings(recipe, training, graph_filter, "the task determines how recipe {} trains")
    return RFRecSide(recipe)


# --- local training of RFRec and RFRecF: user factors and the device's own item factors, from its ratings ------------
# y is a rating on the fitted scale, q = u.v or sigmoid(u.v) the prediction, and V the average that the device knows
# (Liu et al., CIKM 2024, eq. 5 and 6):
#
#     gradient of u    -2 sum_j (y_j - q_j) q'_j v_j + decay u
#     gradient of v_j  -2 (y_j - q_j) q'_j u + pull (v_j - V_j)         the first term for rated items only
#
# q' is 1, or q (1 - q) with a sigmoid. In the service a device has one user. The released notebook, and therefore the
# benchmark, also has devices with several users, which share one set of item factors.


def scaled_ratings(ratings: Array, p: RFRecParameters) -> Array:
    """Return ratings on the fitted scale; `ParameterError` for one outside the task's range: none is clipped."""
    if ratings.size and not (ratings.min() >= p.rating_min and ratings.max() <= p.rating_max):
        raise ParameterError(
            f"ratings must lie in {p.rating_min:g} .. {p.rating_max:g} in this task, got {ratings.min():g} .. "
            f"{ratings.max():g}"
        )
    if p.scaling == "raw":
        return ratings.astype(np.float32)
    return ((ratings - p.rating_min) / (p.rating_max - p.rating_min)).astype(np.float32)


def predicted_ratings(products: Array, p: RFRecParameters) -> Array:
    """Return the predicted ratings for products u.v of any shape. They are not clipped to the range of ratings."""
    fitted = _sigmoid(products) if p.rule.released else products
    if p.scaling == "raw":
        return fitted.astype(np.float32)
    return (p.rating_min + (p.rating_max - p.rating_min) * fitted).astype(np.float32)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x), dtype=np.float32)


@dataclass(frozen=True)
class Ratings:
    """A device's k ratings, ordered by item."""

    users: NDArray[np.intp]
    """intp (k,), index of the user on the device."""
    items: NDArray[np.int32]
    """int32 (k,), ascending."""
    targets: Array
    """float32 (k,), ratings on the fitted scale."""
    count: int = 1
    """Number of users on the device."""
    offsets: Array | None = None
    """Added to the logit of each rating, float32 (k,); None for zeros."""

    @classmethod
    def of(
        cls, users: NDArray[np.intp], items: NDArray[np.int32], ratings: Array, p: RFRecParameters, count: int = 1
    ) -> Ratings:
        """Return the ratings scaled and ordered by item; raises as `scaled_ratings`."""
        order = np.argsort(items, kind="stable")
        return cls(users[order], items[order], scaled_ratings(ratings, p)[order], count)

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Index of the first rating of each rated item, intp (rated items,)."""
        return np.flatnonzero(np.diff(self.items, prepend=-1))

    @cached_property
    def rated(self) -> NDArray[np.int32]:
        """Items with ratings, distinct, ascending, int32 (rated items,)."""
        return self.items[self.starts]

    @cached_property
    def members(self) -> Array:
        """1 if the rating belongs to the user, otherwise 0; float32 (users, k)."""
        return np.asarray(self.users == np.arange(self.count)[:, None], dtype=np.float32)


@dataclass
class LocalModel:
    """A device's user factors, float32 (users, dim), and item factors, float32 (items, dim), trained in place."""

    users: Array
    items: Array
    adam: Adam | None = None
    """Updates these arrays, if the rule is Adam."""

    def gradients(self, ratings: Ratings, rule: LocalRule) -> tuple[Array, Array, Array]:
        """Return the gradients of users (users, dim) and of rated items without the pull, and the residuals y - q
        (k,)."""
        own, rows = self.users[ratings.users], self.items[ratings.items]
        fitted = np.einsum("kd,kd->k", own, rows)
        if ratings.offsets is not None:
            fitted += ratings.offsets
        if rule.released:
            fitted = _sigmoid(fitted)
        residuals = ratings.targets - fitted
        slopes = fitted * (1 - fitted) if rule.released else np.ones_like(fitted)
        weights = (-2 * slopes * residuals)[:, None]
        grad_rows = weights * own
        if ratings.starts.size < ratings.items.size:
            grad_rows = np.add.reduceat(grad_rows, ratings.starts)
        return ratings.members @ (weights * rows) + self._decay(rule), grad_rows, residuals

    def _decay(self, rule: LocalRule) -> Array:
        length = float(np.linalg.norm(self.users)) if rule.by_norm else 1.0
        return np.float32(rule.decay / length if length else 0.0) * self.users

    def train(self, ratings: Ratings, average: Array, rule: LocalRule) -> float:
        """Take one step. Returns the mean squared residual before it, on the fitted scale.

        average: float32 (items, dim), the average that the device knows.
        """
        grad_users, grad_rows, residuals = self.gradients(ratings, rule)
        if self.adam is not None:
            grad_items = np.float32(rule.pull) * (self.items - average) if rule.pull else np.zeros_like(self.items)
            grad_items[ratings.rated] += grad_rows
            self.adam.step([grad_users, grad_items])
        else:
            rate = np.float32(rule.rate)
            if rule.pull:
                self.items -= rate * np.float32(rule.pull) * (self.items - average)
            self.items[ratings.rated] -= rate * grad_rows
            self.users -= rate * grad_users
        return float(np.mean(residuals**2))

    def move(self, average: Array, rule: LocalRule, times: int) -> None:
        """Move the items `times` steps towards the average: V <- average + (1 - move)^times (V - average)."""
        if times:
            kept = np.float32((1 - rule.move) ** times)
            self.items *= kept
            self.items += (1 - kept) * average
