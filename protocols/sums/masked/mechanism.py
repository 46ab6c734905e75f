"""The masked mechanism: the functions of `protocols.sums.base` that do not need a round.

Clients agree on masks within a round, so `seal` always raises: clients contribute through
`protocols.sums.masked.client`, and the server corrects the folded sum (`correct`) before it releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keyring import Keyring
from protocols.errors import ParameterError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, SumPlan
from protocols.sums.masked import fold
from protocols.sums.masked.packing import Ring
from protocols.sums.masked.plan import MaskedPlan, make_plan

__all__ = ["MASKED", "MaskedMechanism", "own_plan"]

T = TypeVar("T")


class MaskedMechanism:
    """Sums of ring elements under pairwise masks, which cancel in the sum, and self masks, which unmasking removes."""

    name: Final = "masked"
    needs_keyring: Final = False
    interactive: Final = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
        """Return the plan of a task; `parameters` are the fields of `MaskedParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Raise `ParameterError`: masked sums have no keyring, clients make new keys in every round."""
        raise ParameterError("masked sums have no keyring: clients make fresh keys every round")

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Raise `ParameterError`: masked contributions are made within a round."""
        raise ParameterError("masked contributions are made within a round: see protocols.sums.masked.client")

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and the unused bits of the last byte are zero."""
        fold.check_contribution(own_plan(plan), route, body)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus contributions, modulo 2^bits."""
        return fold.fold_contributions(own_plan(plan), partial, contributions)

    def correct(self, plan: SumPlan, partial: Buffer | None, correction: Ring) -> bytes:
        """Return the partial sum (None: empty) plus the correction of unmasking, ring elements (layout.length,)."""
        return fold.correct(own_plan(plan), partial, correction)

    def correct_in_place(self, plan: SumPlan, partial: Buffer | None, add_to: Callable[[Ring], T]) -> tuple[bytes, T]:
        """Return the partial sum (None: empty) plus what `add_to` adds to its elements, and what `add_to` returns."""
        return fold.correct_in_place(own_plan(plan), partial, add_to)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, modulo 2^bits."""
        return fold.merge_partials(own_plan(plan), partials)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the corrected sums as packed ring elements."""
        return fold.release_sum(own_plan(plan), partial)

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the sum, float64 (layout.length,). `keyring` is not used.

        Raises `CodecError` for a value beyond the bound of a sum of so many contributions.
        """
        own = own_plan(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan allows {own.max_contributions} contributions, got {contributions}")
        return fold.open_sum(own, aggregate, contributions)

    def open_part(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int
    ) -> NDArray[np.float64]:
        """Return values `start` to `stop` of the sum; see `protocols.sums.base.OpensByParts`."""
        return fold.open_part(own_plan(plan), aggregate, contributions, start, stop)


def own_plan(plan: SumPlan) -> MaskedPlan:
    """Return `plan` as a masked plan; `ParameterError` for a plan of another mechanism."""
    if not isinstance(plan, MaskedPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'masked'")
    return plan


MASKED: Final = MaskedMechanism()
"""The mechanism; stateless."""
