"""Opening one aggregate and absorbing it, without showing anybody whether that was possible.

What opening an aggregate shows depends on the secret key, and a server can put a ciphertext of its own in the place of
the sum. If a client stopped, or left out a round, when an aggregate does not open, the server would learn one bit of
what the keys protect from each try (a reaction attack: Hall, Goldberg and Schneier, ICICS 1999). So a member treats
such an aggregate as that of a missed round: its model stays as it was, and all its requests are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from client_sdk.agreement.terms import TaskTerms
from protocols.crypto.keyring import Keyring
from protocols.errors import HushRecError
from protocols.messages import RoundView
from protocols.recipes.base import ModelState
from protocols.recipes.evaluated import Evaluated
from protocols.sums.opened_ranges import require_possible
from protocols.sums.participation import require_participants, without_participation

__all__ = ["RejectedAggregate", "absorb_aggregate"]


@dataclass(frozen=True)
class RejectedAggregate:
    """The aggregate of a round did not open, or cannot be used, for `reason`. The server must not learn of it."""

    round: int
    reason: str


def absorb_aggregate(
    terms: TaskTerms, keyring: Keyring | None, state: ModelState, view: RoundView, body: bytes
) -> tuple[ModelState, RejectedAggregate | None]:
    """Return the state after the round `view`, whose aggregate is `body`, and None.

    In a task whose members open the sums, an aggregate that cannot be opened, used, or be the sum of so many honest
    contributions, or in which fewer than `min_clients` contributions carry data, gives the state as it was, under the
    round's number, and the reason. In other tasks the errors of opening are raised.
    """

    def absorbed() -> ModelState:
        plan = terms.sum_plan_at(view.step)
        total = terms.mechanism.open(plan, body, view.survivors, keyring)
        if terms.opened_by == "members":
            require_possible(plan, total, view.survivors)
            require_participants(plan, total, terms.schedule.min_clients)
        summed = without_participation(plan, total)
        return terms.recipe.absorb(state, terms.round_spec(view), summed, view.survivors)

    if terms.opened_by != "members" or keyring is None:
        return absorbed(), None
    try:
        return absorbed(), None
    except (HushRecError, ValueError, ArithmeticError, RuntimeError) as error:
        return _left_out(terms, state, view), RejectedAggregate(view.number, str(error))


def _left_out(terms: TaskTerms, state: ModelState, view: RoundView) -> ModelState:
    recipe = terms.recipe
    if isinstance(recipe, Evaluated):
        return recipe.left_out(state, terms.round_spec(view))
    return replace(state, round_number=view.number)
