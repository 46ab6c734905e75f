"""FAIR: devices of unequal memory train one model, each in a hashed subspace that fits its memory.

Desai et al., "Heterogeneous Federated Collaborative Filtering Using FAIR: Federated Averaging in Random Subspaces"
(2023), Algorithm 1, with element-wise hashing as in the released code. A device of capacity p holds 1/2^p of either
item table, psi = projection(theta) (`protocols.recipes.subspaces`), trains it, and the server takes

    theta <- sum_i p_i S_i psi_i',   p_i = |D_i| / sum |D|

All devices of one capacity share S_c. Each capacity is therefore a *device group* with its own secure sum over its own
m_c values, and the groups take turns: a turn is C sums, all from the same theta, which changes after the last one.
Devices send changes delta_i = psi_i' - psi_c, by consent weighted with w_i (`protocols.recipes.factors`), else with
w_i = 1. With D_c = sum of w_i delta_i and W_c = sum of w_i over the group, W = sum of W_c, and because psi_c is the
same for the whole group,

    sum_i p_i S_i psi_i' = sum_c S_c (W_c psi_c + D_c) / W

which `protocols.recipes.subspaces` computes: the paper's replacement, from values that one training step bounds.
The small layers are sent whole in every sum. With mixing "add", which is not in the paper, psi_c is omitted and theta
moves by the mean of the recovered changes, theta <- theta + sum_c S_c D_c / W. In every turn the paper's rule removes
the share W_c / W of the part of theta that the small devices' space cannot represent, so contributions of full devices
to that part decay within a few turns; mixing "add" keeps them.

Differences from the released code: the weight's cap, turns by device group, and that user vectors are never sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.crypto.keys import SEED_BYTES, derive_seed
from protocols.crypto.random import normals, uniforms
from protocols.errors import ParameterError
from protocols.layout import CLIP_SLACK, TRAINED, Floats, VectorLayout, check_finite
from protocols.recipes.base import (
    MOVES_ALIKE,
    Contribution,
    ItemParameters,
    Local,
    ModelState,
    Recipe,
    RoundSpec,
    check_follows,
)
from protocols.recipes.bounds import Reach, require_within
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.factors import WeightedParameters, weigh, weight_of, weighted_block, with_weight
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.state import (
    SUM_INDEX,
    StateField,
    StateFields,
    decode,
    encode,
    fields_bytes,
    state_as,
    sum_index_of,
)
from protocols.recipes.subspaces import (
    GroupSum,
    Mixing,
    Subspace,
    average_table,
    bucket_counts,
    chunks,
    hash_key,
    means,
)

TABLES: Final = ("gmf", "mlp")  # names of the item tables; each has its own hash key


@dataclass(frozen=True, eq=False)
class FairState(ModelState):
    """The whole model after `sum_index` sums."""

    sum_index: int
    seed: bytes
    """32 public bytes, the same for the whole task."""
    tables: NDArray[np.float32]
    """float32 (2, n), n = items * dim values per table, row-major."""
    dense: NDArray[np.float32]
    """float32, the small layers."""
    given: tuple[NDArray[np.float32], ...] = ()
    """float32, the sums of the current turn, one per device group so far; tables and layers change when the turn is
    complete."""

    def freeze(self) -> None:
        super().freeze()
        for total in self.given:
            total.flags.writeable = False


@dataclass(frozen=True, eq=False)
class FairView(ModelState):
    """A device's part of the model: tables float32 (2, m), m the buckets of its space, m = n for a whole table."""

    sum_index: int
    seed: bytes
    tables: NDArray[np.float32]
    dense: NDArray[np.float32]


def spaces_of(seed: bytes, elements: int, buckets: int) -> tuple[Subspace, Subspace]:
    """Return the spaces with `buckets` buckets of the tables, in the order of `TABLES`."""
    first, second = (Subspace(elements, buckets, hash_key(seed, table)) for table in TABLES)
    return first, second


MOST_HALVINGS: Final = 20
_GIVEN: Final = "given "  # start of the names of the sums of a turn, one field each
_INITIAL_SCALE: Final = 0.01  # standard deviation of the values of a new item table (released code)
_FAR: Final = 9.0  # standard deviations: a normal variable is farther with a chance of 1e-19


