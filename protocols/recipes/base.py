"""The interface of every recipe: a layout, a route per client, and pure functions from sums to model states.

`absorb` needs the opened sum. It runs on the clients for encrypted sums, and on the server or a client for plain and
masked sums. The client half of a recipe, its local training, is in `client_sdk.training`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from protocols.layout import Route, VectorLayout

__all__ = [
    "MAX_ITEMS",
    "MOVES_ALIKE",
    "AbsorbsByParts",
    "FactorState",
    "ItemParameters",
    "ModelState",
    "PartOfSum",
    "SingleGroupRecipe",
    "Recipe",
    "RecipeParameters",
    "RoundSpec",
    "Update",
    "main_layout",
]

MAX_ITEMS: Final = 5_000_000
MOVES_ALIKE: Final = (
    "A client sends nearly the same change in every round, because Adam starts from zero in each: whoever knows which "
    "clients are in the sums of many rounds can compute what each client has."
)
"""The warning of recipes whose clients train with Adam."""


@dataclass(frozen=True)
class RoundSpec:
    """What the server broadcasts for a round.

    number: number of the round, from 1. seed: 32 public random bytes. sum_index: index of the sum among the task's
    sums, from 1; a round that fails is followed by one with the same index, or, if its sum is abandoned, the next.
    levels: the levels in use, which the server computes for the cohort (`Recipe.levels_in_use`); empty for sums in
    which all clients have one route, and where clients keep the levels that they draw.
    """

    number: int
    seed: bytes
    sum_index: int
    levels: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelState:
    """The shared model after `round_number` rounds; that of 0 rounds follows from the task's seed.

    Recipes define subclasses that hold their arrays.
    """

    round_number: int

    @property
    def sums(self) -> int:
        """How many sums the state says it holds, if what clients do depends on it; 0 otherwise."""
        return 0

    def freeze(self) -> None:
        """Make every array read-only, because states are shared between callers."""
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
    """The result of local training: rows of change for the items that a client touched.

    items: int32 (k,), distinct; every item that took part in training, sampled negatives included.
    values: float32 (k, width), width = dim for FedMF, rank for CoLR, the client's own rank for SCoLR.
    """

    items: NDArray[np.int32]
    values: NDArray[np.float32]


class RecipeParameters(BaseModel):
    """Base of the parameters of every recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def start_digest(self) -> str | None:
        """SHA-256 (hex) of the encoded state of round 0, if that is stored with the task; None: it follows from the
        task's seed."""
        return None


class ItemParameters(RecipeParameters):
    """Parameters that every recipe with a model of numbered items has."""

    items: int = Field(ge=1, le=MAX_ITEMS, description="Number of items, N: rows of the item factors.")


class SingleGroupRecipe:
    """The device group methods of `Recipe`, for recipes with one group whose clients train on the whole model."""

    device_groups: Final = 1

    def most_levels(self, sum_index: int) -> int:
        """Return 0: all clients contribute to the same blocks."""
        return 0

    def levels_in_use(self, spec: RoundSpec, clients: Sequence[str], min_clients: int) -> tuple[int, ...]:
        """Return no levels."""
        return ()

    @property
    def main_sum(self) -> int:
        """The index of a sum that stands for the task's sums: the first one."""
        return 1

    def device_group_of(self, sum_index: int) -> int:
        """Return 0, the only group."""
        return 0

    def view(self, state: ModelState, device_group: int) -> ModelState:
        """Return the state itself, which is the view of the only group."""
        return state

    def initial_view(self, task_seed: bytes, device_group: int) -> ModelState:
        """Return the initial state itself."""
        return self.initial_state(task_seed)

    def view_bytes(self, sum_index: int, device_group: int) -> int:
        """Return `state_bytes(sum_index)`."""
        return self.state_bytes(sum_index)

    def encode_view(self, view: ModelState, device_group: int) -> bytes:
        """Return the encoded state."""
        return self.encode_state(view)

    def decode_view(self, round_number: int, body: bytes, device_group: int) -> ModelState:
        """Decode the bytes of `encode_view`; `CodecError` unless the length and every value are valid."""
        return self.decode_state(round_number, body)

    def initial_state(self, task_seed: bytes) -> ModelState:
        """Return the state of round 0, from the task's seed alone."""
        raise NotImplementedError

    def state_bytes(self, sum_index: int) -> int:
        """Return the length in bytes of an encoded state after `sum_index` sums."""
        raise NotImplementedError

    def longest_state_bytes(self) -> int:
        """Return `state_bytes(1)`: the states of most recipes have one length."""
        return self.state_bytes(1)

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return the layout of the aggregate of sum `sum_index`."""
        raise NotImplementedError

    def longest_vector(self) -> int:
        """Return the length of the first sum or of the main sum, whichever is longer: most recipes have no others."""
        return max(self.layout().length, self.layout(self.main_sum).length)

    def encode_state(self, state: ModelState) -> bytes:
        """Return the state as exactly `state_bytes(sum_index)` bytes."""
        raise NotImplementedError

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid."""
        raise NotImplementedError


