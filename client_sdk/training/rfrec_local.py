"""Local training of RFRec and RFRecF: user factors and the device's own item factors, from its ratings.

y is a rating on the fitted scale, q = u.v or sigmoid(u.v) the prediction, and V the average that the device knows
(Liu et al., CIKM 2024, eq. 5 and 6):

    gradient of u    -2 sum_j (y_j - q_j) q'_j v_j + decay u
    gradient of v_j  -2 (y_j - q_j) q'_j u + pull (v_j - V_j)         the first term for rated items only

q' is 1, or q (1 - q) with a sigmoid. In the service a device has one user. The released notebook, and therefore the
benchmark, also has devices with several users, which share one set of item factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.adam import Adam
from protocols.errors import ParameterError
from protocols.recipes.rfrec.parameters import LocalRule, RFRecParameters

__all__ = ["LocalModel", "Ratings", "predicted_ratings", "scaled_ratings"]


def scaled_ratings(ratings: NDArray[np.float32], parameters: RFRecParameters) -> NDArray[np.float32]:
    """Return ratings on the fitted scale.

    Raises `ParameterError` for a rating outside the task's range; none is clipped.
    """
    p = parameters
    if ratings.size and not (ratings.min() >= p.rating_min and ratings.max() <= p.rating_max):
        raise ParameterError(
            f"ratings must lie in {p.rating_min:g} .. {p.rating_max:g} in this task, got {ratings.min():g} .. "
            f"{ratings.max():g}"
        )
    if p.scaling == "raw":
        return ratings.astype(np.float32)
    return ((ratings - p.rating_min) / (p.rating_max - p.rating_min)).astype(np.float32)


def predicted_ratings(products: NDArray[np.float32], parameters: RFRecParameters) -> NDArray[np.float32]:
    """Return the predicted ratings for products u.v of any shape. They are not clipped to the range of ratings."""
    p = parameters
    fitted = _sigmoid(products) if p.rule.logistic else products
    if p.scaling == "raw":
        return fitted.astype(np.float32)
    return (p.rating_min + (p.rating_max - p.rating_min) * fitted).astype(np.float32)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x), dtype=np.float32)


@dataclass(frozen=True)
class Ratings:
    """A device's k ratings, ordered by item.

    users: intp (k,), index of the user on the device. items: int32 (k,), ascending. targets: float32 (k,), ratings on
    the fitted scale. count: number of users on the device.
    """

    users: NDArray[np.intp]
    items: NDArray[np.int32]
    targets: NDArray[np.float32]
    count: int = 1
    offsets: NDArray[np.float32] | None = None
    """Added to the logit of each rating, float32 (k,); None for zeros."""

    @classmethod
    def of(
        cls,
        users: NDArray[np.intp],
        items: NDArray[np.int32],
        ratings: NDArray[np.float32],
        parameters: RFRecParameters,
        count: int = 1,
    ) -> Ratings:
        """Return the ratings scaled and ordered by item.

        Raises `ParameterError` for a rating outside the task's range.
        """
        order = np.argsort(items, kind="stable")
        return cls(users[order], items[order], scaled_ratings(ratings, parameters)[order], count)

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Index of the first rating of each rated item, intp (rated items,)."""
        return np.flatnonzero(np.diff(self.items, prepend=-1))

    @cached_property
    def rated(self) -> NDArray[np.int32]:
        """Items with ratings, distinct, ascending, int32 (rated items,)."""
        return self.items[self.starts]

    @cached_property
    def members(self) -> NDArray[np.float32]:
        """1 if the rating belongs to the user, otherwise 0; float32 (users, k)."""
        return np.asarray(self.users == np.arange(self.count)[:, None], dtype=np.float32)


@dataclass
class LocalModel:
    """A device's user factors, float32 (users, dim), and item factors, float32 (items, dim), trained in place.

    adam: updates these arrays, if the rule is Adam.
    """

    users: NDArray[np.float32]
    items: NDArray[np.float32]
    adam: Adam | None = None

    def gradients(
        self, ratings: Ratings, rule: LocalRule
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return the gradients of users (users, dim) and of rated items without the pull, and the residuals y - q
        (k,)."""
        own, rows = self.users[ratings.users], self.items[ratings.items]
        fitted = np.einsum("kd,kd->k", own, rows)
        if ratings.offsets is not None:
            fitted += ratings.offsets
        if rule.logistic:
            fitted = _sigmoid(fitted)
        residuals = ratings.targets - fitted
        slopes = fitted * (1 - fitted) if rule.logistic else np.ones_like(fitted)
        weights = (-2 * slopes * residuals)[:, None]
        grad_rows = weights * own
        if ratings.starts.size < ratings.items.size:
            grad_rows = np.add.reduceat(grad_rows, ratings.starts)
        return ratings.members @ (weights * rows) + self._decay(rule), grad_rows, residuals

    def _decay(self, rule: LocalRule) -> NDArray[np.float32]:
        length = float(np.linalg.norm(self.users)) if rule.by_norm else 1.0
        return np.float32(rule.decay / length if length else 0.0) * self.users

    def train(self, ratings: Ratings, average: NDArray[np.float32], rule: LocalRule) -> float:
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

    def move(self, average: NDArray[np.float32], rule: LocalRule, times: int) -> None:
        """Move the items `times` steps towards the average: V <- average + (1 - move)^times (V - average)."""
        if times:
            kept = np.float32((1 - rule.move) ** times)
            self.items *= kept
            self.items += (1 - kept) * average
