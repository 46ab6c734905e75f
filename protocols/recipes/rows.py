"""What recipes over item factors have in common: the model is the item factors alone, and most send rows of change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.layout import Route, VectorLayout, whole_route
from protocols.recipes.base import ModelState, RoundSpec, Update
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

__all__ = ["FactorRecipe", "RowRecipe"]


class FactorRecipe:
    """What every recipe whose model is the item factors alone has in common."""

    parameters: FactorParameters

    @property
    def state_bytes(self) -> int:
        """4 bytes a factor entry."""
        return self.parameters.items * self.parameters.dim * 4

    def plan(self, task_seed: bytes, number: int) -> RoundSpec:
        """The round's public seed, from the task's."""
        return round_spec(task_seed, number)

    def initial_state(self, task_seed: bytes) -> ModelState:
        """Round 0: item factors N(0, 1/dim) from the task's seed."""
        return ModelState(0, initial_factors(task_seed, self.parameters.items, self.parameters.dim))

    def encode_state(self, state: ModelState) -> bytes:
        """Item factors as float32, little endian, row-major."""
        return encode_factors(state)

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """The inverse of `encode_state`; `CodecError` unless the length and every value are right."""
        return decode_factors(round_number, body, self.parameters)


class RowRecipe(FactorRecipe):
    """A recipe in which everyone sends `width` values an item and the touch vector, as one block."""

    @property
    def width(self) -> int:
        """Values an item in a contribution."""
        raise NotImplementedError

    def layout(self) -> VectorLayout:
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
