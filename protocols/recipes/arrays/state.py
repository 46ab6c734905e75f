"""The state of recipe `arrays`: all values in one vector, and the vectors that the optimiser remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import normals
from protocols.errors import ParameterError
from protocols.recipes.arrays.parameters import ArraysParameters
from protocols.recipes.base import ModelState
from protocols.recipes.state import state_as

__all__ = ["PIECE", "ArraysState", "arrays_of", "initial_state", "state_of"]

PIECE: Final = 1 << 18
"""Values computed at a time, so that temporary arrays stay small beside a large model."""


@dataclass(frozen=True)
class ArraysState(ModelState):
    """values: float32 (n,), the arrays in the order of their names, row-major, one behind the other.

    first, second: float32 (n,), the optimiser's mean update and mean squared update; (0,) where it has none.
    """

    values: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]


def arrays_of(p: ArraysParameters, state: ModelState) -> dict[str, NDArray[np.float32]]:
    """Return read-only views of the arrays of `state`, float32, by name."""
    values = state_as(state, ArraysState).values.view()
    values.flags.writeable = False
    return {name: values[place].reshape(p.shapes[name]) for name, place in p.places().items()}


def _remembered(p: ArraysParameters) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the optimiser's vectors before the first sum: m = 0 and v = tau^2 (Reddi et al., Algorithm 2)."""
    first = np.zeros(p.values if p.slots > 0 else 0, np.float32)
    return first, np.full(p.values if p.slots > 1 else 0, p.adaptivity**2, np.float32)


def initial_state(p: ArraysParameters, task_seed: bytes) -> ArraysState:
    """Return the state of round 0 from the task's seed; `ParameterError` for a task whose values were uploaded."""
    if p.initial is not None:
        raise ParameterError("the initial values of this task were uploaded: they do not follow from its seed")
    values = np.zeros(p.values, np.float32)
    for name, place in p.places().items():
        std = p.std_of(name)
        for number, start in enumerate(range(place.start, place.stop, PIECE) if std else ()):
            stop = min(start + PIECE, place.stop)
            values[start:stop] = std * normals(task_seed, f"initial array {name} piece {number}", stop - start)
    return ArraysState(0, values, *_remembered(p))


def state_of(p: ArraysParameters, arrays: Mapping[str, NDArray[np.floating]]) -> ArraysState:
    """Return the state of round 0 with these initial values.

    Raises `ParameterError`, naming the array, unless they have the names and shapes of the parameters and are finite.
    """
    for name in sorted(set(arrays) ^ set(p.shapes)):
        raise ParameterError(f"array {name!r} is {'missing' if name in p.shapes else 'not an array of this task'}")
    values = np.empty(p.values, np.float32)
    for name, place in p.places().items():
        if arrays[name].shape != p.shapes[name]:
            raise ParameterError(f"array {name!r} must have shape {p.shapes[name]}, got {arrays[name].shape}")
        with np.errstate(over="ignore"):  # becomes infinite, which is refused below
            values[place] = arrays[name].ravel()
        if not np.isfinite(values[place]).all():
            raise ParameterError(f"array {name!r} holds values that are not finite in float32")
    return ArraysState(0, values, *_remembered(p))
