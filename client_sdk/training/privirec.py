"""The client side of PriviRec: contributions from the client's normalised row, and a graph filter for scores.

Nothing is trained. The only data sent that depends on the row is the dense contribution. In a task with validation or a
sum of next items a client keeps two draws, which say whether it keeps an item out of the sums, which one, and in which
order items of one time count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isclose, nan
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, refuse_settings
from client_sdk.training.graph_filters import (
    FILTERS,
    Components,
    Ease,
    Filter,
    TurboCF,
    blended,
    following,
    user_row,
)
from client_sdk.training.slim import Slim, slim
from client_sdk.training.validation import measured
from protocols.errors import ParameterError
from protocols.recipes.base import Local, ModelState, Recipe, RoundSpec
from protocols.recipes.next_item import trail
from protocols.recipes.privirec import PriviRec, PriviRecK
from protocols.recipes.privirec_parameters import PriviRecKParameters
from protocols.recipes.privirec_state import PriviRecState, rows_of_all
from protocols.recipes.state import state_as
from protocols.recipes.validation import Setting, held_out

if TYPE_CHECKING:
    from client_sdk.training.graph_filters import Matrix


DRAWN: Final = "drawn"
"""Key in the client state: float64 (2,), see `held_out` and `in_order`."""


@dataclass(frozen=True)
class PriviRecSide(ClientSide):
    """The client side of PriviRec. `graph_filter` is used for the client's own recommendations only; None: EASE, with
    the setting that the task's members chose."""

    recipe: PriviRecK
    graph_filter: Filter | None

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        update: NDArray[np.generic]
        held, items = held_item(self.recipe, history, client_state), history.items
        kept = items if held is None else items[items != held]
        update, kind = kept, self.recipe.sum_of(spec.sum_index)
        order = in_order(self.recipe, history, client_state) if kind in ("next", "validation") else None
        if order is not None:
            order = order[order != held]
        if kind == "next":
            update = kept[:0] if order is None else order
        if kind == "validation":
            update = np.zeros(0) if held is None else self._measured(state, kept, held, order)
        made = self.recipe.contribute(state, spec, Local(update, client_id))
        return LocalResult(made, client_state, nan, len(history))

    def _measured(
        self, state: ModelState, kept: NDArray[np.int32], held: int, order: NDArray[np.int32] | None
    ) -> NDArray[np.float64]:
        row, own = user_row(kept, self.recipe.parameters.items), state_as(state, PriviRecState)
        ends = trails(self.recipe, own, [order]) if self.recipe.parameters.next_vectors else None
        found = measured(components_of(self.recipe, state), row, np.array([held]), self.recipe.settings, ends)
        return np.asarray(found[0])

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return the draws by which a client keeps an item out of the sums, and orders items of one time."""
        p = self.recipe.parameters
        return {DRAWN: rng.random(2)} if p.validation or p.next_vectors else {}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the filter's scores for the user's row. Raises `ParameterError` if the model has no vectors yet."""
        row = user_row(history.items, self.recipe.parameters.items)
        return np.asarray(self.scores_of(state, row, [in_order(self.recipe, history, client_state)])[0])

    def scores_of(
        self, state: ModelState, rows: Matrix, orders: Sequence[NDArray[np.int32] | None] = ()
    ) -> NDArray[np.float32]:
        """Return scores for many users' rows, float32 (users, m); errors as in `scores`.

        orders: each user's items in the order of their times, None where these are not known. Without, it has the
        scores of the filter.
        """
        components, own = components_of(self.recipe, state), state_as(state, PriviRecState)
        if self.graph_filter is not None:
            return self.graph_filter.scores(components, rows)
        setting = self.recipe.settings[own.setting]
        chosen: Filter = Slim(setting) if setting.sizes else Ease(setting=setting)
        found = chosen.scores(components, rows)
        if not (setting.share and len(orders)):
            return found
        return blended(components, setting, found, following(components, trails(self.recipe, own, orders), setting))

    def known(self, state: ModelState) -> NDArray[np.bool_] | None:
        """Return which items have rows in the sums."""
        found = np.zeros(self.recipe.parameters.items, bool)
        found[self.recipe.kept(state_as(state, PriviRecState))] = True
        return found


def held_item(recipe: Recipe, history: History, client_state: ClientState) -> int | None:
    """Return the item that a client keeps out of all sums of a PriviRec task, None for none: see `held_out`.

    In a task with a sum of next items it is the last one, where times are known.
    """
    own = recipe.own
    if not (isinstance(own, PriviRecK) and own.parameters.validation):
        return None
    order = in_order(recipe, history, client_state)
    items = history.items if order is None else order
    return held_out(client_state[DRAWN], items, own.parameters.validation, order is not None)


def in_order(recipe: Recipe, history: History, client_state: ClientState) -> NDArray[np.int32] | None:
    """Return a client's items in the order of their times, those of one time in an order that it drew once; None
    without times, and in tasks without a sum of next items."""
    own = recipe.own
    if history.times is None or not (isinstance(own, PriviRecK) and own.parameters.next_vectors):
        return None
    drawn = client_state[DRAWN] if DRAWN in client_state else np.zeros(2)
    ties = np.random.default_rng([int(x * 2**53) for x in drawn]).permutation(len(history))
    return history.items[np.lexsort((ties, history.times))]


def trails(recipe: PriviRecK, state: PriviRecState, orders: Sequence[NDArray[np.int32] | None]) -> NDArray[np.float64]:
    """Return z of `next_item` after each user's last item, float64 (users, next_vectors); zeros without an order."""
    found = np.zeros((len(orders), recipe.parameters.next_vectors))
    for row, order in zip(found, orders, strict=True):
        items = np.zeros(0, np.int32) if order is None else recipe.with_rows(state, order)
        if items.size:
            row[:] = trail(recipe.places_of(state, items))[-1]
    return found