class FairParameters(ItemParameters, WeightedParameters):
    """The item tables and the capacities; device group c is the devices of capacity `capacities[c]`."""

    dim: int = Field(default=8, ge=1, le=256, description="Width d of either item table.")
    capacities: tuple[int, ...] = Field(
        default=(0, 1), min_length=1, max_length=8, description="p per group, ascending: 1/2^p of the tables' memory."
    )
    clip: float = Field(default=1.0, gt=0, le=1e3, description="Bound on the change of a value in one round.")
    mixing: Mixing = Field(
        default="replace",
        description="replace: the mean of the recovered models (paper); add: the mean of their changes, added.",
    )

    @property
    def elements(self) -> int:
        """n: number of values of one item table."""
        return self.items * self.dim

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        p = self.capacities
        if list(p) != sorted(set(p)) or p[0] < 0 or p[-1] > MOST_HALVINGS:
            raise ValueError(f"capacities must be distinct, ascending and in 0..{MOST_HALVINGS}, got {list(p)}")
        if len(TABLES) * self.elements >= 2**31:
            raise ValueError(f"two tables of {self.items} x {self.dim} values exceed 32 bits: reduce items or dim")
        bucket_counts(self.elements, p)
        return self


class FairChange(NamedTuple):
    """The change of a device's model."""

    places: NDArray[np.integer]
    """(k,), distinct positions in the group's two tables, concatenated."""
    values: NDArray[np.float32]
    """(k,), the changes there."""
    dense: NDArray[np.float32]
    """The change of the small layers."""


def dense_length(dim: int) -> int:
    """Return the number of values of the small layers: MLP 2d -> d with its bias, and 2d prediction weights."""
    return 2 * dim * dim + 3 * dim


