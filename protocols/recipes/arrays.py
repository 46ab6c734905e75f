"""Recipe `arrays`: federated averaging of any named arrays, with weights, rows and server optimisers.

The sum is that of the clients' changes, as in FedAvg (McMahan et al., AISTATS 2017) and FedOpt (Reddi et al., ICLR
2021). The mean of an array is over all contributions, or over their weights; that of a row of an array summed by rows
is over those that touched the row, as FedMF does it.

**Server optimisers**, to which the mean update of a round is given:

| name | step, with the mean update D and step size eta |
|---|---|
| mean | x + eta D (FedAvg for eta = 1: McMahan et al., AISTATS 2017) |
| momentum | m = b1 m + D, x + eta m (FedAvgM: Hsu, Qi and Brown, 2019) |
| adam | m = b1 m + (1 - b1) D, v = b2 v + (1 - b2) D^2, x + eta m / (sqrt(v) + tau) |
| yogi | m as adam, v = v - (1 - b2) D^2 sign(v - D^2), x as adam |

Adam and Yogi are those of Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2: without bias
correction, v begins at tau^2. Only +, -, *, / and square roots of float64 are used, whose results IEEE 754 fixes to the
last bit, so that members who replay the aggregates all have the same state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import normals
from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, TRAINED, Floats, PartOfSum, VectorLayout
from protocols.recipes.arrays_update import (
    LEAST_WEIGHT,
    ArraysParameters,
    array_of,
    block_of,
    check_names,
    contribution,
    touched_name,
    weight_name,
)
from protocols.recipes.base import (
    AbsorbsByParts,
    Contribution,
    Local,
    ModelState,
    Recipe,
    RoundSpec,
    check_follows,
)
from protocols.recipes.bounds import Reach, Sensitivity, noise_level, require_within
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.factors import WEIGHTS_WARNING
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.state import StateField, StateFields, decode, state_as

_Piece = NDArray[np.float32]


def step(p: ArraysParameters, values: _Piece, first: _Piece, second: _Piece, update: Floats) -> None:
    """Change `values`, `first` and `second` in place by one step with the mean `update`; all of one length.

    first, second: (0,) where the optimiser has none. Results are rounded to float32.
    """
    m = update
    if p.slots:
        m = p.momentum * first.astype(np.float64)
        m += update if p.optimiser == "momentum" else (1.0 - p.momentum) * update
        first[:] = m
    moved = p.server_rate * m
    if p.slots > 1:
        v, square = second.astype(np.float64), update * update
        if p.optimiser == "adam":
            v = p.second_momentum * v + (1.0 - p.second_momentum) * square
        else:
            v -= (1.0 - p.second_momentum) * square * np.sign(v - square)
        second[:] = v
        moved /= np.sqrt(v) + p.adaptivity
    values[:] = values + moved


_FAR: Final = 9.0  # standard deviations: a normal variable is farther with a chance of 1e-19
_DRAWN: Final = 1 << 18  # values computed at a time, so that temporary arrays stay small beside a large model


@dataclass(frozen=True)
class ArraysState(ModelState):
    """The arrays of the model, and what the server's optimiser remembers."""

    values: NDArray[np.float32]
    """float32 (n,), the arrays in the order of their names, row-major, one behind the other."""
    first: NDArray[np.float32]
    """float32 (n,), the optimiser's mean update; (0,) where it has none."""
    second: NDArray[np.float32]
    """float32 (n,), the optimiser's mean squared update; (0,) where it has none."""


def _remembered(p: ArraysParameters) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the optimiser's vectors before the first sum: m = 0 and v = tau^2 (Reddi et al., Algorithm 2)."""
    first = np.zeros(p.values if p.slots > 0 else 0, np.float32)
    return first, np.full(p.values if p.slots > 1 else 0, p.adaptivity**2, np.float32)


