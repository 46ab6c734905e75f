"""Recipe `arrays`: its parameters, and one update: checked by name, bounded, weighted, laid out to be summed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from protocols.errors import ParameterError
from protocols.layout import Block, Floats, Segment, check_finite, spans_of
from protocols.recipes.base import Clip, Contribution, RecipeParameters

_MOST_ARRAYS: Final = 4096
_MOST_VALUES: Final = 2**28

ArrayName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
"""Printable ASCII without spaces, as in the keys of a PyTorch `state_dict`."""
Side = Annotated[int, Field(ge=1, le=_MOST_VALUES)]
Deviation = Annotated[float, Field(ge=0, le=1e3)]
Optimiser = Literal["mean", "momentum", "adam", "yogi"]


class InitialValues(BaseModel):
    """Where round 0 comes from, if not from the seed: values that the operator uploaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha-256 of the encoded state of round 0, hex.")


class ArraysParameters(RecipeParameters):
    """Parameters of a task of recipe `arrays`. Arrays are in the order of their names, whatever order is given."""

    shapes: dict[ArrayName, tuple[Side, ...]] = Field(
        min_length=1, max_length=_MOST_ARRAYS, description="Shape of each array, by name; [] is a single number."
    )
    clip: Clip = Field(
        default=1.0, description="Bound on each value of an update; what exceeds it is clipped and counted."
    )
    clips: dict[ArrayName, Clip] = Field(
        default_factory=dict, description="Bounds for single arrays, by name, in place of clip."
    )
    l2_clip: Clip | None = Field(
        default=None, description="Bound on the L2 norm of a whole update; a longer one is scaled down. Unset: none."
    )
    rows: tuple[ArrayName, ...] = Field(
        default=(),
        description="Arrays of which an update touches some rows, such as embedding tables: the mean of a row is over "
        "the clients that touched it; needs reveal_rows.",
    )
    max_weight: float | None = Field(
        default=None,
        ge=1,
        le=1e6,
        description="Updates are weighted, by at most this: a client counts for its number of examples up to this one. "
        "Needs reveal_weights. Unset: all count alike.",
    )
    reveal_rows: bool = Field(
        default=False,
        description="Consent to rows: the sums show how many clients touched each row, and a row of one client alone.",
    )
    reveal_weights: bool = Field(
        default=False, description="Consent to max_weight: the sums of many rounds show every client's weight."
    )
    optimiser: Optimiser = Field(default="mean", description="What the mean update is given to.")
    server_rate: float = Field(default=1.0, gt=0, le=1e3, description="Step size of the optimiser (eta).")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Decay of the mean update in momentum, adam and yogi.")
    second_momentum: float = Field(
        default=0.99, ge=0, lt=1, description="Decay of the squared update in adam and yogi (beta_2)."
    )
    adaptivity: float = Field(
        default=1e-3, ge=1e-9, le=1, description="Smallest denominator of a step of adam and yogi (tau)."
    )
    std: Deviation = Field(
        default=0.02, description="Initial values from the seed: normal, of this standard deviation; 0: zeros."
    )
    stds: dict[ArrayName, Deviation] = Field(
        default_factory=dict, description="Standard deviations of single arrays, by name, in place of std."
    )
    initial: InitialValues | None = Field(
        default=None, description="Initial values that were uploaded with the task; unset: from the task's seed."
    )

    @model_validator(mode="after")
    def _check_names(self, info: ValidationInfo) -> Self:
        for parameter, named in (("clips", self.clips), ("stds", self.stds), ("rows", self.rows)):
            unknown = sorted(set(named) - set(self.shapes))
            if unknown:
                raise ValueError(f"{parameter} names {unknown[0]!r}, which has no shape in shapes")
        for name in self.rows:
            if len(self.shapes[name]) < 2:
                raise ValueError(f"rows names {name!r}, which has no rows: its shape is {list(self.shapes[name])}")
        for consent, given, why in (
            ("reveal_rows", "rows", "a row that one client touched is that client's, and the sums say which rows are"),
            ("reveal_weights", "max_weight", "the sums of many rounds show every client's number of examples"),
        ):
            if getattr(self, given) and not (getattr(self, consent) or self.is_noisy(info)):
                raise ValueError(f"{given}: {why}: consent with {consent}=true, or leave {given} out")
        if len(set(self.rows)) != len(self.rows):
            raise ValueError("rows names an array twice")
        if self.values > _MOST_VALUES:
            raise ValueError(f"the arrays have {self.values:,} values together, more than {_MOST_VALUES:,}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays, sorted: their order in sums and states."""
        return tuple(sorted(self.shapes))

    @property
    def values(self) -> int:
        """Number of values of all arrays together."""
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def slots(self) -> int:
        """Number of vectors, as long as the model, that the optimiser remembers."""
        return {"mean": 0, "momentum": 1, "adam": 2, "yogi": 2}[self.optimiser]

    @property
    def start_digest(self) -> str | None:
        return None if self.initial is None else self.initial.digest

    def clip_of(self, name: str) -> float:
        """Return the bound on a value of an update of the array `name`."""
        return self.clips.get(name, self.clip)

    def places(self) -> dict[str, slice]:
        """Return where each array is in a vector of all values, by name."""
        places = (slice(*span) for span in spans_of(prod(self.shapes[name]) for name in self.names))
        return dict(zip(self.names, places, strict=True))


LEAST_WEIGHT: Final = 1.0  # a weight is a number of examples
_ENDLESS: Final = 2**63  # examples
_SEPARATOR: Final = " "  # not in the name of any array


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of an update of an array that is summed by rows."""

    indices: NDArray[np.integer]
    """Distinct integers (k,)."""
    values: NDArray[np.floating]
    """(k, ...)."""


ArraysUpdate = Mapping[str, NDArray[np.floating] | Rows]
"""Name -> change of the array. An array that is summed by rows may be given whole: rows of zeros are not touched."""


def touched_name(name: str) -> str:
    """Return the name of the segment that counts who touched the rows of the array `name`."""
    return f"{name}{_SEPARATOR}touched"


weight_name: Final = f"{_SEPARATOR}weight"  # name of the segment with the client's weight


def block_of(p: ArraysParameters) -> Block:
    """Return the block that is summed: each array, the touched rows behind arrays summed by rows, then the weight.

    Without weights a touched row is a count, 0 or 1. With weights it is the weight, from 0 to 1.
    """
    segments, weighted = [], p.max_weight is not None
    for name, place in p.places().items():
        row = p.shapes[name][-1] if len(p.shapes[name]) > 1 else 1
        segments.append(Segment(name, place.stop - place.start, p.clip_of(name), norm=p.l2_clip, row=row))
        if name in p.rows:
            segments.append(Segment(touched_name(name), p.shapes[name][0], 1.0, integral=not weighted, row=1))
    if weighted:
        segments.append(Segment(weight_name, 1, 1.0))
    return Block("arrays", tuple(segments))


def contribution(p: ArraysParameters, update: ArraysUpdate, weight: float | None = None) -> Contribution:
    """Return the client's contribution: weight * change, and the weight, which is divided by `max_weight`.

    The update is scaled to the L2 clip first, then its values are clipped, then weighted. weight: number of examples,
    at least 1; None for 1; more than `max_weight` count as that. Raises `ParameterError`, naming the array, for an
    unknown name, a missing array, another shape, a dtype that is not floating, and values that are masked or not
    finite; and for a weight that is no number from 1 to 2^63, or in a task without weights.
    """
    share = _share(p, weight)
    check_names(update, p.shapes)
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
    given: Any = LEAST_WEIGHT if weight is None else weight  # an application may give anything
    if not isinstance(given, int | float | np.integer | np.floating) or not LEAST_WEIGHT <= given < _ENDLESS:
        raise ParameterError(f"a weight is a number of examples, at least 1 and below 2^63, got {given!r:.40}")
    return min(float(given), p.max_weight) / p.max_weight


def _fill(
    p: ArraysParameters, name: str, given: NDArray[np.floating] | Rows, into: Floats, touched: Floats | None
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
    array = array_of(name, given, shape)
    check_finite(array, f"array {name!r}")
    return array


def array_of(name: str, given: object, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return what is given for the array `name`, floating-point of this shape.

    Raises `ParameterError`, naming the array, for what is no numpy array or floating-point number, a masked array with
    values that are masked, another dtype and another shape. Values may be infinite or NaN.
    """
    if not isinstance(given, np.ndarray | np.floating | float):
        tensors = ": client_sdk.torch.arrays_of makes numpy arrays of a module" if hasattr(given, "detach") else ""
        raise ParameterError(f"array {name!r} must be a numpy array, got {type(given).__name__}{tensors}")
    if np.ma.is_masked(given):
        raise ParameterError(
            f"array {name!r} has masked values, which a sum does not leave out: fill them, or use Rows"
        )
    array = np.asarray(given)
    if not np.issubdtype(array.dtype, np.floating):
        raise ParameterError(f"array {name!r} must hold floating-point numbers, got {array.dtype}")
    if array.shape != shape:
        raise ParameterError(f"array {name!r} must have shape {shape}, got {array.shape}")
    return array


_WRAPPERS: Final = {
    "_orig_mod.": "torch.compile: use the module's _orig_mod",
    "module.": "DataParallel: use its module",
}
"""What PyTorch puts before the names of a wrapped module's entries -> the wrapper, and what to use in its place."""


def check_names(given: Iterable[str], expected: Iterable[str], stranger: str = "not an array of this task") -> None:
    """Raise `ParameterError`, with the first name, unless the given names are the expected ones.

    stranger: what a name that is not expected is. The error says how to take off what `torch.compile` and
    `DataParallel` put before names, if this is all that is wrong.
    """
    names, wanted = set(given), set(expected)
    for name in sorted(names ^ wanted):
        advice = ""
        for prefix, wrapper in _WRAPPERS.items():
            if wanted in ({each.removeprefix(prefix) for each in names}, {prefix + each for each in names}):
                advice = f"; names begin with {prefix!r} in a module that is wrapped by {wrapper}"
        raise ParameterError(f"array {name!r} is {'missing' if name in wanted else stranger}{advice}")


def _scale(p: ArraysParameters, parts: dict[str, Floats]) -> float:
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