@dataclass(frozen=True)
class Fair(Recipe):
    """FAIR: one turn of sums, one per device group, for each round of the paper; see the module's docstring."""

    parameters: FairParameters
    name: str = "fair"

    state_class = FairState
    trains_on_views = True
    by_snapshot = True  # a small device never has theta, so it cannot replay the changes of theta

    @cached_property
    def buckets(self) -> tuple[int, ...]:
        """m_c: number of values of one table in each device group's space."""
        return bucket_counts(self.parameters.elements, self.parameters.capacities)

    @property
    def device_groups(self) -> int:
        return len(self.parameters.capacities)

    def device_group_of(self, sum_index: int) -> int:
        """Return the device group of sum `sum_index`: groups take turns, the one with the most memory first."""
        return (sum_index - 1) % self.device_groups

    @property
    def dense_values(self) -> int:
        """Number of values of the small layers."""
        return dense_length(self.parameters.dim)

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return one block: changes of the group's two tables and of the small layers; with weights, the weight."""
        length = len(TABLES) * self.buckets[self.device_group_of(sum_index)] + self.dense_values
        return VectorLayout(
            (weighted_block(self.parameters, "model", length, 1, self.parameters.clip),), sum_class=TRAINED
        )

    # --- what a device sends -------------------------------------------------------------------------------------

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the weighted change. local: a `FairChange` and |D_i|."""
        change: FairChange = local.update
        for values in (change.values, change.dense):
            check_finite(values, "the change of the model")
        clip = self.parameters.clip
        clipped = int(np.count_nonzero(np.abs(change.values) > clip) + np.count_nonzero(np.abs(change.dense) > clip))
        tables = len(TABLES) * self.buckets[self.device_group_of(spec.sum_index)]
        weight = weight_of(self.parameters, local.examples)
        vector = np.zeros(self.layout(spec.sum_index).length)  # the only vector of this length: devices are small
        vector[change.places] = weight * np.clip(change.values, -clip, clip, dtype=np.float64)
        vector[tables:] = weigh(self.parameters, np.clip(change.dense, -clip, clip), local.examples)
        return Contribution([vector], clipped)

    # --- the whole model -----------------------------------------------------------------------------------------

    def initial_state(self, task_seed: bytes) -> FairState:
        """Return round 0: tables N(0, 0.01^2), layers Xavier uniform, bias 0, from the task's seed (released code)."""
        tables = np.empty((len(TABLES), self.parameters.elements), dtype=np.float32)
        for row, table in zip(tables, TABLES, strict=True):
            for part in chunks(row.size):
                row[part] = _initial_values(task_seed, table, part)
        return FairState(0, 0, _hash_seed(task_seed), tables, _initial_dense(task_seed, self.parameters.dim))

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        """Return the state with the group's sum stored or, after the last group of a turn, with the model moved.

        Sums between the state's and this one were abandoned; they count as sums of zeros. Raises `ParameterError` if
        the sum does not follow `state`, or the weights of a turn are negative, or all zero although none was abandoned.
        """
        own = state_as(state, FairState)
        check_follows(own, spec)
        for abandoned in range(own.sum_index + 1, spec.sum_index):
            if len(own.given) + 1 == self.device_groups and not any(one.any() for one in own.given):
                # all of the turn was abandoned
                own = replace(own, round_number=spec.number, sum_index=abandoned, given=())
            else:
                zeros = np.zeros(self._sum_length(self.device_group_of(abandoned)), np.float32)
                own = self._with_sum(own, spec.number, abandoned, zeros)
        given = with_weight(self.parameters, total, contributions).astype(np.float32)
        return self._with_sum(own, spec.number, spec.sum_index, given)

    def _with_sum(self, own: FairState, number: int, sum_index: int, one: NDArray[np.float32]) -> FairState:
        given = (*own.given, one)
        if len(given) < self.device_groups:
            return replace(own, round_number=number, sum_index=sum_index, given=given)
        # a whole turn: tables by `average_table`, layers plus their weighted mean change
        weights = [float(total[-1]) for total in given]
        updates = [total[:-1].astype(np.float64) for total in given]
        if not (min(weights) >= 0 and sum(weights) > 0):
            raise ParameterError("a turn of sums needs a positive weight")
        dense = own.dense + sum(update[-self.dense_values :] for update in updates) / sum(weights)
        tables = np.empty_like(own.tables)
        for place, table in enumerate(TABLES):
            groups = [
                GroupSum(weight, update[place * buckets : (place + 1) * buckets])
                for weight, update, buckets in zip(weights, updates, self.buckets, strict=True)
            ]
            key = hash_key(own.seed, table)
            average_table(own.tables[place], key, groups, self.parameters.mixing, out=tables[place])
        return FairState(number, sum_index, own.seed, tables, dense.astype(np.float32))

    def longest_state_bytes(self) -> int:
        return self.state_bytes(self.device_groups - 1)  # before the last group's turn; every view is shorter

    def longest_vector(self) -> int:
        return max(self.layout(sum_index).length for sum_index in range(1, self.device_groups + 1))

    def _sum_length(self, device_group: int) -> int:
        """Return the length of a group's sum in a state: its changes, and its total weight or number of clients."""
        return len(TABLES) * self.buckets[device_group] + self.dense_values + 1

    def state_fields(self, sum_index: int) -> StateFields:
        lengths = map(self._sum_length, range(sum_index % self.device_groups))
        given = (StateField(f"{_GIVEN}{group}", "<f4", (length,)) for group, length in enumerate(lengths))
        return (*self._model_fields(self.parameters.elements), *given)

    def _model_fields(self, values: int) -> StateFields:
        seed, tables = StateField("seed", "u1", (SEED_BYTES,)), StateField("tables", "<f4", (len(TABLES), values))
        return (SUM_INDEX, seed, tables, StateField("dense", "<f4", (self.dense_values,)))

    def state_values(self, state: FairState) -> dict[str, Any]:
        return vars(state) | {f"{_GIVEN}{group}": one for group, one in enumerate(state.given)}

    def state_from(self, round_number: int, values: dict[str, Any]) -> FairState:
        given = tuple(values.pop(name) for name in list(values) if name.startswith(_GIVEN))
        return FairState(round_number, **values, given=given)

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check the values of the tables and of the layers: both rules of mixing move them by the clip in a turn."""
        own, p = state, self.parameters
        if not isinstance(own, FairState | FairView):
            raise ParameterError(f"a model state of fair is needed, got {type(own).__name__}")
        moved = reach.sums * reach.of_mean * p.clip
        require_within(own.tables.ravel(), (_FAR * _INITIAL_SCALE + moved) * CLIP_SLACK, "values of the tables")
        require_within(own.dense, (float(np.sqrt(6 / (2 * p.dim + 1))) + moved) * CLIP_SLACK, "values of the layers")
        for total in own.given if isinstance(own, FairState) else ():
            require_within(total, reach.most * max(p.clip, 1.0) * CLIP_SLACK, "sums of a turn")

    # --- the part of the model that a device has -----------------------------------------------------------------

    def view(self, state: ModelState, device_group: int) -> FairView:
        """Return the layers, and both tables projected onto the group's space (eq. 4)."""
        own = state_as(state, FairState)
        spaces = spaces_of(own.seed, self.parameters.elements, self.buckets[device_group])
        tables = np.stack([space.project(table) for space, table in zip(spaces, own.tables, strict=True)])
        return FairView(own.round_number, own.sum_index, own.seed, tables, own.dense)

    def initial_view(self, task_seed: bytes, device_group: int) -> FairView:
        seed, buckets, elements = _hash_seed(task_seed), self.buckets[device_group], self.parameters.elements
        tables = np.empty((len(TABLES), buckets), dtype=np.float32)
        for row, table, space in zip(tables, TABLES, spaces_of(seed, elements, buckets), strict=True):
            totals = np.zeros(0 if space.whole else buckets)
            for part in chunks(elements):
                values = _initial_values(task_seed, table, part)
                if space.whole:
                    row[part] = values
                else:
                    space.add(values, totals, part)
            if not space.whole:
                row[:] = means(totals, space.counts())
        return FairView(0, 0, seed, tables, _initial_dense(task_seed, self.parameters.dim))

    def view_bytes(self, sum_index: int, device_group: int) -> int:
        return fields_bytes(self._model_fields(self.buckets[device_group]))

    def encode_view(self, view: ModelState, device_group: int) -> bytes:
        return encode(self._model_fields(self.buckets[device_group]), vars(state_as(view, FairView)))

    def decode_view(self, round_number: int, body: bytes, device_group: int) -> FairView:
        sum_index_of(body, round_number)
        return FairView(round_number, **decode(self._model_fields(self.buckets[device_group]), body))

    # --- public facts --------------------------------------------------------------------------------------------

    def warnings(self) -> tuple[str, ...]:
        groups = (
            f"The server knows which of {self.device_groups} memory sizes each client has, and sees one sum per size: "
            "a client is hidden only among the clients of its own size."
        )
        own = (MOVES_ALIKE, groups) if self.device_groups > 1 else (MOVES_ALIKE,)
        return own + self.parameters.weight_warnings()


