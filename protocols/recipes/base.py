"""What every recipe offers: a layout, a route per client, and a pure fold from sums to model states.

Nobody but those who can open the sum can absorb it, so `absorb` runs wherever the aggregate opens: on the clients for
encrypted sums, anywhere for plain ones. The model is never sent: everyone starts from the task's seed and replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from protocols.layout import Route, VectorLayout

__all__ = ["ModelState", "Recipe", "RoundSpec", "Update"]


@dataclass(frozen=True)
class RoundSpec:
    """What the server broadcasts for a round: its number (from 1) and 32 public random bytes."""

    number: int
    seed: bytes


@dataclass(frozen=True)
class ModelState:
    """The shared model after `round_number` rounds (0: as drawn from the task seed)."""

    round_number: int
    item_factors: NDArray[np.float32]


@dataclass(frozen=True)
class Update:
    """What local training hands to a recipe: rows of change for the items a client touched.

    items: int32 (k,), unique, every item that took part in training, sampled negatives included.
    values: float32 (k, width), width = dim for FedMF, rank for CoLR, the client's own rank for SCoLR.
    """

    items: NDArray[np.int32]
    values: NDArray[np.float32]


class Recipe(Protocol):
    """One federated recommender, built from its validated parameters by `protocols.recipes.registry.recipe`."""

    @property
    def name(self) -> str:
        """The word tasks use: `fedmf`, `colr`, `scolr`."""

    @property
    def parameters(self) -> BaseModel:
        """The validated parameters, JSON-ready."""

    @property
    def state_bytes(self) -> int:
        """Length of an encoded model state: what a snapshot holds before it is sealed."""

    def layout(self) -> VectorLayout:
        """Layout of the aggregate; the same in every round of a task."""

    def plan(self, task_seed: bytes, number: int) -> RoundSpec:
        """The server half: what to broadcast for round `number`."""

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Which blocks this client feeds in this round: public, computed alike by the server and the client."""

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """B, (client's rank, dim) float32, that local training uses; None when the full matrix is trained."""

    def initial_state(self, task_seed: bytes) -> ModelState:
        """Round 0: item factors N(0, 1/dim) float32 (n_items, dim) from the task's seed."""

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[Sequence[NDArray[np.float64]], int]:
        """The contribution's blocks (one float64 vector per route entry) and how many values had to be clipped."""

    def encode_state(self, state: ModelState) -> bytes:
        """Exactly `state_bytes` bytes."""

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """The inverse of `encode_state`; `CodecError` unless the length and every value are right."""

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """The state after the round whose opened sum is `total` (layout.length,)."""
