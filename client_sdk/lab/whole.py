"""The sums of a PriviRec task over many clients as sparse matrix products, in place of one dense vector a client.

A client's part of a power iteration, r_u^T (r_u Q), is non-zero in the rows of its own items only. Over plain sums the
total is R~^T (R~ Q). Over masked sums every value is rounded to the ring's grid first, as a client does, so the total
has the same bits as the sum of the clients' ring elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.training.adam import Adam
from client_sdk.training.privirec import components_of, trails
from client_sdk.training.rfrec import predicted_ratings, scaled_ratings
from client_sdk.training.validation import measured
from protocols.errors import ParameterError
from protocols.privacy.noise import longest_norm, round_within
from protocols.recipes.base import Local, ModelState, Recipe, RoundSpec
from protocols.recipes.private import Private
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.rfrec import RFRec, RFRecState, item_means, rating_offsets
from protocols.recipes.spectrum import triangle_places
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as
from protocols.sums.base import SumPlan
from protocols.sums.group_sums import used_sums
from protocols.sums.groups import split_clients
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.ring import RingPlan

if TYPE_CHECKING:  # what only spectra need
    from scipy.sparse import csr_array

_CHUNK_VALUES: Final = 8_000_000
_MOST_MEASURING: Final = 5000
_Places = slice | NDArray[np.int64]
"""Indices in the vector of a sum."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """The users of a sum."""

    train: Interactions
    users: NDArray[np.int64]
    held: NDArray[np.int64]
    """The item that each user of `train` keeps out, -1 for none."""
    order_of: Callable[[int], NDArray[np.int32] | None] = lambda _: None
    """Returns the items of a user in the order of their times; None where these are not known."""

    @cached_property
    def rows(self) -> csr_array[Any, Any]:
        """Their rows, float64 CSR (users, items), without what they keep out."""
        kept = self.train.where(self.train.items != self.held[self.train.users])
        return interaction_rows(kept)[self.users].astype(np.float64)

    def order(self, user: int) -> NDArray[np.int32] | None:
        """Return the items of a user in the order of their times, without what it keeps out; None if not known."""
        order = self.order_of(user)
        return None if order is None else order[order != self.held[user]]


def _degrees(
    plan: SumPlan, spec: RoundSpec, rows: csr_array[Any, Any], users: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum of the degrees that is used, float64 (items,): where it is split, by the rule of groups."""
    if not (isinstance(plan, RingPlan) and plan.groups > 1):
        return np.bincount(rows.indices, minlength=rows.shape[1]).astype(np.float64)
    groups = split_clients(spec.seed.hex(), [str(user) for user in users], plan.groups)
    sums = [np.bincount(rows[places].indices, minlength=rows.shape[1]).astype(np.float64) for places in groups]
    return used_sums(plan.layout, sums, [places.size for places in groups], plan.tau).total()


def whole_sum(
    recipe: PriviRecK, plan: SumPlan, spec: RoundSpec, state: ModelState, cohort: Cohort
) -> NDArray[np.float64]:
    """Return the opened sum of `spec` over `cohort`, float64 (layout.length,).

    state: the model before the sum. Equal to the sum of the clients' contributions: exactly over masked sums, and up to
    the float32 rounding of contributions over plain ones. A sum of validation is not rounded.
    """
    rows, kind = cohort.rows, recipe.sum_of(spec.sum_index)
    if kind == "degrees":
        return _degrees(plan, spec, rows, cohort.users)
    if kind == "validation":
        return np.asarray(_measured(recipe, state, cohort).sum(axis=0))
    if kind == "gram" and recipe.parameters.counted:
        start, stop = recipe.span_of_pairs(spec.sum_index, recipe.kept(state_as(state, PriviRecState)).size)
        return _counted(recipe, state, rows)[start:stop]
    if kind in ("gram", "next"):
        return _opened(plan, _sent(recipe, state, spec, cohort), cohort.users.size)
    own = state_as(state, PriviRecState)
    scaled = _scaled(recipe, own, rows)
    if kind == "lists":
        longest = plan.layout.blocks[0].segments[0].clip
        lengths = np.diff(scaled.indptr)
        entries = np.repeat(np.minimum(lengths, longest), lengths)
        return np.bincount(scaled.indices, entries, scaled.shape[1]).astype(np.float64)
    basis = recipe.basis_before(own, spec)[recipe.kept(own)].astype(np.float64)
    has, _ = places_of(recipe.widths(own)[0])
    if isinstance(plan, MaskedPlan):
        return _ring_sum(plan, scaled, basis, has)
    return np.asarray(scaled.T @ (scaled @ basis))[has].astype(np.float32).astype(np.float64)


