"""The parameters of recipe `arrays`: names and shapes, bounds of an update, weights, and the server's optimiser."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocols.recipes.base import RecipeParameters

__all__ = ["MOST_ARRAYS", "MOST_VALUES", "ArraysParameters", "InitialValues", "Optimiser"]

MOST_ARRAYS: Final = 4096
MOST_VALUES: Final = 2**28

ArrayName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
"""Printable ASCII without spaces, as in the keys of a PyTorch `state_dict`."""
Side = Annotated[int, Field(ge=1, le=MOST_VALUES)]
Clip = Annotated[float, Field(gt=0, le=1e6)]
Deviation = Annotated[float, Field(ge=0, le=1e3)]
Optimiser = Literal["mean", "momentum", "adam", "yogi"]


class InitialValues(BaseModel):
    """Where round 0 comes from, if not from the seed: values that the operator uploaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha-256 of the encoded state of round 0, hex.")


class ArraysParameters(RecipeParameters):
    """Parameters of a task of recipe `arrays`. Arrays are in the order of their names, whatever order is given."""

    shapes: dict[ArrayName, tuple[Side, ...]] = Field(
        min_length=1, max_length=MOST_ARRAYS, description="Shape of each array, by name; [] is a single number."
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
    def _check_names(self) -> Self:
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
            if getattr(self, given) and not getattr(self, consent):
                raise ValueError(f"{given}: {why}: consent with {consent}=true, or leave {given} out")
        if len(set(self.rows)) != len(self.rows):
            raise ValueError("rows names an array twice")
        if self.values > MOST_VALUES:
            raise ValueError(f"the arrays have {self.values:,} values together, more than {MOST_VALUES:,}")
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
        """See `RecipeParameters`."""
        return None if self.initial is None else self.initial.digest

    def clip_of(self, name: str) -> float:
        """Return the bound on a value of an update of the array `name`."""
        return self.clips.get(name, self.clip)

    def std_of(self, name: str) -> float:
        """Return the standard deviation of the initial values of the array `name`."""
        return self.stds.get(name, self.std)

    def places(self) -> dict[str, slice]:
        """Return where each array is in a vector of all values, by name."""
        edges = [0, *accumulate(prod(self.shapes[name]) for name in self.names)]
        return {name: slice(a, b) for name, (a, b) in zip(self.names, pairwise(edges), strict=True)}
