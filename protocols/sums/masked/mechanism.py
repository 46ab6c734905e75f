"""The masked mechanism: the moves of `protocols.sums.base` that need no round.

What hides a contribution is agreed on between clients within a round, so `seal` is refused here: clients contribute
through `protocols.sums.masked.client`, and a server corrects the folded sum (`correct`) before it releases it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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


class MaskedMechanism:
    """Sums of ring elements under pairwise and self masks, which cancel in the sum of those who stay."""

    name: Final = "masked"
    needs_keyring: Final = False
    interactive: Final = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
        """See `protocols.sums.masked.plan.make_plan`; parameters are those of `MaskedParameters`."""
        return make_plan(parameters, layout, max_contributions)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """There is none, keys are made anew every round: always `ParameterError`."""
        raise ParameterError("masked sums have no keyring: clients make fresh keys every round")

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Always `ParameterError`: without a round there is nobody to share a mask with."""
        raise ParameterError("masked contributions are made within a round: see protocols.sums.masked.client")

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Exact length; the unused bits of the last byte are zero."""
        fold.check_contribution(own_plan(plan), route, body)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Add contributions to a partial sum, modulo 2^bits."""
        return fold.fold_contributions(own_plan(plan), partial, contributions)

    def correct(self, plan: SumPlan, partial: Buffer | None, correction: Ring) -> bytes:
        """Add what unmasking found (ring elements of shape (layout.length,)) to a partial sum (None: an empty one)."""
        return fold.correct(own_plan(plan), partial, correction)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Add partial sums, modulo 2^bits."""
        return fold.merge_partials(own_plan(plan), partials)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """The corrected sums as packed ring elements."""
        return fold.release_sum(own_plan(plan), partial)

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """The sum; `CodecError` for a value that no sum can have. `keyring` is not used."""
        own = own_plan(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan holds for {own.max_contributions} contributions, not {contributions}")
        return fold.open_sum(own, aggregate, contributions)


def own_plan(plan: SumPlan) -> MaskedPlan:
    """`plan` as a masked one; `ParameterError` when another mechanism made it."""
    if not isinstance(plan, MaskedPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'masked'")
    return plan


MASKED: Final = MaskedMechanism()
"""The mechanism; stateless."""
