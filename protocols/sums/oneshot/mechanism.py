"""The one-shot mechanism: the functions of `protocols.sums.base` that do not need a round.

A client needs the committee's keys of the round, so `seal` always raises: clients contribute through
`protocols.sums.oneshot.client`. `protocols.sums.oneshot.server.unmask` takes the masks off the folded sum.
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
from protocols.sums.oneshot import fold
from protocols.sums.oneshot.plan import OneshotPlan, make_plan

__all__ = ["ONESHOT", "OneshotMechanism", "own_plan"]


class OneshotMechanism:
    """Sums under ring-LWE masks, which a committee takes off the sum of a whole set of survivors at once."""

    name: Final = "oneshot"
    needs_keyring: Final = False
    interactive: Final = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> OneshotPlan:
        """Return the plan of a task; `parameters` are the fields of `OneshotParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Raise `ParameterError`: one-shot sums have no keyring, members make new keys for every round."""
        raise ParameterError("one-shot sums have no keyring: the committee makes fresh keys for every round")

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Raise `ParameterError`: one-shot contributions are made within a round."""
        raise ParameterError("one-shot contributions are made within a round: see protocols.sums.oneshot.client")

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and every residue is below its prime."""
        fold.check_contribution(own_plan(plan), route, body)

    def check_part(self, plan: SumPlan, route: Route, start: int, part: Buffer) -> None:
        """Check a part of a contribution; see `protocols.sums.base.ChecksByParts`."""
        fold.check_part(own_plan(plan), start, part)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus contributions, modulo each prime."""
        return fold.fold_contributions(own_plan(plan), partial, contributions)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, modulo each prime."""
        return fold.merge_partials(own_plan(plan), partials)

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums as packed ring elements; `CodecError` for a sum that is not exactly that of its count."""
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


def own_plan(plan: SumPlan) -> OneshotPlan:
    """Return `plan` as a one-shot plan; `ParameterError` for a plan of another mechanism."""
    if not isinstance(plan, OneshotPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'oneshot'")
    return plan


ONESHOT: Final = OneshotMechanism()
"""The mechanism; stateless."""
