"""What every recipe offers: a layout, a route per client, and a pure fold from sums to model states.

Nobody but those who can open the sum can absorb it, so `absorb` runs wherever the aggregate opens: on the clients for
encrypted sums, anywhere for plain and masked ones. What a client does with its own data is the recipe's client half,
in `client_sdk.training`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from protocols.layout import Route, VectorLayout

__all__ = [
    "MAX_ITEMS",
    "FactorState",
    "ItemParameters",
    "ModelState",
    "SingleGroupRecipe",
    "Recipe",
    "RoundSpec",
    "Update",
]

MAX_ITEMS: Final = 5_000_000


@dataclass(frozen=True)
class RoundSpec:
    """What the server broadcasts for a round.

    number: from 1, of every round. seed: 32 public random bytes. step: from 1, which of the task's sums the round is
    after; a round that fails is followed by another one of the same step.
    """

    number: int
    seed: bytes
    sum_index: int


@dataclass(frozen=True)
class ModelState:
    """The shared model after `round_number` rounds (0: as it follows from the task seed). Recipes add their arrays."""

    round_number: int

    def freeze(self) -> None:
        """Make every array read-only: states are shared."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


@dataclass(frozen=True)
class FactorState(ModelState):
    """The state of recipes that learn item factors Q, float32 (items, dim)."""

    item_factors: NDArray[np.float32]


@dataclass(frozen=True)
class Update:
    """What local training hands to a recipe: rows of change for the items a client touched.

    items: int32 (k,), unique, every item that took part in training, sampled negatives included.
    values: float32 (k, width), width = dim for FedMF, rank for CoLR, the client's own rank for SCoLR.
    """

    items: NDArray[np.int32]
    values: NDArray[np.float32]


class ItemParameters(BaseModel):
    """What the parameters of every recipe begin with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: int = Field(ge=1, le=MAX_ITEMS, description="Number of items, N: rows of the item factors.")


class SingleGroupRecipe:
    """What `Recipe` says of groups, for recipes that ask everyone alike and train everyone on the whole model."""

    device_groups: Final = 1

    def device_group_of(self, sum_index: int) -> int:
        """The one group there is."""
        return 0

    def view(self, state: ModelState, device_group: int) -> ModelState:
        """The state itself."""
        return state

    def initial_view(self, task_seed: bytes, device_group: int) -> ModelState:
        """The initial state itself."""
        return self.initial_state(task_seed)

    def view_bytes(self, sum_index: int, device_group: int) -> int:
        """As long as the state."""
        return self.state_bytes(sum_index)

    def encode_view(self, view: ModelState, device_group: int) -> bytes:
        """The state itself."""
        return self.encode_state(view)

    def decode_view(self, round_number: int, body: bytes, device_group: int) -> ModelState:
        """The inverse of `encode_view`."""
        return self.decode_state(round_number, body)

    def initial_state(self, task_seed: bytes) -> ModelState:
        """Round 0, from the task's seed alone."""
        raise NotImplementedError

    def state_bytes(self, sum_index: int) -> int:
        """Length of an encoded model state after `sum_index` sums."""
        raise NotImplementedError

    def encode_state(self, state: ModelState) -> bytes:
        """Exactly `state_bytes(sum_index)` bytes."""
        raise NotImplementedError

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """The inverse of `encode_state`."""
        raise NotImplementedError


class Recipe(Protocol):
    """One federated recommender, built from its validated parameters by `protocols.recipes.registry.recipe`."""

    @property
    def name(self) -> str:
        """The word tasks use: `fedmf`, `colr`, `scolr`."""

    @property
    def parameters(self) -> ItemParameters:
        """The validated parameters, JSON-ready."""

    @property
    def frozen_cohort(self) -> bool:
        """Whether all sums of a task are over one cohort that only shrinks: it sums the same data again and again."""

    @property
    def by_snapshot(self) -> bool:
        """Whether clients take the server's snapshot for the model instead of replaying aggregates."""

    @property
    def device_groups(self) -> int:
        """How many groups of clients there are, which are asked in turn, one a sum; 1 for most recipes.

        A client belongs to one group for good and states it when it enrols.
        """

    def device_group_of(self, sum_index: int) -> int:
        """From 0, the group whose members sum `sum_index` is over."""

    def view(self, state: ModelState, device_group: int) -> ModelState:
        """What a member of `device_group` trains from: the state itself, or what a small device can hold of it."""

    def initial_view(self, task_seed: bytes, device_group: int) -> ModelState:
        """`view` of the initial state, made in no more memory than the view takes."""

    def view_bytes(self, sum_index: int, device_group: int) -> int:
        """Length of an encoded view after `sum_index` sums: what members of `device_group` download for the model."""

    def encode_view(self, view: ModelState, device_group: int) -> bytes:
        """Exactly `view_bytes(sum_index, group)` bytes."""

    def decode_view(self, round_number: int, body: bytes, device_group: int) -> ModelState:
        """The inverse of `encode_view`; `CodecError` unless the length and every value are right."""

    def state_bytes(self, sum_index: int) -> int:
        """Length of an encoded model state after `sum_index` sums: what a snapshot holds before it is sealed."""

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Layout of the aggregate of sum `sum_index`."""

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """The server half: what to broadcast for round `number`, for sum `sum_index` (None: no round failed so far)."""

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Which blocks this client feeds in this round: public, computed alike by the server and the client."""

    def initial_state(self, task_seed: bytes) -> ModelState:
        """Round 0, from the task's seed alone."""

    def encode_state(self, state: ModelState) -> bytes:
        """Exactly `state_bytes(sum_index)` bytes."""

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """The inverse of `encode_state`; `CodecError` unless the length and every value are right."""

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """The state after the round whose opened sum is `total` (layout.length,)."""

    def report(self, state: ModelState) -> dict[str, float]:
        """Figures about a state that may be shown to everyone who may see the state; empty where there are none."""

    def is_done(self, state: ModelState) -> bool:
        """Whether the job needs no further sum, whatever the schedule still allows."""

    def warnings(self) -> tuple[str, ...]:
        """What the sums themselves reveal, whatever carries them, in plain words: shown before anyone agrees."""