def _hash_seed(task_seed: bytes) -> bytes:
    return derive_seed(task_seed, "fair subspaces")


def _initial_values(task_seed: bytes, table: str, part: slice) -> NDArray[np.float32]:
    """Return a chunk of a new item table; each chunk has its own seed, so that it can be drawn separately."""
    seed = derive_seed(task_seed, "fair initial table", table, part.start)
    return (_INITIAL_SCALE * normals(seed, "values", part.stop - part.start)).astype(np.float32)


def _initial_dense(task_seed: bytes, dim: int) -> NDArray[np.float32]:
    """Return MLP weights (2d x d, row-major) || bias (d) || prediction weights (2d): Xavier uniform, bias 0."""
    weights = 2.0 * uniforms(task_seed, "fair initial layers", dense_length(dim) - dim) - 1.0
    mlp, prediction = np.split(weights, [2 * dim * dim])
    layers = (np.sqrt(6 / (3 * dim)) * mlp, np.zeros(dim), np.sqrt(6 / (2 * dim + 1)) * prediction)
    return np.concatenate(layers).astype(np.float32)


ENTRY: Final = RecipeEntry(
    name="fair",
    text="NeuMF on devices of unequal memory (FAIR)",
    parameters=FairParameters,
    make=Fair,
    client_side="client_sdk.training.fair:client_side",
    needs=frozenset({"dense", "device groups"}),
    source="Desai et al., 2023, Algorithm 1. Guide: [FAIR](recipes.md#fair)",
    defaults=TaskDefaults(paper={"max_interactions": 10_000, "reveal_weights": True}),
)