def components_of(recipe: PriviRecK, state: ModelState) -> Components:
    """Return the components of a model for the filters, with zeros for items that have too few owners.

    Raises `ParameterError` before the first iteration, and where the task ended without one.
    """
    own, p = state_as(state, PriviRecState), recipe.parameters
    kept = recipe.kept(own)
    if 0 in recipe.size_after(own):
        raise ParameterError(
            f"the model has no singular vectors, which recommendations need: sums over the {own.clients} clients and "
            f"the {kept.size} items with {p.min_owners} owners or more would give single clients' items away. More "
            "clients are needed, or a privacy block"
        )
    if own.sum_index < recipe.first_scores:
        raise ParameterError(
            f"the model has no singular vectors yet, which recommendations need: {own.sum_index} of {recipe.steps} "
            f"sums are complete, and the first vectors come with sum {recipe.first_scores}"
        )
    used = slice(None) if p.krylov else slice(p.components)
    degrees = np.zeros(p.items)
    degrees[kept] = own.item_degrees[kept] if p.degrees else 1.0  # b = 0: degrees scale nothing
    if isinstance(recipe, PriviRec) and p.counted:
        found = recipe.spectrum(own)
        vectors = rows_of_all(found.vectors.astype(np.float32), kept, p.items)
        values = np.sqrt(found.eigenvalues).astype(np.float32)
        return Components(
            degrees,
            vectors[:, used],
            values[used],
            None,
            p.user_exponent,
            p.item_exponent,
            learned=partial(_learned, recipe, own),
        )
    return Components(
        degrees,
        own.basis[:, used],
        own.singular_values[used],
        _whole_matrix(own.gram, p.items) if own.gram.size else None,
        p.user_exponent,
        p.item_exponent,
        p.krylov,
        own.transitions if own.transitions.size else None,
    )


_NEWEST: Final[list[tuple[PriviRec, PriviRecState, Setting, NDArray[np.float32]]]] = []
"""The last weights of SLIM, which scores of many users and other settings need, and the model after one more sum."""


def _learned(recipe: PriviRec, state: PriviRecState, setting: Setting) -> NDArray[np.float32]:
    """Return B of SLIM of P, float32 (m, m), 0 for items without rows: see `Setting`."""
    for of, known, made, found in _NEWEST:
        alike = (getattr(made, name) == getattr(setting, name) for name in ("weight", "sizes"))
        same = (getattr(known, name) for name in _COUNTS), (getattr(state, name) for name in _COUNTS)
        if of == recipe and all(alike) and all(map(np.array_equal, *same)):
            return found
    matrix, kept = recipe.matrix(state).astype(np.float32), recipe.kept(state)
    mean = float(np.diag(matrix).mean())
    found = np.zeros((recipe.parameters.items,) * 2, np.float32)
    found[np.ix_(kept, kept)] = slim(matrix, setting.weight * mean, setting.sizes * mean)
    _NEWEST[:] = [(recipe, state, setting, found)]
    return found


_COUNTS: Final = ("item_degrees", "pairs", "pair_clients")
"""All of a state that P follows from."""


def _whole_matrix(triangle: NDArray[np.float32], items: int) -> NDArray[np.float32]:
    """Return the symmetric matrix of a packed upper triangle, float32 (items, items): twice its memory."""
    whole = np.empty((items, items), dtype=np.float32)
    start = 0
    for item in range(items):
        part = triangle[start : start + items - item]
        whole[item, item:], whole[item:, item] = part, part
        start += items - item
    return whole


def matching_filter(recipe: PriviRecK, name: str | None = None) -> Filter:
    """Return the filter `name`, set to the recipe's user exponent.

    name: None for EASE if the task names an item exponent, as recommended tasks do; otherwise for GF-CF, or Turbo-CF if
    the user exponent is not 1/2. Raises `ParameterError` for an unknown name and for a filter that needs different
    exponents.
    """
    p = recipe.parameters
    chosen = name or ("ease" if p.item_exponent is not None else "gf-cf" if _fits(p, 0.5) else "turbo-cf")
    if chosen not in FILTERS:
        raise ParameterError(f"unknown graph filter {chosen!r}: choose one of {', '.join(sorted(FILTERS))}")
    found = FILTERS[chosen]
    if isinstance(found, TurboCF):
        found = replace(found, user_exponent=p.user_exponent)
    if not _fits(p, found.user_exponent):
        able = "turbo-cf or ease" if _fits(p, p.user_exponent) else "ease"
        wanted = found.user_exponent or 0.0
        raise ParameterError(
            f"{chosen} needs user exponent {wanted:g} and item exponent {1 - wanted:g}, but this task has "
            f"{p.user_exponent:g} and {p.degree_exponent:g}: use {able}"
        )
    return found


def _fits(parameters: PriviRecKParameters, user_exponent: float | None) -> bool:
    """Whether a filter works in a task: one with None in any, another needs a = `user_exponent` and b = 1 - a."""
    a, b = parameters.user_exponent, parameters.degree_exponent
    return user_exponent is None or (isclose(a, user_exponent) and isclose(b, 1 - user_exponent))


def client_side(
    recipe: PriviRecK, training: TrainingConfig | None = None, graph_filter: str | None = None
) -> ClientSide:
    refuse_settings(recipe, training, why="recipe {} trains nothing")
    p = recipe.parameters
    by_setting = p.validation or p.next_vectors or p.counted
    chosen = None if by_setting and graph_filter is None else matching_filter(recipe, graph_filter)
    return PriviRecSide(recipe, chosen)
