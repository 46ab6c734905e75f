"""The state of recipe `arrays`: all values in one vector, and the vectors that the optimiser remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.public_random import normals
from protocols.errors import CodecError, ParameterError
from protocols.recipes.arrays.parameters import ArraysParameters
from protocols.recipes.base import ModelState

__all__ = ["PIECE", "ArraysState", "arrays_of", "arrays_state", "decode", "encode", "initial_state", "state_of"]

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


def arrays_state(state: ModelState) -> ArraysState:
    """Return `state` as a state of this recipe; `ParameterError` for another."""
    if not isinstance(state, ArraysState):
        raise ParameterError(f"this state holds no named arrays: it is a {type(state).__name__}")
    return state


def arrays_of(p: ArraysParameters, state: ModelState) -> dict[str, NDArray[np.float32]]:
    """Return read-only views of the arrays of `state`, float32, by name."""
    values = arrays_state(state).values.view()
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


def encode(state: ModelState) -> bytes:
    """Return the values and the optimiser's vectors as little-endian float32."""
    own = arrays_state(state)
    return b"".join(part.astype("<f4", copy=False).data for part in (own.values, own.first, own.second))


def decode(p: ArraysParameters, round_number: int, body: bytes) -> ArraysState:
    """Decode the bytes of `encode`; `CodecError` for another length, values that are not finite, or negative squares.

    The arrays are read-only views of `body`.
    """
    everything = np.frombuffer(exact(body, 4 * p.values * (1 + p.slots), "a model state"), "<f4")
    if not np.isfinite(everything).all():
        raise CodecError("a model state holds values that are not finite")
    n, none = p.values, everything[:0]
    second = everything[2 * n :] if p.slots > 1 else none
    if second.size and second.min() < 0:
        raise CodecError("a model state holds a negative mean of squares")
    return ArraysState(round_number, everything[:n], everything[n : 2 * n] if p.slots else none, second)
