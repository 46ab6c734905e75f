"""The interface of every recipe: a layout, a route per client, and pure functions from sums to model states.

`absorb` needs the opened sum. It runs on the clients for encrypted sums, and on the server or a client for plain and
masked sums. The client side of a recipe, its local training, is in `client_sdk.training`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo

from protocols.crypto.keys import derive_seed
from protocols.crypto.random import Randomness
from protocols.errors import ParameterError
from protocols.layout import Floats, PartOfSum, Route, VectorLayout, whole_route
from protocols.recipes.bounds import Reach, Sensitivity
from protocols.recipes.state import (
    SUM_INDEX,
    StateFields,
    decode,
    encode,
    fields_bytes,
    same_state,
    state_as,
    sum_index_of,
)

K = TypeVar("K")
MAX_ITEMS: Final = 5_000_000
Clip = Annotated[float, Field(gt=0, le=1e6)]
MOVES_ALIKE: Final = (
    "A client sends nearly the same change in every round, because Adam starts from zero in each: whoever knows which "
    "clients are in the sums of many rounds can compute what each client has."
)
"""The warning of recipes whose clients train with Adam."""


@dataclass(frozen=True)
class RoundSpec:
    """What the server broadcasts for a round."""

    number: int
    """Number of the round, from 1."""
    seed: bytes
    """32 public random bytes."""
    sum_index: int
    """Index of the sum among the task's sums, from 1; a round that fails is followed by one with the same index, or, if
    its sum is abandoned, the next."""
    levels: tuple[int, ...] = ()
    """The levels in use, which the server computes for the cohort (`Recipe.levels_in_use`); empty for sums in which all
    clients have one route, and where clients keep the levels that they draw."""
    size: tuple[int, ...] = ()
    """Rows, columns and values of the sum, where they follow from earlier sums (`Recipe.size_after`); empty for other
    sums."""
    noise: float = 0.0
    """Standard deviation of the noise in every value of the sum that `absorb` is given; 0.0 for a task without a
    privacy block."""
    rounding: float = 0.0
    """Bound on the error of encoding in a value of that sum (`SumPlan.predicted_error`); 0.0 for exact sums."""


@dataclass(frozen=True)
class ModelState:
    """The shared model after `round_number` rounds; that of 0 rounds follows from the task's seed.

    Recipes define subclasses that hold their arrays.
    """

    round_number: int
    l2_clip: float = field(default=0.0, kw_only=True)
    """The L2 bound on a client's next update, in tasks with a privacy block (`protocols.recipes.private`); 0.0 without.
    """

    @property
    def sums(self) -> int:
        """How many sums the state says it holds, if what clients do depends on it; 0 otherwise."""
        return 0

    def freeze(self) -> None:
        """Make every array read-only, because states are shared between callers."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


@dataclass(frozen=True)
class FactorState(ModelState):
    """The state of recipes that learn item factors Q, float32 (items, dim)."""

    item_factors: NDArray[np.float32]


@dataclass(frozen=True)
class Update:
    """The result of local training: rows of change for the items that a client touched."""

    items: NDArray[np.int32]
    """int32 (k,), distinct; every item that took part in training, sampled negatives included."""
    values: NDArray[np.float32]
    """float32 (k, width), width = dim for FedMF, rank for CoLR, the client's own rank for SCoLR."""


@dataclass(frozen=True)
class Local:
    """What a client has for a sum, usually from its training: the input of `Recipe.contribute`."""

    update: Any
    """In the form that the recipe's `contribute` states."""
    client_id: str = ""
    """Empty where the route does not depend on it."""
    examples: float | None = None
    """Number of the client's interactions or examples; None if it states none."""
    entropy: Callable[[int], bytes] = field(default=os.urandom, repr=False)
    """n -> n secret random bytes for noise, different in every call."""
    rng: np.random.Generator = field(default_factory=np.random.default_rng, repr=False)
    """For draws that need not be secret."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a client adds to a sum."""

    blocks: Sequence[Floats]
    """float64 vectors within their clips, one for each entry of the route."""
    clipped: int = 0
    """How many values were clipped."""
    scaled: float = 1.0
    """Factor by which the whole update was scaled to a bound on its norm, 1.0 if it was not."""
    sent: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Where only a part of the update is sent, that part in the update's shape; empty otherwise."""

    @property
    def vector(self) -> Floats:
        """All blocks in one vector."""
        return self.blocks[0] if len(self.blocks) == 1 else np.concatenate(self.blocks)

    @property
    def values(self) -> int:
        """Number of values."""
        return sum(block.size for block in self.blocks)


