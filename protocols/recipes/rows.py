"""Base classes of the recipes whose model is the item factors alone; most of them send rows of change."""

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
    """A recipe whose model is the item factors alone: initial state, encoding, and defaults for the rest."""

    parameters: FactorParameters

    frozen_cohort: Final = False
    by_snapshot: Final = False

    def state_bytes(self, sum_index: int) -> int:
        """Return 4 bytes for each entry of the item factors."""
        return self.parameters.items * self.parameters.dim * 4

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """Return the round's broadcast, its public seed derived from the task's."""
        return round_spec(task_seed, number, sum_index)

    def initial_state(self, task_seed: bytes) -> FactorState:
        """Return the state of round 0: item factors N(0, 1/dim) from the task's seed."""
        return FactorState(0, initial_factors(task_seed, self.parameters.items, self.parameters.dim))

    def encode_state(self, state: ModelState) -> bytes:
        """Return the item factors as little-endian float32, row-major."""
        return encode_factors(state)

    def decode_state(self, round_number: int, body: bytes) -> FactorState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid."""
        return decode_factors(round_number, body, self.parameters)

    def report(self, state: ModelState) -> dict[str, float]:
        """Return nothing: only clients have data to evaluate the item factors with."""
        return {}

    def is_done(self, state: ModelState) -> bool:
        """Return False: the schedule alone ends training."""
        return False

    def warnings(self) -> tuple[str, ...]:
        """Return no warning: the sums reveal no more than any sum over a cohort."""
        return ()


class FactorRecipe(FactorModel):
    """A recipe over item factors whose contributions are laid out from the rows of change alone."""

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return B, float32 (client's rank, dim), for local training; None if the full matrix is trained."""
        raise NotImplementedError

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[list[NDArray[np.float64]], int]:
        """Return the contribution's blocks (one float64 vector per route entry) and how many values were clipped."""
        raise NotImplementedError


class RowRecipe(FactorRecipe):
    """A recipe in which every client sends `width` values per item and the touch vector, as one block."""

    @property
    def width(self) -> int:
        """Number of values per item in a contribution."""
        raise NotImplementedError

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return one block: update rows (items x width, row-major) and touch counts (items)."""
        p = self.parameters
        return VectorLayout((rows_block("items", p.items, self.width, p.clip),))

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the route to the one block, the same for every client."""
        return whole_route(self.layout())

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[list[NDArray[np.float64]], int]:
        """Return the client's rows as a dense matrix with its touch vector, and how many values were clipped."""
        layout = self.layout()
        rows, touched = dense_rows(update, self.parameters.items, self.width)
        return clip_blocks(layout.blocks, [layout.blocks[0].join({"update": rows, "touched": touched})])

    def mean_update(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each item's summed row divided by the number of clients that touched it, float64 (items, width)."""
        parts = self.layout().blocks[0].split(total)
        return mean_rows(parts["update"].reshape(self.parameters.items, self.width), parts["touched"])
