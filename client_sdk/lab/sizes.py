"""What `privirec-k` with messages of several sizes, and the whole item-item matrix, are worth on one's own data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from client_sdk.lab.data.splits import Split
from client_sdk.lab.simulated_task import SimulationRequest
from client_sdk.lab.simulation import simulate
from protocols.advice import MOST_COMPONENTS
from protocols.errors import ParameterError
from protocols.recipes.privirec_parameters import MOST_GRAM_ITEMS

_VECTORS: Final = (4, 8, 16, 32, 64, 128)
_CONSENT: Final = {"reveal_gram": True, "min_owners": 1}


@dataclass(frozen=True)
class Size:
    """One task."""

    words: str
    """What it sums, for people."""
    consent: bool
    """Whether it needs `reveal_gram`: with its sums everyone can compute what single members have."""
    sent_bytes: float
    """Of a client in the whole task."""
    values: dict[str, float]
    """Metrics by name, the most important first."""


def compare_sizes(
    split: Split, request: SimulationRequest, progress: Callable[[str], None] | None = None
) -> list[Size]:
    """Return what each task is worth, those with fewer bytes first; the request's recipe and parameters do not count.

    Sizes: vectors of each of three iterations, up to as many as are safe, or fit into the budget; then, with consent,
    256 vectors and all items, and up to 10,000 items the whole matrix, of counts in masked sums. progress: called with
    what is trained next.
    Raises `ParameterError` if none of them can be made, and as `simulate` does.
    """
    asked = replace(request, recipe="privirec-k", rounds=None, cohort=None, evaluation=None, recommend=())
    found, most = list[Size](), 0

    def trained(words: str, recipe: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if progress is not None:
            progress(words)
        made = simulate(split, replace(asked, recipe=recipe, recipe_parameters=parameters))
        consent = bool(parameters.get("reveal_gram"))
        found.append(Size(words, consent, made.bytes_up * made.rounds, made.points[-1].values))
        return made.recipe_parameters

    try:
        most = int(trained("as chosen", "privirec-k", {})["components"])
        found[0] = replace(found[0], words=f"{most} vectors, as chosen")
    except ParameterError:  # sums over so few members, or of so short lists, have none
        if request.epsilon is not None:
            raise
    for vectors in _VECTORS:
        if vectors < most:
            trained(f"{vectors} vectors", "privirec-k", {"components": vectors})
    items = split.train.n_items
    if request.epsilon is None and items >= MOST_COMPONENTS:
        trained(f"{MOST_COMPONENTS} vectors of all items", "privirec-k", {"components": MOST_COMPONENTS, **_CONSENT})
    if request.epsilon is None and items <= MOST_GRAM_ITEMS:
        if asked.mechanism == "plain":  # whose counts take twice as many bytes
            asked = replace(asked, mechanism="masked")
        trained("the whole matrix", "privirec", dict(_CONSENT))
    return sorted(found, key=lambda one: (one.consent, one.sent_bytes))
