"""One client's update: checked by name, bounded, weighted, and laid out as the vector that is summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Block, Segment
from protocols.recipes.arrays.parameters import ArraysParameters
from protocols.recipes.base import Contribution

__all__ = ["LEAST_WEIGHT", "Rows", "Update", "block_of", "contribution", "touched_name", "weight_name"]

LEAST_WEIGHT: Final = 1.0
"""A weight is a number of examples."""
_SEPARATOR: Final = " "
"""Not in the name of any array."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of an update of an array that is summed by rows. indices: distinct integers (k,). values: (k, ...)."""

    indices: NDArray[np.integer]
    values: NDArray[np.floating]


Update = Mapping[str, NDArray[np.floating] | Rows]
"""Name -> change of the array. An array that is summed by rows may be given whole: rows of zeros are not touched."""


def touched_name(name: str) -> str:
    """Return the name of the segment that counts who touched the rows of the array `name`."""
    return f"{name}{_SEPARATOR}touched"


weight_name: Final = f"{_SEPARATOR}weight"
"""Name of the segment with the client's weight."""


def block_of(p: ArraysParameters) -> Block:
    """Return the block that is summed: each array, the touched rows behind arrays summed by rows, then the weight.

    Without weights a touched row is a count, 0 or 1. With weights it is the weight, from 0 to 1.
    """
    segments, weighted = [], p.max_weight is not None
    for name, place in p.places().items():
        segments.append(Segment(name, place.stop - place.start, p.clip_of(name)))
        if name in p.rows:
            segments.append(Segment(touched_name(name), p.shapes[name][0], 1.0, integral=not weighted))
    if weighted:
        segments.append(Segment(weight_name, 1, 1.0))
    return Block("arrays", tuple(segments))


def contribution(p: ArraysParameters, update: Update, weight: float | None = None) -> Contribution:
    """Return the client's contribution: weight * change, and the weight, which is divided by `max_weight`.

    The update is scaled to the L2 clip first, then its values are clipped, then weighted. weight: number of examples,
    at least 1; None for 1; more than `max_weight` count as that. Raises `ParameterError`, naming the array, for an
    unknown name, a missing array, another shape, a dtype that is not floating, and values that are not finite; and for
    a weight below 1, or in a task without weights.
    """
    share = _share(p, weight)
    for name in sorted(set(update) ^ set(p.shapes)):
        raise ParameterError(f"array {name!r} is {'missing' if name in p.shapes else 'not an array of this task'}")
    block = block_of(p)
    vector = np.zeros(block.length)
    parts = block.split(vector)
    for name in p.names:
        touched = parts.get(touched_name(name))
        _fill(p, name, update[name], parts[name].reshape(p.shapes[name]), touched)
    scaled, clipped = _scale(p, parts), 0
    for name in p.names:
        values, clip = parts[name], p.clip_of(name)
        over = int(np.count_nonzero(np.abs(values) > clip))
        clipped += over
        if over:
            np.clip(values, -clip, clip, out=values)
    if share is not None:
        vector *= share  # touched rows become the weight
        parts[weight_name][:] = share
    return Contribution([vector], clipped, scaled)


def _share(p: ArraysParameters, weight: float | None) -> float | None:
    """Return the weight as a share of the largest, None in a task without weights."""
    if p.max_weight is None:
        if weight is not None:
            raise ParameterError("this task has no weights: leave out weight, or create it with max_weight")
        return None
    given = LEAST_WEIGHT if weight is None else weight
    if not given >= LEAST_WEIGHT:
        raise ParameterError(f"a weight is a number of examples, at least 1, got {weight}")
    return min(float(given), p.max_weight) / p.max_weight


def _fill(
    p: ArraysParameters,
    name: str,
    given: NDArray[np.floating] | Rows,
    into: NDArray[np.float64],
    touched: NDArray[np.float64] | None,
) -> None:
    """Copy one array's change to `into`, and 1 to `touched` for each row that it has."""
    if isinstance(given, Rows):
        if touched is None:
            raise ParameterError(f"array {name!r} is not summed by rows: give its whole change")
        indices = np.asarray(given.indices)
        values = _checked(name, given.values, (indices.size, *p.shapes[name][1:]))
        if indices.ndim != 1 or not (np.issubdtype(indices.dtype, np.integer) or not indices.size):
            raise ParameterError(f"array {name!r}: the rows must be a flat list of integers, got {indices.dtype}")
        indices = indices.astype(np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < p.shapes[name][0]):
            raise ParameterError(f"array {name!r} has no row outside 0..{p.shapes[name][0] - 1}")
        if np.unique(indices).size != indices.size:
            raise ParameterError(f"array {name!r}: a row is given twice")
        into[indices] = values
        touched[indices] = 1.0
        return
    into[...] = _checked(name, given, p.shapes[name])
    if touched is not None:
        touched[:] = into.reshape(len(into), -1).any(axis=1)


def _checked(name: str, given: object, shape: tuple[int, ...]) -> NDArray[np.floating]:
    if not isinstance(given, np.ndarray | np.floating | float):
        raise ParameterError(f"array {name!r} must be a numpy array, got {type(given).__name__}")
    array = np.asarray(given)
    if not np.issubdtype(array.dtype, np.floating):
        raise ParameterError(f"array {name!r} must hold floating-point numbers, got {array.dtype}")
    if array.shape != shape:
        raise ParameterError(f"array {name!r} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ParameterError(f"array {name!r} holds values that are not finite: training diverged")
    return array


def _scale(p: ArraysParameters, parts: dict[str, NDArray[np.float64]]) -> float:
    """Scale all arrays to the L2 clip, in place; return the factor."""
    if p.l2_clip is None:
        return 1.0
    norm = float(np.sqrt(sum(float(parts[name] @ parts[name]) for name in p.names)))
    if norm <= p.l2_clip:
        return 1.0
    factor = p.l2_clip / norm
    for name in p.names:
        parts[name] *= factor
    return factor
