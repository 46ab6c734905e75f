"""Base classes of the recipes whose model is the item factors alone; most of them send rows of change."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Block, Route, Segment, VectorLayout, whole_route
from protocols.recipes.base import Contribution, FactorState, Local, ModelState, RoundSpec, SingleGroupRecipe
from protocols.recipes.factors import (
    FactorParameters,
    advance,
    clip_blocks,
    dense_rows,
    initial_factors,
)
from protocols.recipes.item_counts import (
    BiasedParameters,
    CountedFactors,
    count_layout,
)
from protocols.recipes.normalisation import TOUCHED, NormalisedParameters, divisors, touch_segments
from protocols.recipes.state import StateField, StateFields, as_counts, count_fields, state_as
from protocols.sum_classes import TRAINED

__all__ = ["FactorModel", "FactorRecipe", "RowRecipe"]


class FactorModel(SingleGroupRecipe):
    """A recipe whose model is the item factors alone: initial state, encoding, and defaults for the rest."""

    parameters: FactorParameters

    state_class = FactorState

    @property
    def count_sums(self) -> int:
        """Number of first sums that are item counts; 0 for a model without item biases."""
        return self.parameters.counting if isinstance(self.parameters, BiasedParameters) else 0

    @property
    def has_counts(self) -> bool:
        """Whether the state has item counts."""
        return isinstance(self.parameters, BiasedParameters) and self.parameters.has_counts

    @property
    def main_sum(self) -> int:
        """The index of the first sum that trains."""
        return 1 + self.count_sums

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return the layout of the item counts for the first sums of a task with item biases, else of the changes."""
        return count_layout(self.parameters.items) if sum_index <= self.count_sums else self.change_layout()

    def change_layout(self) -> VectorLayout:
        """Return the layout of a sum of changes, the same for all of them."""
        raise NotImplementedError

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the route to the blocks of the sum, the same for every client."""
        return self._routes[spec.sum_index > self.count_sums]

    @cached_property
    def _routes(self) -> tuple[Route, Route]:
        """The routes of a sum of item counts, and of a sum of changes: each upload of a round asks for one."""
        return whole_route(count_layout(self.parameters.items)), whole_route(self.change_layout())

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """Return the state after a sum: with more item counts, or with changed item factors."""
        if spec.sum_index <= self.count_sums:
            return state_as(state, CountedFactors).counted(spec, total, contributions)
        rate = self.parameters.server_rate if isinstance(self.parameters, BiasedParameters) else 1.0
        return advance(state, spec, self.change(state, spec, total, contributions), rate)

    def change(
        self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int
    ) -> NDArray[np.float64]:
        """Return the change of the item factors from the opened sum over `contributions`, float64 (items, dim)."""
        raise NotImplementedError

    def state_fields(self, sum_index: int) -> StateFields:
        """Return the item factors and, with item biases, the counts and the number of clients."""
        p = self.parameters
        factors = StateField("item_factors", "<f4", (p.items, p.dim))
        return (factors, *count_fields(p.items)) if self.has_counts else (factors,)

    def state_from(self, round_number: int, values: dict[str, Any]) -> FactorState:
        """Return the state; `CodecError` for a count above the number of clients."""
        if not self.has_counts:
            return FactorState(round_number, **values)
        values["item_counts"] = as_counts(values["item_counts"], values["clients"])
        return CountedFactors(round_number, **values)

    def initial_state(self, task_seed: bytes) -> FactorState:
        """Return the state of round 0: item factors N(0, 1/dim) from the task's seed."""
        return self.first_state(initial_factors(task_seed, self.parameters.items, self.parameters.dim))

    def first_state(self, item_factors: NDArray[np.float32]) -> FactorState:
        """Return the state of round 0 with these item factors and, with item biases, counts of 0.

        Raises `ParameterError` for a task that starts from another task's model, which no seed determines.
        """
        if isinstance(self.parameters, BiasedParameters) and self.parameters.start_from is not None:
            raise ParameterError("this task starts from another task's model: round 0 is a snapshot, not from the seed")
        if self.has_counts:
            return CountedFactors(0, item_factors, np.zeros(self.parameters.items), 0)
        return FactorState(0, item_factors)


class FactorRecipe(FactorModel):
    """A recipe over item factors whose contributions are laid out from the rows of change alone."""

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return B, float32 (client's rank, dim), for local training; None if the full matrix is trained."""
        raise NotImplementedError


class RowRecipe(FactorRecipe):
    """A recipe in which every client sends `width` values per item as one block, whose mean an item's row is."""

    parameters: NormalisedParameters

    @property
    def width(self) -> int:
        """Number of values per item in a contribution."""
        raise NotImplementedError

    def change_layout(self) -> VectorLayout:
        """Return one block: update rows (items x width, row-major) and, with normalise "touched", touch counts."""
        return _layout_of_rows(self.parameters, self.width)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the client's rows (an `Update`) as a dense matrix."""
        (block,) = self.change_layout().blocks
        rows, touched = dense_rows(local.update, self.parameters.items, self.width)
        parts = {"update": rows} | ({TOUCHED: touched} if self.parameters.divides_by == "touched" else {})
        return clip_blocks((block,), [block.join(parts)])

    def mean_update(self, state: ModelState, total: NDArray[np.float64], contributions: int) -> NDArray[np.float64]:
        """Return each item's summed row divided as `normalise` says, float64 (items, width)."""
        parts = self.change_layout().blocks[0].split(total)
        found = divisors(self.parameters, state, contributions, parts.get(TOUCHED))
        return np.asarray(parts["update"].reshape(self.parameters.items, self.width) / found[:, None])

    def warnings(self) -> tuple[str, ...]:
        """Return what touch counts reveal, if the sums have them."""
        return self.parameters.touch_warnings()


@lru_cache(maxsize=64)  # each upload of a round asks for the same one
def _layout_of_rows(p: NormalisedParameters, width: int) -> VectorLayout:
    update = Segment("update", p.items * width, p.clip)
    return VectorLayout((Block("items", (update, *touch_segments(p))),), sum_class=TRAINED)