def _sent(
    recipe: PriviRecK, state: ModelState, spec: RoundSpec, cohort: Cohort
) -> Iterator[tuple[_Places, NDArray[np.float64]]]:
    """Yield where each user of `cohort` adds to a Gram matrix, a sum of next items or of validation, and what."""
    own, kind = state_as(state, PriviRecState), recipe.sum_of(spec.sum_index)
    if kind == "gram":
        scaled = _scaled(recipe, own, cohort.rows)
        for start, end in pairwise(scaled.indptr):
            places, (one, other) = triangle_places(scaled.indices[start:end], scaled.shape[1])
            values = scaled.data[start:end]
            yield places, values[one] * values[other]
    elif kind == "next":
        for user in cohort.users:
            order = cohort.order(int(user))
            sent = Local(np.zeros(0, np.int32) if order is None else order)
            yield slice(None), recipe.contribute(own, spec, sent).vector
    else:
        for values in _measured(recipe, own, cohort):
            yield slice(None), values


def _counted(recipe: PriviRecK, state: ModelState, rows: csr_array[Any, Any]) -> NDArray[np.float64]:
    """Return how many users have both of two items, of the triangle of those that have rows in the sums."""
    own = rows[:, recipe.kept(state_as(state, PriviRecState))]
    together = np.asarray((own.T @ own).todense(), np.float64)
    return together[np.triu_indices(len(together))]


def _opened(plan: SumPlan, sent: Iterable[tuple[_Places, NDArray[np.float64]]], clients: int) -> NDArray[np.float64]:
    """Return the opened sum of what so many clients sent, float64 (layout.length,)."""
    total = np.zeros(plan.layout.length)
    if not isinstance(plan, MaskedPlan):
        for places, values in sent:
            total[places] += values.astype(np.float32)
        return total.astype(np.float32).astype(np.float64)
    ((ring, _),) = plan.places[0]
    clip, steps = plan.layout.blocks[0].segments[0].clip, total.astype(np.int64)
    for places, values in sent:
        steps[places] += ring.encode(values, clip)[0].astype(np.int64)
    return plan.decode(ring.reduce(steps.view(np.uint64)), clients)


def _measured(recipe: PriviRecK, state: ModelState, cohort: Cohort) -> NDArray[np.float64]:
    """Return what each user contributes to a sum of validation, float64 (users, 1 + settings).

    Of more than 5,000 users that keep an item out the first ones measure, and the others have the mean of these.
    """
    held = cohort.held[cohort.users]
    found, able = np.zeros((held.size, 1 + len(recipe.settings))), np.flatnonzero(held >= 0)
    some = able[:_MOST_MEASURING]
    found[able, 0] = 1.0
    if some.size:
        own = state_as(state, PriviRecState)
        ordered = recipe.parameters.next_vectors
        orders = [cohort.order(int(user)) for user in cohort.users[some]] if ordered else None
        found[some, 1:] = measured(
            components_of(recipe, state),
            cohort.rows[some].astype(np.float32),
            held[some],
            recipe.settings,
            None if orders is None else trails(recipe, own, orders),
        )
        found[able[some.size :], 1:] = found[some, 1:].mean(axis=0)
    return found


