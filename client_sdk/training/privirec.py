"""The client side of PriviRec: contributions from the client's normalised row, and a graph filter for scores.

Nothing is trained and no state is kept. The only data sent that depends on the row is the dense contribution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters import FILTERS, Components, Filter, TurboCF, preset, user_row
from client_sdk.filters.registry import PRESETS
from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import ClientHalf, LocalResult, TrainingConfig
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.privirec.recipe import PriviRec, PriviRecK
from protocols.recipes.privirec.state import PriviRecState, privirec_state
from protocols.recipes.privirec.triangle import row_starts, triangle_places

__all__ = ["PriviRecHalf", "components_of", "matching_filter", "half"]


@dataclass(frozen=True)
class PriviRecHalf:
    """The client side of PriviRec. `graph_filter` is used for the client's own recommendations only."""

    recipe: PriviRecK
    graph_filter: Filter

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """Return an empty state: the recipe keeps nothing at the client between rounds."""
        return {}

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
        """Return the client's part of the sum, dense: r_u^T (r_u Q) is nonzero only in the rows of its own items.

        `rng` and `excluded` are not used, because nothing is drawn. Raises `ParameterError` for a client without
        positives, or if `state` is not the model before this sum.
        """
        own, positives = privirec_state(state), history.items
        if not positives.size:
            raise ParameterError("a client without interactions has no row to contribute")
        if own.sum_index != spec.sum_index - 1:
            raise ParameterError(
                f"sum {spec.sum_index} follows the model of sum {spec.sum_index - 1}, not that of {own.sum_index}"
            )
        vector = np.zeros(self.recipe.layout(spec.sum_index).length)
        kind = self.recipe.sum_of(spec.sum_index)
        if kind == "degrees":
            vector[positives] = 1.0
            return self._result(vector, 0, positives)
        row = self._row(own, positives)
        if kind == "iteration":
            rows, part = vector.reshape(-1, self.recipe.parameters.columns), own.basis[positives].astype(np.float64)
            rows[positives], clipped = _within_unit(np.outer(row, row @ part))
        else:
            places, (first, second) = triangle_places(positives, self.recipe.parameters.items)
            vector[places], clipped = _within_unit(row[first] * row[second])
        return self._result(vector, clipped, positives)

    def _row(self, state: PriviRecState, positives: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the row of R~ at the positives, float64 (k,): d_u^-a d_i^(a-1), and 0 for an item with degree 0."""
        exponent, degrees = self.recipe.parameters.user_exponent, state.item_degrees[positives]
        scales = np.power(degrees, exponent - 1, out=np.zeros_like(degrees), where=degrees > 0)
        return np.asarray(scales * float(positives.size) ** -exponent)

    def _result(self, vector: NDArray[np.float64], clipped: int, positives: NDArray[np.int32]) -> LocalResult:
        return LocalResult([vector], clipped, {}, nan, int(positives.size))

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """Return an empty state: the filter needs only the model and the positives."""
        return {}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the filter's scores for the user's row. Raises `ParameterError` if the model has no vectors yet."""
        components = components_of(self.recipe, state)
        return np.asarray(self.graph_filter.scores(components, user_row(history.items, components.n_items))[0])


def _within_unit(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Return the values clipped to [-1, 1], and how many were clipped: none, unless the server sent a wrong model."""
    return np.clip(values, -1.0, 1.0), int(np.count_nonzero(np.abs(values) > 1.0))


def components_of(recipe: PriviRecK, state: ModelState) -> Components:
    """Return the components of a model for the filters. Raises `ParameterError` before the first iteration."""
    own, p = privirec_state(state), recipe.parameters
    if own.sum_index < 2:
        raise ParameterError(
            "the model has no singular vectors yet, which recommendations need: "
            f"{own.sum_index} of {recipe.steps} sums are complete, and the first vectors come with sum 2"
        )
    return Components(
        own.item_degrees,
        own.basis[:, : p.components],
        own.singular_values[: p.components],
        _whole_matrix(own.gram, p.items) if own.gram.size else None,
        p.user_exponent,
    )


def _whole_matrix(triangle: NDArray[np.float32], items: int) -> csr_array[Any, Any]:
    """Return the symmetric matrix of a packed upper triangle, float32 CSR (items, items), nonzero entries only."""
    places = np.flatnonzero(triangle)
    starts = row_starts(items)
    rows = np.searchsorted(starts, places, side="right") - 1
    columns = places - starts[rows] + rows
    upper = csr_array((triangle[places], (rows, columns)), shape=(items, items))
    mirrored = rows != columns
    lower = csr_array((triangle[places[mirrored]], (columns[mirrored], rows[mirrored])), shape=(items, items))
    return upper + lower


def matching_filter(recipe: PriviRecK, name: str | None = None) -> Filter:
    """Return the filter `name`, set to the recipe's user exponent.

    name: None for GF-CF, or for Turbo-CF if the exponent is not 1/2. `NAME/PRESET` gives a filter its published
    settings for a data set of `PRESETS`. Raises `ParameterError` for an unknown name or preset, for a filter that needs
    a different exponent, and for published settings that need the Gram matrix in a task without it.
    """
    exponent = recipe.parameters.user_exponent
    if name is not None and "/" in name:
        return _published(recipe, *name.split("/", 1))
    chosen = name or ("gf-cf" if isclose(exponent, 0.5) else "turbo-cf")
    if chosen not in FILTERS:
        raise ParameterError(f"unknown graph filter {chosen!r}: choose one of {', '.join(sorted(FILTERS))}")
    found = FILTERS[chosen]
    if isinstance(found, TurboCF):
        return replace(found, user_exponent=exponent)
    if not isclose(found.user_exponent, exponent):
        raise ParameterError(
            f"{chosen} needs user exponent {found.user_exponent:g}, but this task has {exponent:g}: use turbo-cf"
        )
    return found


def _published(recipe: PriviRecK, name: str, dataset: str) -> Filter:
    """Return the filter `name` with its published settings for `dataset`, checked against the task."""
    if dataset not in PRESETS:
        raise ParameterError(f"there are no published settings for {dataset!r}: choose one of {', '.join(PRESETS)}")
    found, exponent = preset(name, dataset), recipe.parameters.user_exponent
    if not isclose(found.user_exponent, exponent):
        raise ParameterError(
            f"the settings of {name} for {dataset} need user exponent {found.user_exponent:g}, but this task has "
            f"{exponent:g}"
        )
    if found.needs_gram and not isinstance(recipe, PriviRec):
        raise ParameterError(f"the settings of {name} for {dataset} need the Gram matrix: a task of recipe 'privirec'")
    return found


def half(
    recipe: PriviRecK,
    training: TrainingConfig | None = None,  # noqa: ARG001 - PriviRec trains nothing
    graph_filter: str | None = None,
) -> ClientHalf:
    """Return the client half; `ParameterError` for a filter that does not fit the task."""
    return PriviRecHalf(recipe, matching_filter(recipe, graph_filter))
