"""What recipes over item factors have in common: the model is the item factors alone, and most send rows of change."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.layout import Route, VectorLayout, whole_route
from protocols.recipes.base import FactorState, ModelState, RoundSpec, SingleGroupRecipe, Update
from protocols.recipes.factors import (
    FactorParameters,
    clip_blocks,
    decode_factors,
    dense_rows,
    encode_factors,
    initial_factors,
    mean_rows,
    round_spec,
    rows_block,
)

__all__ = ["FactorModel", "FactorRecipe", "RowRecipe"]


class FactorModel(SingleGroupRecipe):
    """A model that is the item factors alone: how its states begin, travel and end."""

    parameters: FactorParameters

    frozen_cohort: Final = False
    by_snapshot: Final = False

    def state_bytes(self, sum_index: int) -> int:
        """4 bytes a factor entry."""
        return self.parameters.items * self.parameters.dim * 4

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """The round's public seed, from the task's."""
        return round_spec(task_seed, number, sum_index)

    def initial_state(self, task_seed: bytes) -> FactorState:
        """Round 0: item factors N(0, 1/dim) from the task's seed."""
        return FactorState(0, initial_factors(task_seed, self.parameters.items, self.parameters.dim))

    def encode_state(self, state: ModelState) -> bytes:
        """Item factors as float32, little endian, row-major."""
        return encode_factors(state)

    def decode_state(self, round_number: int, body: bytes) -> FactorState:
        """The inverse of `encode_state`; `CodecError` unless the length and every value are right."""
        return decode_factors(round_number, body, self.parameters)

    def report(self, state: ModelState) -> dict[str, float]:
        """Nothing: how good the factors are only the clients can tell."""
        return {}

    def is_done(self, state: ModelState) -> bool:
        """Never: training goes on for as long as the schedule says."""
        return False

    def warnings(self) -> tuple[str, ...]:
        """Nothing beyond what every sum over a cohort tells."""
        return ()


class FactorRecipe(FactorModel):
    """A recipe over item factors whose contributions are laid out from the rows of change alone."""

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """B, (client's rank, dim) float32, that local training uses; None when the full matrix is trained."""
        raise NotImplementedError

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[list[NDArray[np.float64]], int]:
        """The contribution's blocks (one float64 vector per route entry) and how many values had to be clipped."""
        raise NotImplementedError


class RowRecipe(FactorRecipe):
    """A recipe in which everyone sends `width` values an item and the touch vector, as one block."""

    @property
    def width(self) -> int:
        """Values an item in a contribution."""
        raise NotImplementedError

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """One block: update rows (items x width, row-major) and counts (items)."""
        p = self.parameters
        return VectorLayout((rows_block("items", p.items, self.width, p.clip),))

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Everyone feeds the one block."""
        return whole_route(self.layout())

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[list[NDArray[np.float64]], int]:
        """The client's rows, dense, and its touch vector."""
        layout = self.layout()
        rows, touched = dense_rows(update, self.parameters.items, self.width)
        return clip_blocks(layout.blocks, [layout.blocks[0].join({"update": rows, "touched": touched})])

    def mean_update(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """(items, width): each item's summed row divided by the number of clients that touched it."""
        parts = self.layout().blocks[0].split(total)
        return mean_rows(parts["update"].reshape(self.parameters.items, self.width), parts["touched"])
