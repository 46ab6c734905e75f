"""The client side of PriviRec: contributions from the client's normalised row, and a graph filter for scores.

Nothing is trained. The only data sent that depends on the row is the dense contribution. In a task with validation a
client keeps two draws, which say whether it keeps an item out of the sums, and which one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, nan
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, refuse_settings
from client_sdk.training.graph_filters import FILTERS, Components, Ease, Filter, TurboCF, user_row
from client_sdk.training.validation import measured
from protocols.errors import ParameterError
from protocols.recipes.base import Local, ModelState, RoundSpec
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_parameters import PriviRecKParameters
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.state import state_as
from protocols.recipes.validation import SETTINGS, held_out

if TYPE_CHECKING:
    from client_sdk.training.graph_filters import Matrix


DRAWN: Final = "drawn"
"""Key in the client state: float64 (2,), see `held_out`."""


@dataclass(frozen=True)
class PriviRecSide(ClientSide):
    """The client side of PriviRec. `graph_filter` is used for the client's own recommendations only; None: EASE, with
    the setting that the task's members chose."""

    recipe: PriviRecK
    graph_filter: Filter | None

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        held, items = self._held_out(history, client_state), history.items
        kept = items if held is None else items[items != held]
        update: NDArray[np.generic] = kept
        if self.recipe.sum_of(spec.sum_index) == "validation":
            update = np.zeros(0)
            if held is not None:
                row = user_row(kept, self.recipe.parameters.items)
                update = measured(components_of(self.recipe, state), row, np.array([held]))[0]
        made = self.recipe.contribute(state, spec, Local(update, client_id))
        return LocalResult(made, client_state, nan, len(history))

    def _held_out(self, history: History, client_state: ClientState) -> int | None:
        share = self.recipe.parameters.validation
        return held_out(client_state[DRAWN], history.items, share) if share else None

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return the draws by which a client keeps an item out of the sums, in a task with validation."""
        return {DRAWN: rng.random(2)} if self.recipe.parameters.validation else {}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the filter's scores for the user's row. Raises `ParameterError` if the model has no vectors yet."""
        return np.asarray(self.scores_of(state, user_row(history.items, self.recipe.parameters.items))[0])

    def scores_of(self, state: ModelState, rows: Matrix) -> NDArray[np.float32]:
        """Return the filter's scores for many users' rows, float32 (users, m); errors as in `scores`."""
        chosen = self.graph_filter
        if chosen is None:
            chosen = Ease(setting=SETTINGS[state_as(state, PriviRecState).setting])
        return chosen.scores(components_of(self.recipe, state), rows)


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
    if own.sum_index < recipe.first_vectors:
        raise ParameterError(
            f"the model has no singular vectors yet, which recommendations need: {own.sum_index} of {recipe.steps} "
            f"sums are complete, and the first vectors come with sum {recipe.first_vectors}"
        )
    used = slice(None) if p.krylov else slice(p.components)
    degrees = np.zeros(p.items)
    degrees[kept] = own.item_degrees[kept] if p.degrees else 1.0  # b = 0: degrees scale nothing
    return Components(
        degrees,
        own.basis[:, used],
        own.singular_values[used],
        _whole_matrix(own.gram, p.items) if own.gram.size else None,
        p.user_exponent,
        p.item_exponent,
        p.krylov,
    )


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
    chosen = None if recipe.parameters.validation and graph_filter is None else matching_filter(recipe, graph_filter)
    return PriviRecSide(recipe, chosen)