def state_of(p: ArraysParameters, arrays: Mapping[str, NDArray[np.floating]]) -> ArraysState:
    """Return the state of round 0 with these initial values.

    Raises `ParameterError`, naming the array, unless they are floating-point numpy arrays with the names and shapes of
    the parameters and are finite.
    """
    check_names(arrays, p.shapes)
    values = np.empty(p.values, np.float32)
    for name, place in p.places().items():
        given = array_of(name, arrays[name], p.shapes[name])
        with np.errstate(over="ignore"):  # becomes infinite, which is refused below
            values[place] = given.ravel()
        if not np.isfinite(values[place]).all():
            raise ParameterError(f"array {name!r} holds values that are not finite in float32")
    return ArraysState(0, values, *_remembered(p))


PIECE: Final = 1 << 16
"""Values whose mean and step are computed at a time, so that temporary arrays stay small beside a large model."""


@dataclass(frozen=True)
class Arrays(Recipe, AbsorbsByParts):
    """One block: every array, counts or weights of touched rows, and the weight."""

    parameters: ArraysParameters
    name: str = "arrays"

    state_class = ArraysState

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        return VectorLayout((block_of(self.parameters),), sum_class=TRAINED)

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Return the task's clip: nothing else bounds the norm of a whole contribution."""
        return Sensitivity()

    def initial_state(self, task_seed: bytes) -> ArraysState:
        """Return the state of round 0; `ParameterError` for a task whose initial values were uploaded."""
        p = self.parameters
        if p.initial is not None:
            raise ParameterError("the initial values of this task were uploaded: they do not follow from its seed")
        values = np.zeros(p.values, np.float32)
        for name, place in p.places().items():
            std = p.stds.get(name, p.std)
            for number, start in enumerate(range(place.start, place.stop, _DRAWN) if std else ()):
                stop = min(start + _DRAWN, place.stop)
                values[start:stop] = std * normals(task_seed, f"initial array {name} piece {number}", stop - start)
        return ArraysState(0, values, *_remembered(p))

    def state_fields(self, sum_index: int) -> StateFields:
        p = self.parameters
        return tuple(
            StateField(name, "<f4", (p.values if p.slots >= slot else 0,))
            for slot, name in enumerate(("values", "first", "second"))
        )

    def decode_state(self, round_number: int, body: bytes) -> ArraysState:
        """Return the state; its arrays are read-only views of `body`. `CodecError` also for negative mean squares."""
        found = ArraysState(round_number, **decode(self.state_fields(0), body, copy=False))
        if found.second.size and found.second.min() < 0:
            raise CodecError("a model state holds a negative mean of squares")
        return found

    def arrays(self, state: ModelState) -> dict[str, NDArray[np.float32]]:
        """Return read-only views of the arrays of `state`, float32, by name."""
        p, values = self.parameters, state_as(state, ArraysState).values.view()
        values.flags.writeable = False
        return {name: values[place].reshape(p.shapes[name]) for name, place in p.places().items()}

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        return contribution(self.parameters, local.update, local.examples)

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ArraysState:
        """Return the state after a step with the mean update, in which no value exceeds its clip, whatever the error of
        the sum."""
        return self.absorb_parts(state, spec, lambda start, stop: total[start:stop], contributions)

    def absorb_parts(self, state: ModelState, spec: RoundSpec, total: PartOfSum, contributions: int) -> ArraysState:
        own, p = state_as(state, ArraysState), self.parameters
        check_follows(own, spec)
        after = ArraysState(spec.number, own.values.copy(), own.first.copy(), own.second.copy())
        spans = block_of(p).spans()
        for name, array in p.places().items():
            for start, mean in self._means(name, spans, total, contributions, spec.noise):
                place = slice(array.start + start, array.start + start + mean.size)
                np.clip(mean, -p.clip_of(name), p.clip_of(name), out=mean)
                step(p, after.values[place], after.first[place], after.second[place], mean)
        return after

    def _means(
        self, name: str, spans: Mapping[str, tuple[int, int]], total: PartOfSum, contributions: int, noise: float
    ) -> Iterator[tuple[int, Floats]]:
        """Yield the mean of an array in pieces, float64, each after its place in the array.

        spans: where the segments are in the sum. noise: deviation of the noise in its values. A sum of weights is at
        least the smallest weight, or 0 and an error: below half the smallest nobody is in it, and the mean is 0. So it
        is where the sum of the weights is below the level of the noise, or negative.
        """
        p, (first, last) = self.parameters, spans[name]
        least = max(LEAST_WEIGHT / (2.0 * (p.max_weight or LEAST_WEIGHT)), noise_level(noise))
        if name not in p.rows:
            divisor = float(contributions if p.max_weight is None else total(*spans[weight_name])[0])
            known = p.max_weight is None or divisor >= least
            for start in range(first, last, PIECE):
                piece = total(start, min(start + PIECE, last))
                yield start - first, (piece / divisor if known else np.zeros(piece.size))
            return
        touched, end = spans[touched_name(name)]
        width = (last - first) // (end - touched)
        rows = max(1, PIECE // width)
        for row in range(0, end - touched, rows):
            counts = total(touched + row, min(touched + row + rows, end))[:, np.newaxis]
            start = first + row * width
            sums = total(start, start + counts.size * width).reshape(-1, width)
            yield row * width, np.where(counts >= least, sums / np.maximum(counts, least), 0.0).ravel()

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check the values that follow from the seed, and the optimiser's; uploaded initial values may be of any size.

        A step with adam or yogi is at most eta |m| / tau.
        """
        own, p = state_as(state, ArraysState), self.parameters
        for name, place in p.places().items():
            clip = p.clip_of(name)
            mean = clip / (1.0 - p.momentum) if p.optimiser == "momentum" else clip
            square = max(2.0 * clip**2, p.adaptivity**2)
            if own.first.size:
                require_within(own.first[place], mean * CLIP_SLACK, f"means of {name}")
            if own.second.size:
                require_within(own.second[place], square * CLIP_SLACK, f"mean squares of {name}")
            if p.initial is None:
                step = p.server_rate * mean / (p.adaptivity if p.slots > 1 else 1.0)
                farthest = (_FAR * p.stds.get(name, p.std) + reach.sums * step) * CLIP_SLACK
                require_within(own.values[place], farthest, f"values of {name}")

    def warnings(self) -> tuple[str, ...]:
        p, found = self.parameters, []
        if p.rows:
            what = "how many clients" if p.max_weight is None else "with which total weight the clients"
            found.append(
                f"The sum shows {what} touched each row of {', '.join(sorted(p.rows))}: a row that one client touched "
                "is that client's own, and rows that a client touches in every round tell clients apart."
            )
        return (*found, WEIGHTS_WARNING) if p.reveal_weights else tuple(found)


ENTRY: Final = RecipeEntry(
    name="arrays",
    text="named arrays of a model of your own",
    parameters=ArraysParameters,
    make=Arrays,
    client_side="client_sdk.training.arrays:client_side",
    source="McMahan et al., AISTATS 2017; Reddi et al., ICLR 2021. Guide: [your own model](own-model.md)",
    defaults=TaskDefaults(planned=lambda items: {"shapes": {"items": [items, 32]}}),
)


def initial_parameters(
    recipe: Recipe, parameters: Mapping[str, Any], arrays: Mapping[str, NDArray[np.floating]]
) -> tuple[dict[str, Any], bytes]:
    """Return `parameters` with `initial`, and the encoded state of round 0 with the values of `arrays`.

    recipe: made from `parameters`. Raises `ParameterError`, naming the array, for arrays that are not the recipe's, and
    for another recipe than `arrays`.
    """
    if not isinstance(recipe, Arrays):
        raise ParameterError(f"recipe {recipe.name!r} takes no initial values: only 'arrays' does")
    body = recipe.encode_state(state_of(recipe.parameters, arrays))
    return {**parameters, "initial": {"digest": hashlib.sha256(body).hexdigest()}}, body
