"""The parameters of new PriviRec tasks: what was chosen on validation rows, and what fits the sizes of a task.

What was measured is in docs/results.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocols.privacy.equations import most_equations
from protocols.recipes.defaults import MESSAGE_BUDGET, TaskDefaults, TaskFacts
from protocols.recipes.next_item import next_equations, next_length
from protocols.recipes.spectrum import triangle_length
from protocols.recipes.validation import MOST_SLIM_ITEMS

MOST_COMPONENTS: Final = 256

_ROWS: Final = {"user_exponent": 0.25, "item_exponent": 0.3125}
_KRYLOV: Final = {**_ROWS, "krylov": True, "iterations": 3, "item_limit": 3.0}
"""Three iterations with new directions each: of as many equations two or four ranked worse (validation rows)."""
_NOISY: Final = {"user_exponent": 0.5, "item_exponent": 0.0, "degrees": False}
"""Rows of length 1, and few sums, on which the noise depends. Rows are not scaled by the items' degrees, so these need
no sum."""
_LONG_LISTS: Final = 20.0
_OF_SHORT_LISTS: Final = {"item_exponent": 0.4}
"""Of clients with fewer items than that on average: better on validation rows of the sets with 13 to 16, worse on those
with more."""
_VALIDATION: Final = 0.1
_OF_INTERACTIONS: Final = 100.0
_FEWEST_VALIDATING: Final = 100.0
"""Members that keep an item out of the sums, so that a filter is chosen by them: as many as keep one interaction in 100
out, a tenth where nobody knows how many items they have; none if these are fewer than 100, who cannot tell filters
apart."""
_NEXT_VECTORS: Final = (64, 32, 16)
"""Vectors of a sum of next items, the first whose values are no more than a quarter of the equations that are safe and
two for each client, and fit in messages. On validation rows of MovieLens-100K 16, 32 and 64 had NDCG@20 .156, .162 and
.164, all 117 .164."""
_TRACED: Final = 2
"""Values of a sum of next items for each client. On MovieLens-100K and on made-up long lists it traces members who are
known by their lists about as well as the iterations do, on short lists better: AUC .74 beside .66, at one value for
each client (`bench/next_item.py`)."""


_COUNTED: Final = {"user_exponent": 0.0, "item_exponent": 0.3125, "iterations": 0}
"""Of `privirec`: counts of pairs, which fit in 16 bits and are exact, and whose scale is chosen afterwards."""
_WHOLE_COMPONENTS: Final = 1024
"""Vectors of the whole matrix at most, which no message holds. Members choose how many of them are used."""


def components_within(items: int, budget: int = MESSAGE_BUDGET) -> int:
    """Return how many vectors of so many items fit in `budget` bytes, at 4 bytes a value: 1 to 256, at most `items`.

    More than 256 were not better on validation rows of sets with up to 4,000 items (docs/results.md).
    """
    return max(1, min(MOST_COMPONENTS, items, budget // (4 * items)))


def _adjust(chosen: Mapping[str, Any], given: Mapping[str, Any], facts: TaskFacts) -> dict[str, Any]:
    """Return the chosen values with as many vectors as fit in messages, and members that validate (`Adjust`)."""
    chosen = dict(chosen)
    if any(given.get(name) for name in ("rayleigh_ritz", "tolerance", "oversampling")):
        chosen.pop("krylov", None)
    if not {**chosen, **given}.get("krylov"):
        chosen.pop("item_limit", None)
    if facts.items is not None:
        chosen.setdefault("components", components_within(facts.items, facts.budget))
        if chosen.get("krylov") and facts.mean_items is not None and facts.mean_items < _LONG_LISTS:
            chosen |= _OF_SHORT_LISTS
        if {**chosen, **given}.get("krylov"):
            chosen |= _share_for(facts)
    if given.get("item_exponent"):
        chosen.pop("degrees", None)  # such rows are scaled by degrees
    return chosen


def _adjust_whole(chosen: Mapping[str, Any], given: Mapping[str, Any], facts: TaskFacts) -> dict[str, Any]:
    """Return the same for `privirec`: blocks of counts that fit in messages of masked sums; or weighted rows, if these
    are named."""
    both = {**chosen, **given}
    if facts.noisy or both["iterations"] or both["user_exponent"] or not both.get("degrees", True):
        weighted = {**_ROWS, "rayleigh_ritz": True, "iterations": 5}
        return _adjust(chosen if facts.noisy else weighted, given, facts)
    chosen = dict(chosen)
    if facts.mean_items is not None and facts.mean_items < _LONG_LISTS:
        chosen |= _OF_SHORT_LISTS
    if facts.items is not None:
        chosen["components"] = min(_WHOLE_COMPONENTS, facts.items)
        chosen["blocks"] = blocks_within(facts.items, facts.clients, facts.budget)
        chosen |= _share_for(facts)
        if {**chosen, **given}.get("validation") and facts.items <= MOST_SLIM_ITEMS:
            chosen["slim"] = True
    return chosen


def blocks_within(items: int, clients: int | None, budget: int = MESSAGE_BUDGET) -> int:
    """Return how many masked sums the counts of pairs of so many items need, for messages of `budget` bytes; 100 at
    most."""
    return max(1, min(100, -(-triangle_length(items) * ring_bits(clients) // (8 * budget))))


def ring_bits(clients: int | None) -> int:
    """Return the bits of a count of so many clients in a masked sum; 32 where nobody knows how many."""
    return 32 if clients is None else max(16, clients.bit_length() + 1)


def _share_for(facts: TaskFacts) -> dict[str, float]:
    """Return the share of the members that keep an item out, if enough do."""
    by_list = facts.mean_items
    share = _VALIDATION if by_list is None else round(min(1.0, by_list / _OF_INTERACTIONS), 2)
    enough = facts.clients is None or share * facts.clients >= _FEWEST_VALIDATING
    return {"validation": share} if enough else {}


def _adjust_k(chosen: Mapping[str, Any], given: Mapping[str, Any], facts: TaskFacts) -> dict[str, Any]:
    """Return the same for `privirec-k`, whose equations are no more than are safe, with a sum of next items."""
    chosen = dict(chosen)
    if facts.noisy and facts.started:
        chosen["iterations"] = 1
    if facts.items is not None:
        items, clients = facts.items, facts.clients or facts.items
        within, safe = components_within(items, facts.budget), most_equations(items, clients)
        if facts.ordered and not (facts.noisy or facts.started or given.get("tolerance")):
            chosen["next_vectors"] = _next_vectors(items, safe, clients, facts.budget)
        if not (facts.noisy or given.get("reveal_gram")):
            both = {**chosen, **given}
            left = max(0, safe - next_equations(both.get("next_vectors", 0), items))
            within = min(within, left // max(1, both["iterations"]))
        chosen["components"] = max(1, within)
    return _adjust(chosen, given, facts)


def _next_vectors(items: int, safe: int, clients: int, budget: int) -> int:
    """Return the vectors of a sum of next items that are recommended; 0 for none. safe: equations for each item."""
    for count in _NEXT_VECTORS:
        most = min(_TRACED * clients, budget // 4)
        if 4 * next_equations(count, items) <= safe and next_length(count) <= most:
            return count
    return 0


def _planned(items: int) -> Mapping[str, Any]:
    return {"items": items}


PRIVIREC_DEFAULTS: Final = TaskDefaults(
    recommended=_COUNTED,
    noisy={**_NOISY, "iterations": 0, "rayleigh_ritz": True},
    adjust=_adjust_whole,
    planned=_planned,
    in_groups=True,
)
PRIVIREC_K_DEFAULTS: Final = TaskDefaults(
    recommended=_KRYLOV,
    noisy={**_NOISY, "iterations": 3, "krylov": False, "rayleigh_ritz": True},
    paper={"min_owners": 1, "reveal_gram": True},
    adjust=_adjust_k,
    planned=_planned,
    in_groups=True,
)
"""With a privacy block a start from the vectors of an earlier task makes one iteration better than three:
docs/results.md. The noise in a value does not depend on the number of vectors, and with more of them three iterations
find the leading ones: 256 vectors ranked better than 64 at every epsilon and number of users. All were chosen on
validation rows."""