def noisy_whole_sum(
    private: Private, spec: RoundSpec, state: ModelState, cohort: Cohort, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the opened sum of a PriviRec task with a privacy block, in steps, float64 (layout.length,).

    It has the distribution of the sum of the clients' contributions: each is limited, scaled and rounded as on its
    device, and the noise is that of all of them (`noise_of_all`). Draws are from `rng`: this is for simulations only.
    """
    recipe = private.inner
    if not isinstance(recipe, PriviRecK):
        raise ParameterError(f"recipe {recipe.name!r} has no sums that are computed at once")
    rows, kind = cohort.rows, recipe.sum_of(spec.sum_index)
    if kind == "degrees":
        order = np.lexsort((rng.random(rows.nnz), np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))))
        place = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], np.diff(rows.indptr))
        kept = order[place < private.privacy.most_items]
        total = np.bincount(rows.indices[kept], minlength=rows.shape[1]).astype(np.int64)
    elif kind in ("gram", "next", "validation"):
        bound = private.l2_bound(spec.sum_index)
        unit = (private.sensitivity(spec.sum_index).l2 or 1.0) / bound
        total = np.zeros(private.inner.layout(spec.sum_index).length, np.int64)
        for places, values in _sent(recipe, state, spec, cohort):
            total[places] += round_within(values / unit, bound, rng.bytes)[0]
    else:
        model = state_as(state, PriviRecState)
        scaled = _scaled(recipe, model, rows)
        basis = recipe.basis_before(model, spec)[recipe.kept(model)].astype(np.float64)
        bound = private.l2_bound(spec.sum_index)
        total = _sum_of_steps(scaled, basis, lambda chunk, values: _rounded_rows(chunk, values, bound, rng))
    return total.ravel() + noise_of_all(private, spec, total.size, rows.shape[0], rng)


def noise_of_all(
    private: Private, spec: RoundSpec, values: int, clients: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return one draw of the distribution of the sum of all clients' shares of noise, in steps, float64 (values,).

    A sum of Skellam shares is Skellam noise, and that is the difference of two Poisson draws. For simulations only.
    """
    mean = private.noise(spec.sum_index).share * clients / 2
    return np.asarray(rng.poisson(mean, values) - rng.poisson(mean, values), np.float64)


def _rounded_rows(
    chunk: csr_array[Any, Any], values: NDArray[np.float64], bound: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the users' values, in units of the bound, in steps, rounded within it; see `round_within`."""
    owners = np.repeat(np.arange(chunk.shape[0]), np.diff(chunk.indptr))
    norms = np.sqrt(np.bincount(owners, np.square(values).sum(axis=1), chunk.shape[0])) * bound
    longest = np.array([longest_norm(bound, int(size)) for size in np.diff(chunk.indptr) * values.shape[1]])
    if (longest <= 0).any():
        raise ParameterError(f"a user has too many items for a bound of {bound:g} steps: raise most_items")
    scales = np.minimum(1.0, longest / np.maximum(norms, 1e-300)) * bound
    exact = values * scales[owners][:, None]
    steps: NDArray[np.int64] = np.floor(exact + rng.random(exact.shape)).astype(np.int64)
    while True:
        squares = np.bincount(owners, np.square(steps).sum(axis=1), chunk.shape[0])
        again = np.flatnonzero((squares > bound**2)[owners])
        if not again.size:
            return steps
        steps[again] = np.floor(exact[again] + rng.random((again.size, exact.shape[1]))).astype(np.int64)


def _scaled(recipe: PriviRecK, state: PriviRecState, rows: csr_array[Any, Any]) -> csr_array[Any, Any]:
    """Return the users' rows of R~, float64 CSR (users, m), with the columns of the items that sums are about."""
    from scipy.sparse import csr_array, diags_array

    kept = recipe.kept(state)
    own = csr_array(rows[:, kept])
    users = np.maximum(np.diff(own.indptr), 1).astype(np.float64) ** -recipe.parameters.user_exponent
    return csr_array(diags_array(users) @ own @ diags_array(recipe.item_scales(state)[kept]))


def _ring_sum(
    plan: MaskedPlan, scaled: csr_array[Any, Any], basis: NDArray[np.float64], has: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the sum of the clients' ring elements, opened: of the entries that rows have, bool (m, K)."""
    ((ring, _),) = plan.places[0]
    clip = plan.layout.blocks[0].segments[0].clip
    total = _sum_of_steps(scaled, basis, lambda _, values: ring.encode(values, clip)[0].astype(np.int64))
    return plan.decode(ring.reduce(total.view(np.uint64)[has]), scaled.shape[0])


def _sum_of_steps(
    scaled: csr_array[Any, Any],
    basis: NDArray[np.float64],
    rounded: Callable[[csr_array[Any, Any], NDArray[np.float64]], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return the sum of all rounded values of r_u^T (r_u Q), int64 (items, columns), by chunks of users.

    rounded: returns the steps of a chunk's values, float64 (interactions, columns). A chunk has about `_CHUNK_VALUES`.
    """
    from scipy.sparse import csr_array

    items, columns = basis.shape
    total, start, most = np.zeros((items, columns), np.int64), 0, max(1, _CHUNK_VALUES // columns)
    while start < scaled.shape[0]:
        end = int(np.searchsorted(scaled.indptr, scaled.indptr[start] + most, side="right")) - 1
        end = min(max(end, start + 1), scaled.shape[0])
        chunk, start = scaled[start:end], end
        values = chunk.data[:, None] * np.repeat(chunk @ basis, np.diff(chunk.indptr), 0)
        which = (np.ones(chunk.nnz, np.int64), chunk.indices, np.arange(chunk.nnz + 1))  # the item of each interaction
        placed: csr_array[Any, Any] = csr_array(which, shape=(chunk.nnz, items))
        total += placed.T @ rounded(chunk, values)
    return total


# --- RFRec with item means, all devices in every sum: their steps at once, in memory for the ratings only ------------
# A device trains its own copy V_i of all item factors. The rows of items that it has not rated follow the average in
# the same way on every device, so that one copy of them serves all; only the rated rows differ. The memory is then
# that of one row for each rating instead of items x dim values for each device.

Array = NDArray[np.float32]
_MOST_VALUES: Final = 100_000_000
"""Factor values of all ratings up to which this needs less than 3 GB."""


def can_train_whole(recipe: Recipe, train: Interactions) -> TypeGuard[RFRec]:
    """Return whether `WholeRatings` takes the steps of this recipe: of `rfrec` with means from one sum, and Adam."""
    return (
        isinstance(recipe, RFRec)
        and recipe.parameters.counting == 1
        and recipe.parameters.rule.released
        and recipe.parameters.ldp is None
        and train.ratings is not None
        and train.size * recipe.parameters.dim <= _MOST_VALUES
    )


class WholeRatings:
    """All devices of a task after its sum of ratings. users: their factors, float32 (users, dim), trained in place.

    recipe, train: as `can_train_whole` accepts them. Raises `ParameterError` without ratings or item means.
    """

    def __init__(self, train: Interactions, recipe: RFRec, state: ModelState, users: Array) -> None:
        start = state_as(state, RFRecState)
        if train.ratings is None or not start.item_totals.size:
            raise ParameterError("this needs ratings, and a state with item means")
        p = recipe.parameters
        self.recipe, self.users, self._train, self._rule = recipe, users, train, p.rule
        self._owners, self._places = train.users.astype(np.intp), train.items.astype(np.intp)
        self._targets = scaled_ratings(train.ratings, p)
        self._means = item_means(start.item_totals)
        self._offsets = np.zeros(train.size, np.float32)
        for user in train.active_users:
            own = train.rows_of(int(user))
            self._offsets[own] = self._offsets_of(int(user))[train.items[own]]
        self._shared = start.item_factors.copy()
        self._rated = self._shared[self._places]
        self._adam = Adam([self._shared, self._rated, users], [p.rule.rate] * 3)
        self._raters = np.bincount(self._places, minlength=p.items)
        self._devices = train.active_users.size

    def sum(self, state: ModelState) -> tuple[NDArray[np.float64], int]:
        """Take a step of every device; return the sum of V_i - V, float64 (items * dim,), and how many were clipped.

        state: the newest average V, known to all devices.
        """
        average, bound = state_as(state, RFRecState).item_factors, self.recipe.parameters.bound
        self._step(average)
        shared, rated = self._shared - average, self._rated - average[self._places]
        others = (self._devices - self._raters)[:, None]
        clipped = int((others * (np.abs(shared) > bound)).sum()) + int(np.count_nonzero(np.abs(rated) > bound))
        shared, rated = np.clip(shared, -bound, bound), np.clip(rated, -bound, bound)
        total = others * shared.astype(np.float64) + _summed(self._places, rated, len(average))
        return total.ravel(), clipped

    def scores(self, state: ModelState, users: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the predicted rating of each item for users with ratings, float32 (users, items)."""
        logits = self.users[users] @ state_as(state, RFRecState).item_factors.T
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

    def _offsets_of(self, user: int) -> Array:
        """Return the logit offsets of all items, float32 (items,)."""
        own = self._train.rows_of(user)
        return rating_offsets(self._means, self._train.items[own], self._targets[own])


def _summed(places: NDArray[np.intp], values: Array, length: int) -> NDArray[np.float64]:
    """Return the sums of `values` (k, d) with the same place, float64 (length, d)."""
    columns = [np.bincount(places, values[:, column], length) for column in range(values.shape[1])]
    return np.stack(columns, axis=1)