class RecipeParameters(BaseModel):
    """Base of the parameters of every recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @staticmethod
    def is_noisy(info: ValidationInfo) -> bool:
        """Return whether a privacy block covers what the sums reveal, so that validators ask for no consent to it."""
        return bool((info.context or {}).get("noisy"))

    @property
    def start_digest(self) -> str | None:
        """SHA-256 (hex) of the encoded state of round 0, if that is stored with the task; None: it follows from the
        task's seed."""
        return None


class ItemParameters(RecipeParameters):
    """Parameters that every recipe with a model of numbered items has."""

    items: int = Field(ge=1, le=MAX_ITEMS, description="Number of items, N: rows of the item factors.")


class Recipe(ABC):
    """One federated recommender, built from its validated parameters by `protocols.recipes.registry.recipe`.

    A recipe defines the abstract methods, and `state_fields` and `state_class`, or the encoding of its states itself.
    parameters: the validated parameters; `model_dump(mode="json")` gives the JSON form.
    """

    state_class: ClassVar[type[ModelState]] = ModelState
    trains_on_views: ClassVar[bool] = False
    """Whether clients train on views of the state (`view`) that are not states themselves."""
    if TYPE_CHECKING:  # at run time it is a field of recipes that are dataclasses, for which this would be the default

        @property
        def parameters(self) -> RecipeParameters: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which tasks choose the recipe, such as `fedmf` or `colr`."""

    @property
    def own(self) -> Recipe:
        """The recipe by itself, without what a task adds to it: federated evaluation and a privacy block."""
        return self

    def layer(self, kind: type[K]) -> K | None:
        """Return what a task adds to the recipe of this kind, `Evaluated` or `Private`; None if it does not."""
        return self if isinstance(self, kind) else None

    @property
    def predicts_ratings(self) -> bool:
        """Whether the model predicts ratings; otherwise it ranks items."""
        return False

    @property
    def adds_noise(self) -> bool:
        """Whether each client adds noise to what it sends, with no privacy block of the task."""
        return False

    @property
    def by_snapshot(self) -> bool:
        """Whether clients download the server's snapshot of the model instead of replaying aggregates."""
        return False

    def report(self, state: ModelState) -> dict[str, float]:
        """Return figures about the state, by name, for everyone who may see it; by default none, as only clients have
        data to evaluate the model with."""
        return {}

    def warnings(self) -> tuple[str, ...]:
        """Return what the sums reveal with any mechanism, one sentence each; clients see them before they agree."""
        return ()

    # --- sums ----------------------------------------------------------------------------------------------------

    @property
    def main_sum(self) -> int:
        """The index of a sum whose layout stands for the task's sums, in plans and costs: usually of the first."""
        return 1

    @property
    def ends_after(self) -> int | None:
        """The most sums that a task has, whatever its schedule allows; None if the schedule alone ends it."""
        return None

    def is_done(self, state: ModelState) -> bool:
        """Return whether the task needs no further sum, even if its schedule allows more rounds."""
        return False

    @abstractmethod
    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return the layout of the aggregate of sum `sum_index`.

        size: see `size_after`; (), by default, for the largest that the sum can have.
        """

    def size_after(self, state: ModelState) -> tuple[int, ...]:
        """Return the rows, columns and values of the sum that follows `state`, where they depend on it; by default ().

        They are at most those of the plan that a task is made with.
        """
        return ()

    def longest_vector(self) -> int:
        """Return the most values of a sum, by default of those of `sum_kinds`, without allocating memory for them."""
        return max(self.layout(sum_index).length for sum_index in self.sum_kinds())

    def sum_kinds(self) -> tuple[int, ...]:
        """Return the index of one sum of each kind: of each layout and sensitivity that sums of the task have."""
        return tuple(sorted({1, self.main_sum}))

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Return what bounds a contribution to sum `sum_index`, by which a privacy block sizes the noise.

        Raises `ParameterError`, as by default, for what cannot be trained with a privacy block.
        """
        raise ParameterError(
            f"recipe {self.name!r} cannot be trained with a privacy block; hushrec privacy plan lists those that can"
        )

    # --- rounds --------------------------------------------------------------------------------------------------

    def round_spec(self, task_seed: bytes, number: int, sum_index: int | None = None) -> RoundSpec:
        """Return what the server broadcasts for round `number` and sum `sum_index` (None: no round failed so far).

        Its seed is derived from the task's, so that nobody can choose it later. Raises `ParameterError` unless
        1 <= sum_index <= number.
        """
        if number < 1 or not (sum_index is None or 1 <= sum_index <= number):
            raise ParameterError(
                f"rounds and sums are numbered from 1, and a round's sum index is at most its number: got round "
                f"{number}, sum {sum_index}"
            )
        return RoundSpec(number, derive_seed(task_seed, "round", number), number if sum_index is None else sum_index)

    def most_levels(self, sum_index: int) -> int:
        """Return the highest level that a client can draw for sum `sum_index`; 0 if clients draw no levels."""
        return 0

    def levels_in_use(self, spec: RoundSpec, clients: Sequence[str], min_clients: int) -> tuple[int, ...]:
        """Return the levels in use in a round that asks `clients` (`protocols.layout`); empty without levels."""
        return ()

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the blocks that a client contributes to, by default all: public, computed by server and client."""
        return whole_route(self.layout(spec.sum_index, spec.size))

    @abstractmethod
    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return what a client adds to the sum of `spec`. No argument is changed.

        state: the model before the sum, or the client's view of it. Raises `ParameterError` for an update that is not
        of this recipe or holds values that are not finite.
        """

    def zeros(self, spec: RoundSpec, client_id: str) -> Contribution:
        """Return what a client sends in place of its contribution, if it has none: zeros, before noise."""
        blocks = self.layout(spec.sum_index, spec.size).contribution_blocks(self.route(spec, client_id))
        return Contribution([np.zeros(block.length) for block in blocks])

    def noised(
        self, state: ModelState, spec: RoundSpec, contribution: Contribution, random: Randomness
    ) -> Contribution:
        """Return what is sent in place of a contribution: in a task with a privacy block with this client's noise."""
        return contribution

    def limited(
        self, state: ModelState, spec: RoundSpec, contribution: Contribution, random: Randomness
    ) -> Contribution:
        """Return what `noised` returns without noise, which must not leave a device: for simulations."""
        return contribution

    @abstractmethod
    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        """Return the state after the round whose opened sum is `total`, float64 (layout.length,).

        contributions: how many clients are in the sum. Raises `ParameterError` if the round does not follow `state`,
        and `CodecError` for a sum that honest clients cannot have made together with those before it, as far as the
        recipe can tell: it is treated like one that does not open.
        """

    def left_out(self, state: ModelState, spec: RoundSpec) -> ModelState:
        """Return the state of a member that cannot use the sum of a round: as it was, under the round's number."""
        return replace(state, round_number=spec.number)

    # --- states --------------------------------------------------------------------------------------------------

    @abstractmethod
    def initial_state(self, task_seed: bytes) -> ModelState:
        """Return the state of round 0, from the task's seed alone."""

    def state_fields(self, sum_index: int) -> StateFields:
        """Return the fields of a state after `sum_index` sums, in their order; none for another encoding."""
        return ()

    def state_bytes(self, sum_index: int, size: tuple[int, ...] = ()) -> int:
        """Return the length in bytes of an encoded state after `sum_index` sums: of a snapshot before it is sealed.

        size: of the last sum; () for the largest that it can have.
        """
        return fields_bytes(self.state_fields(sum_index))

    def longest_state_bytes(self) -> int:
        """Return the length in bytes of the longest encoded state, or view, of a task; by default all have one."""
        return self.state_bytes(1)

    def encode_state(self, state: ModelState) -> bytes:
        """Return the state as `state_bytes(sum_index)` bytes; `ParameterError` for one of another recipe."""
        own = state_as(state, self.state_class)
        return encode(self.state_fields(getattr(own, "sum_index", 0)), self.state_values(own))

    def decode_state(self, round_number: int, body: bytes) -> ModelState:
        """Decode the bytes of `encode_state`; `CodecError` unless the length and every value are valid."""
        counted = SUM_INDEX in self.state_fields(0)
        fields = self.state_fields(sum_index_of(body, round_number) if counted else 0)
        return self.state_from(round_number, decode(fields, body))

    def state_values(self, state: Any) -> dict[str, Any]:
        """Return the values of `state` by the names of its fields: its attributes."""
        return dict(vars(state))

    def state_from(self, round_number: int, values: dict[str, Any]) -> ModelState:
        """Return the state with the decoded `values`; `CodecError` for a value that no state has."""
        return self.state_class(round_number, **values)

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Raise `CodecError` unless sums of the task can have made `state`, or the view of a device group.

        What clients send depends on the model, and a server that chooses the model freely can make it so that the sums
        show what single clients have. The bound follows from the initial state, the number of sums and the clips. By
        default nothing is checked beyond what `state_from` checks.
        """
        state_as(state, self.state_class)

    def same_state(self, own: ModelState, other: ModelState) -> bool:
        """Return whether two states after the same sums are equal but for rounding, which differs between machines.

        own: the one that this party computed. Both are as `decode_state` returns them.
        """
        return same_state(own, other)

    # --- device groups: by default one, whose clients train on the whole model --------------------------------------

    @property
    def device_groups(self) -> int:
        """Number of device groups. Each sum is over one group, and the groups take turns.

        A client states its group when it enrols and cannot change it.
        """
        return 1

    def device_group_of(self, sum_index: int) -> int:
        """Return the device group, from 0, whose members contribute to sum `sum_index`."""
        return 0

    def view(self, state: ModelState, device_group: int) -> ModelState:
        """Return what a member of `device_group` trains on: the state, or the part that a small device can hold."""
        return state

    def initial_view(self, task_seed: bytes, device_group: int) -> ModelState:
        """Return `view` of the initial state, using no more memory than the view needs."""
        return self.initial_state(task_seed)

    def view_bytes(self, sum_index: int, device_group: int) -> int:
        """Return the length in bytes of an encoded view after `sum_index` sums: what members of the group download."""
        return self.state_bytes(sum_index)

    def encode_view(self, view: ModelState, device_group: int) -> bytes:
        """Return the view as exactly `view_bytes(sum_index, device_group)` bytes."""
        return self.encode_state(view)

    def decode_view(self, round_number: int, body: bytes, device_group: int) -> ModelState:
        """Decode the bytes of `encode_view`; `CodecError` unless the length and every value are valid."""
        return self.decode_state(round_number, body)


def check_follows(state: ModelState, spec: RoundSpec, *, every_sum: bool = False) -> None:
    """Raise `ParameterError` unless the round of `spec` comes after that of `state`, and its sum after the state's.

    every_sum: no sum may be missing between them.
    """
    last = getattr(state, "sum_index", None)
    if last is None:
        if spec.number <= state.round_number:
            raise ParameterError(f"round {spec.number} is already in a state of round {state.round_number}")
    elif spec.number <= state.round_number or spec.sum_index <= last or (every_sum and spec.sum_index > last + 1):
        raise ParameterError(
            f"sum {spec.sum_index} of round {spec.number} does not follow a state of sum {last}, round "
            f"{state.round_number}"
        )


def main_layout(recipe: Recipe) -> VectorLayout | None:
    """Return the layout of the main sum, whose keys the other sums use; None if the first sum is the main one."""
    return recipe.layout(recipe.main_sum) if recipe.main_sum > 1 else None


@runtime_checkable
class AbsorbsByParts(Protocol):
    """A recipe that can absorb a sum in parts, so that all of it need not be in memory."""

    def absorb_parts(self, state: ModelState, spec: RoundSpec, total: PartOfSum, contributions: int) -> ModelState:
        """Return what `Recipe.absorb` returns for the sum of which `total` returns parts; raises as that does."""