def main_layout(recipe: Recipe) -> VectorLayout | None:
    """Return the layout of the main sum, whose keys the other sums use; None if the first sum is the main one."""
    return recipe.layout(recipe.main_sum) if recipe.main_sum > 1 else None


PartOfSum = Callable[[int, int], NDArray[np.float64]]
"""Returns values `start` to `stop` of an opened sum, float64 (stop - start,)."""


@runtime_checkable
class AbsorbsByParts(Protocol):
    """A recipe that can absorb a sum in parts, so that all of it need not be in memory."""

    def absorb_parts(self, state: ModelState, spec: RoundSpec, total: PartOfSum, contributions: int) -> ModelState:
        """Return what `Recipe.absorb` returns for the sum of which `total` returns parts; raises as that does."""


class Recipe(Protocol):
    """One federated recommender, built from its validated parameters by `protocols.recipes.registry.recipe`."""

    @property
    def name(self) -> str:
        """The name by which tasks choose the recipe, such as `fedmf` or `colr`."""

    @property
    def parameters(self) -> RecipeParameters:
        """The validated parameters; `model_dump(mode="json")` gives the JSON form."""

    @property
    def by_snapshot(self) -> bool:
        """Whether clients download the server's snapshot of the model instead of replaying aggregates."""

    @property
    def main_sum(self) -> int:
        """The index of a sum whose layout stands for the task's sums, in plans and costs: usually of the first."""

    @property
    def device_groups(self) -> int:
        """Number of device groups; 1 for most recipes. Each sum is over one group, and the groups take turns.

        A client states its group when it enrols and cannot change it.
        """

    def device_group_of(self, sum_index: int) -> int:
        """Return the device group, from 0, whose members contribute to sum `sum_index`."""

    def view(self, state: ModelState, device_group: int) -> ModelState:
        """Return what a member of `device_group` trains on: the state, or the part that a small device can hold."""

    def initial_view(self, task_seed: bytes, device_group: int) -> ModelState:
        """Return `view` of the initial state, using no more memory than the view needs."""

    def view_bytes(self, sum_index: int, device_group: int) -> int:
        """Return the length in bytes of an encoded view after `sum_index` sums: what members of the group download."""

    def encode_view(self, view: ModelState, device_group: int) -> bytes:
        """Return the view as exactly `view_bytes(sum_index, device_group)` bytes."""

    def decode_view(self, round_number: int, body: bytes, device_group: int) -> ModelState:
        """Decode the bytes of `encode_view`; `CodecError` unless the length and every value are valid."""

    def state_bytes(self, sum_index: int) -> int:
        """Return the length in bytes of an encoded state after `sum_index` sums: of a snapshot before it is sealed."""

    def longest_state_bytes(self) -> int:
        """Return the length in bytes of the longest encoded state, or view, of a task of this recipe."""

    def longest_vector(self) -> int:
        """Return the largest number of values of any sum of a task, without allocating memory for them."""

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return the layout of the aggregate of sum `sum_index`."""

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """Return what the server broadcasts for round `number` and sum `sum_index` (None: no round failed so far)."""

    def most_levels(self, sum_index: int) -> int:
        """Return the highest level that a client can draw for sum `sum_index`; 0 if clients draw no levels."""

    def levels_in_use(self, spec: RoundSpec, clients: Sequence[str], min_clients: int) -> tuple[int, ...]:
        """Return the levels in use in a round that asks `clients` (`protocols.patterns`); empty without levels."""

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the blocks that this client contributes to in this round: public, computed by server and client."""

    def initial_state(self, task_seed: bytes) -> ModelState:
        """Return the state of round 0, from the task's seed alone."""

    def encode_state(self, state: ModelState) -> bytes:
        """Return the state as exactly `state_bytes(sum_index)` bytes."""

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid."""

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """Return the state after the round whose opened sum is `total`, float64 (layout.length,).

        contributions: how many clients are in the sum. Raises `ParameterError` if the round does not follow `state`.
        """

    def report(self, state: ModelState) -> dict[str, float]:
        """Return figures about the state, by name, that everyone who may see the state may see; empty if none."""

    def is_done(self, state: ModelState) -> bool:
        """Return whether the task needs no further sum, even if its schedule allows more rounds."""

    def warnings(self) -> tuple[str, ...]:
        """Return what the sums reveal with any mechanism, one sentence each; clients see them before they agree."""
