"""The plan of a masked sum: the ring, the scale of each segment, lengths, and the encoding as ring elements.

A masked contribution is always the whole aggregate vector, whatever its route (docs/adr/0006-masked-sums-are-dense.md):
blocks outside the route are masked zeros, and a block with two targets appears twice.

The segments share the ring Z_{2^bits} and have a scale each (`protocols.sums.segments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from protocols import parameter_text
from protocols.errors import BudgetError, ParameterError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import OpenedBy
from protocols.sums.chosen import refuse_chosen
from protocols.sums.masked.packing import Ring, packed_bytes, ring_dtype
from protocols.sums.masked.parameters import (
    MIN_CLIENTS,
    MOST_CLIENTS,
    MaskedParameters,
    Mode,
    Neighbourhood,
    choose_neighbourhood,
    quorum,
)
from protocols.sums.segments import Places, encode_vector, first_fault, places_of, segment_errors, segment_scales

__all__ = ["COUNT_BYTES", "MaskedPlan", "encode", "make_plan"]

COUNT_BYTES: Final = 8
"""A partial sum starts with its number of contributions, a little-endian uint64."""

_SECURITY_BITS: Final = 128
"""Security of AES-128 and X25519."""


@dataclass(frozen=True)
class MaskedPlan:
    """The plan of a masked sum; all parties compute the same from the task's parameters."""

    parameters: MaskedParameters
    layout: VectorLayout
    max_contributions: int

    @property
    def mechanism(self) -> str:
        """`masked`."""
        return "masked"

    @property
    def opened_by(self) -> OpenedBy:
        """ "anyone": a released sum is in the clear, although no contribution is."""
        return "anyone"

    @property
    def bits(self) -> int:
        """Bits of a ring element."""
        return self.parameters.bits

    @property
    def mode(self) -> Mode:
        """Behaviour of the server that the sum withstands."""
        return self.parameters.mode

    @property
    def repeated(self) -> bool:
        """Whether all sums of the task are over the same data and the server may lie about the survivors."""
        return self.layout.sum_class.repeated and self.mode == "semi-malicious"

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ring elements: uint16, uint32 or uint64."""
        return ring_dtype(self.bits)

    def neighbourhood(self, clients: int) -> Neighbourhood:
        """Return neighbours and threshold for a roster of `clients`; `ParameterError` if no values fit."""
        own = self.parameters
        return choose_neighbourhood(clients, own.corrupt, own.dropout, own.mode, own.sigma, own.eta)

    def quorum(self, members: int) -> int:
        """Return the signatures of one set of survivors that a client of a roster of `members` needs, its own included.

        If the same data are summed again, over members that may leave, they are counted of all that may ever be summed.
        """
        most = max(members, self.max_contributions) if self.repeated else members
        return quorum(self.parameters.corrupt, most)

    @cached_property
    def places(self) -> Places:
        """The fixed point and the slice of every segment, by block of the aggregate."""
        return places_of(self.bits, self.layout, self.max_contributions)

    @property
    def segment_scales(self) -> dict[str, float]:
        """Ring steps per 1.0 by `block/segment`."""
        return segment_scales(self.layout, self.places)

    @property
    def segment_errors(self) -> dict[str, float]:
        """Bound on the error by `block/segment`, in the segment's own unit; 0.0 for counts."""
        return segment_errors(self.layout, self.places, self.max_contributions)

    @property
    def predicted_error(self) -> float:
        """The largest of the segments' error bounds."""
        return max(self.segment_errors.values())

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes: the contribution count, then raw ring elements."""
        return COUNT_BYTES + self.layout.length * self.dtype.itemsize

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes: packed ring elements."""
        return packed_bytes(self.layout.length, self.bits)

    def contribution_bytes(self, route: Route) -> int:
        """Return the length in bytes of a contribution: that of the whole vector, along any route."""
        self.layout.check_route(route)
        return packed_bytes(self.layout.length, self.bits)

    def _describe_neighbourhood(self) -> dict[str, Any] | None:
        try:
            return self.neighbourhood(self.max_contributions).describe()
        except ParameterError:
            return None

    def describe(self) -> dict[str, Any]:
        """Return facts for people, JSON-ready; see `protocols.sums.base.SumPlan.describe`."""
        return {
            "mechanism": self.mechanism,
            **self.parameters.model_dump(),
            "security_bits": _SECURITY_BITS,
            "max_contributions": self.max_contributions,
            "neighbourhood": self._describe_neighbourhood(),
            "bytes_per_value": self.aggregate_bytes / self.layout.length,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
            "segment_scales": self.segment_scales,
            "segment_errors": self.segment_errors,
        }


def make_plan(parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
    """Return the plan of a task.

    Whether a cohort has a neighbourhood is checked when a task is created or joined (`MaskedPlan.neighbourhood`): a
    task of an earlier version, whose cohort has none any more, can still be read. Raises `ParameterError` for invalid
    parameters, `BudgetError` if the sums do not fit the ring.
    """
    try:
        checked = MaskedParameters.model_validate(dict(parameters))
    except ValidationError as error:
        text = parameter_text.first_fault(error, MaskedParameters.model_fields)
        raise ParameterError(f"masked parameters: {text}") from None
    if max_contributions < MIN_CLIENTS:
        raise ParameterError(
            f"a masked sum has at least {MIN_CLIENTS} contributions: max_contributions must be at least "
            f"{MIN_CLIENTS}, got {max_contributions}"
        )
    refuse_chosen(layout, "masked")
    plan = MaskedPlan(checked, layout, max_contributions)
    fault = _first_fault(checked.bits, layout, max_contributions)
    if fault is not None:
        raise BudgetError(_error_text(fault, checked.bits, layout, max_contributions))
    return plan


def encode(plan: MaskedPlan, route: Route, blocks: Sequence[NDArray[np.float64]]) -> Ring:
    """Return the ring elements (layout.length,) of a contribution along `route`, before masks are added.

    blocks: one float64 vector per route entry. Raises `BudgetError` for a value that is not finite or exceeds its clip,
    `ParameterError` for other shapes and for counts that are not whole numbers.
    """
    elements = np.zeros(plan.layout.length, plan.dtype)
    encode_vector(plan.layout, plan.places, route, blocks, elements)
    return elements


def _first_fault(bits: int, layout: VectorLayout, contributions: int) -> str | None:
    if contributions > MOST_CLIENTS:
        return f"no neighbour graph has over {MOST_CLIENTS} clients"
    return first_fault(bits, layout, contributions)


def _error_text(fault: str, bits: int, layout: VectorLayout, contributions: int) -> str:
    most, over = 0, contributions
    while over - most > 1:
        middle = (most + over) // 2
        most, over = (middle, over) if _first_fault(bits, layout, middle) is None else (most, middle)
    fitting = [f"at most {most} contributions fit"] if most >= MIN_CLIENTS else []
    enough = next((b for b in range(bits + 1, 65) if _first_fault(b, layout, contributions) is None), None)
    fitting += [f"{enough} bits fit"] if enough else []
    return (
        f"sums of {contributions} contributions do not fit a ring of {bits} bits ({fault}); "
        f"{', or '.join(fitting) or 'no ring fits'}"
    )
