"""Which recipe, sizes and parameters suit data of a size: chosen on validation rows (bench/experiments/quality.py).

What was measured is in docs/results.md. The values are in the recipes' entries (`protocols.recipes.defaults`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.privacy.equations import equations_within, most_equations
from protocols.recipes.defaults import MESSAGE_BUDGET as MESSAGE_BUDGET
from protocols.recipes.defaults import TaskFacts
from protocols.recipes.next_item import next_length
from protocols.recipes.privirec_defaults import MOST_COMPONENTS as MOST_COMPONENTS
from protocols.recipes.privirec_defaults import components_within
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.groups import (
    FEWEST_IN_DEGREES,
    LEAST_GROUPS,
    SMALLEST_SPLIT,
    GroupedParameters,
    Works,
    default_groups,
    default_groups_of_degrees,
)
from protocols.sums.registry import mechanism_entry, parameters_of
from protocols.task_terms import carriers

Variant = Literal["recommended", "paper"]
"""Which values a new task has where its maker names none: the recommended ones, or those of the paper."""

MOST_FACTORS: Final = 128  # factors of a started task at most: the length that was measured (docs/recipes.md)


class _OfEntries(Mapping[str, Any]):
    """One field of all recipes' `defaults`, by recipe, without those in which it is empty."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __getitem__(self, recipe: str) -> Any:
        try:
            value = getattr(recipe_entry(recipe).defaults, self._field)
        except ParameterError:  # there is no such recipe
            raise KeyError(recipe) from None
        if not value:
            raise KeyError(recipe)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in recipes() if name in self)

    def __len__(self) -> int:
        return len(list(iter(self)))


RECOMMENDED: Final[Mapping[str, Mapping[str, Any]]] = _OfEntries("recommended")
NOISY: Final[Mapping[str, Mapping[str, Any]]] = _OfEntries("noisy")
STARTED: Final[Mapping[str, Mapping[str, Any]]] = _OfEntries("started")
IN_GROUPS: Final[Mapping[str, bool]] = _OfEntries("in_groups")
"""What the recipes' entries say (`TaskDefaults`)."""


def parameters_for(
    recipe: str,
    given: Mapping[str, Any],
    variant: Variant = "recommended",
    *,
    started: bool = False,
    vectors: int = MOST_FACTORS,
    budget: int = MESSAGE_BUDGET,
    noisy: bool = False,
    clients: int | None = None,
    mean_items: float | None = None,
    ordered: bool = False,
) -> dict[str, Any]:
    """Return the parameters of a new task: those `given`, and the recommended or the paper's for what is not given.

    started: whether the task starts from a spectrum. vectors: how many that one has, where it is known. budget: see
    `components_within`. noisy: whether it has a privacy block. clients: how many are in a sum, which limits the vectors
    of `privirec-k`; None: the items alone limit them. mean_items: of a client, where it is known. ordered: whether
    clients' items have times, by which `privirec-k` learns what follows what.

    A task without item biases gets no recommended value, because the others were chosen for item biases; nor does one
    that names RFRec's variant "paper" or noise.
    """
    defaults, items = recipe_entry(recipe).defaults, given.get("items")
    if variant == "paper":
        without_weights = given.get("noise_scale") is not None  # noise does not hide a weight
        return dict(given) if without_weights else {**defaults.paper, **given}
    if given.get("item_bias") == "none" or given.get("variant") == "paper" or given.get("ldp") is not None:
        return dict(given)
    items = items if isinstance(items, int) and items > 0 else None
    chosen = {**defaults.recommended, **(defaults.noisy if noisy else {}), **(defaults.started if started else {})}
    if defaults.adjust is not None:
        chosen = defaults.adjust(chosen, given, TaskFacts(
            items=items, budget=budget, clients=clients, mean_items=mean_items, ordered=ordered, started=started,
            noisy=noisy,
        ))  # fmt: skip
    elif started and items is not None:
        chosen["dim"] = min(MOST_FACTORS, components_within(items, budget), vectors)
    return {**chosen, **given}


_VISITS: Final = 300
"""Positives per item that the advised rounds train on: with fewer, curves on validation rows were still rising."""


_COUNTED: Final = 5
"""Times that an item is counted on average. With fewer than three, a set of 5,000 users began, and stayed, below
popularity. With five, what the sums say of a cohort adds at most 0.02 to what the counts say of one of its clients, as
area under the curve; with three 0.03 (`bench/exposure.py`: 1,000 clients of 15 of 1,000 items)."""


def works_in_groups(mechanism: str, given: Mapping[str, Any]) -> Works | None:
    """Return whether rounds of some sizes work over a mechanism with these parameters; None if it has no groups.

    Raises `ValidationError` for parameters that are wrong.
    """
    model = parameters_of(mechanism)
    own = None if model is None else model.model_validate(dict(given))
    return own.works if isinstance(own, GroupedParameters) else None


_DEGREES: Final = f"in privirec and privirec-k from {LEAST_GROUPS * FEWEST_IN_DEGREES:,} clients on {LEAST_GROUPS}"
SPLIT_BY_ITSELF: Final = f"1; from {SMALLEST_SPLIT:,} clients on {LEAST_GROUPS} or more; {_DEGREES}"
DEGREES_SPLIT_BY_ITSELF: Final = f"1; {_DEGREES}"
"""What new tasks get for `groups`, in words; docs/oneshot.md has the conditions."""


def is_split_by_itself(mechanism: str) -> bool:
    """Return whether the cohorts of a new task with this mechanism may be split by `groups_for`."""
    model = parameters_of(mechanism)
    return model is not None and issubclass(model, GroupedParameters) and model.free_for_clients


def degrees_are_split(recipe: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether of a task without a privacy block the sum of item degrees can be split into groups, and no other.

    parameters: all of the recipe's. Raises `ParameterError` for parameters that are wrong.
    """
    return recipe_entry(recipe).frozen and make_recipe(recipe, parameters).layout(1).in_groups is True


def groups_for(
    recipe: str, mechanism: str, given: Mapping[str, Any], schedule: Schedule, degrees_of: int | None = None
) -> int:
    """Return into how many groups the cohorts of a new task are split by itself, whose maker says nothing of groups.

    More than 1 where what that stops and what it says were measured, clients send the same, cohorts take turns, and
    groups are large (`default_groups`). given: the mechanism's parameters that its maker names. degrees_of: the number
    of items, where only the sum of their degrees is split (`degrees_are_split`): then over any mechanism with groups,
    since of the client's bytes in all sums few are more (`default_groups_of_degrees`).
    """
    if recipe not in IN_GROUPS or {"groups", "tau"} & given.keys():
        return 1
    if recipe_entry(recipe).frozen:
        works = None if degrees_of is None else works_in_groups(mechanism, given)
        if works is None or degrees_of is None:
            return 1
        return default_groups_of_degrees(degrees_of, schedule.cohort_size, schedule.min_clients, works)
    if not is_split_by_itself(mechanism) or schedule.sampling == "uniform":
        return 1
    return default_groups(schedule.cohort_size, schedule.min_clients)


class Advice(NamedTuple):
    """Sizes for a task of a factor recipe."""

    rounds: int
    """Sums in total, the first one, of item counts, included."""
    cohort_size: int


def advise(items: int, clients: int, interactions: int) -> Advice:
    """Return the sizes for data of so many items, clients and interactions in total.

    Counts are summed once: a second sum would hold the items of the clients that are not in the first, which may be
    few. So the cohort is large enough to count an item five times on average, 100 to 1,000 clients, or all. Then each
    item should be trained as a positive about 300 times: at least 100 sums, at most 1,000. Raises `ParameterError` for
    fewer than 3 clients, no item, or fewer interactions than clients.
    """
    if items < 1 or clients < 3 or interactions < clients:
        raise ParameterError(
            f"advice needs an item, 3 clients and an interaction of each, got {items} items, {clients} clients and "
            f"{interactions} interactions"
        )
    cohort = min(clients, 1000, max(100, ceil(_COUNTED * items * clients / interactions)))
    training = ceil(_VISITS * items * clients / (cohort * interactions))
    return Advice(1 + min(1000, max(100, training)), cohort)


SAFE: Final = "validated"
UNLIMITED: Final = "unlimited"
WHOLE: Final = "whole"
OF_CENTRAL: Final[Mapping[int | str, tuple[float, float]]] = {
    2: (0.37, 0.89),
    4: (0.51, 0.91),
    8: (0.65, 0.92),
    16: (0.75, 0.96),
    32: (0.80, 0.96),
    SAFE: (0.80, 0.98),
    UNLIMITED: (0.88, 1.0),
    WHOLE: (0.97, 1.01),
}
"""Vectors of each of three iterations of `privirec-k`, as many as are safe (the default), or 256 in five with
`reveal_gram`, or the whole matrix of counts (`privirec`), which needs it, too -> lowest and highest NDCG@20 over all
items, divided by that of the best central model without order.

On `MEASURED_ON` (bench/results/quality.json, test rows, three seeds).
"""
_FEWEST_COMPONENTS: Final = 12
"""Vectors of all iterations below which `colr` is advised: with 12 `privirec-k` ranked better, or at most 8 % lower."""

MEASURED_ON: Final = "the six sets on which settings were chosen (docs/which-recipe.md)"
PRIVIREC_RANKED: Final = f"ranked better than colr, fedmf and pfedclr without a start on {MEASURED_ON}"
STARTS_RANKED: Final = "ranked better than none for colr, fedmf and pfedclr when it had 256 vectors (docs/results.md)"
NEXT_RANKED: Final = "its worth on MovieLens-100K is in docs/results.md"
VECTORS_RANKED: Final = "docs/results.md has their worth on the six sets on which settings were chosen"
_SUMS_OF_RATINGS: Final = 100
_MOST_RANK: Final = 4


class Choice(NamedTuple):
    """What `choose` found."""

    recipe: str
    parameters: dict[str, Any]
    """Those that differ from the recipe's own defaults."""
    rounds: int
    """Sums in total."""
    cohort_size: int
    """Clients in a sum."""
    message_bytes: int
    """Of a client's longest message, at 4 bytes a value."""
    why: tuple[str, ...]
    """Sentences."""


def choose(
    items: int,
    clients: int,
    interactions: int,
    *,
    budget: int = MESSAGE_BUDGET,
    mechanism: str = "masked",
    ratings: bool = False,
    ordered: bool = False,
) -> Choice:
    """Return the recipe and the sizes for data of so many items, clients and interactions in total.

    ratings: whether ratings shall be predicted; otherwise items are ranked. ordered: see `parameters_for`. budget:
    bytes of a client's longest message, before a mechanism packs or encrypts it. Raises `ParameterError` for an unknown
    mechanism, a size that `advise` refuses, and if not even one value an item fits.
    """
    sizes, able = advise(items, clients, interactions), mechanism in carriers("privirec-k")
    mechanism_entry(mechanism)  # raises for an unknown name
    columns = budget // (4 * items)
    if not columns:
        raise ParameterError(
            f"one value for each of {items:,} items takes {4 * items:,} bytes, more than the budget of {budget:,} bytes"
        )
    if ratings:
        return _of_ratings(items, clients, interactions, columns)
    parameters, found, safe = spectrum_for(items, clients, interactions, budget, ordered)
    iterations = int(parameters["iterations"])
    if able and min(_FEWEST_COMPONENTS, items) <= found <= safe:
        sums = 2 + iterations + bool(parameters.get("next_vectors")) + ("validation" in parameters)
        why = (
            f"privirec-k {PRIVIREC_RANKED}, and it needs no training",
            f"{iterations} x {parameters['components']} vectors of {items:,} items: messages of {budget / 1e6:g} MB "
            f"would hold {columns} each, and {safe} equations are too few to solve for what one of {clients:,} "
            f"clients has; {VECTORS_RANKED}",
            *_of_next(parameters),
            f"all clients are in each of its {sums} sums: whoever is not online for one is not in the later ones",
        )
        length = 4 * items * int(parameters["components"])
        return Choice("privirec-k", parameters, sums, clients, length, why)
    rank = min(_MOST_RANK, columns)
    reason = (
        _why_not(found, safe, clients, budget)
        if able
        else (
            f"privirec-k {PRIVIREC_RANKED}, but needs the same clients in every sum, and {mechanism} sums have others"
        )
    )
    reasons = (
        reason,
        f"colr sends {rank} values an item, whatever the length of its factors, from {sizes.cohort_size} clients a sum",
        *_of_cohorts(sizes.cohort_size, clients),
        f"it starts from popularity and is trained from there; a start from a privirec-k task {STARTS_RANKED}",
    )
    parameters = parameters_for("colr", {"items": items, "rank": rank})
    return Choice("colr", parameters, sizes.rounds, sizes.cohort_size, 4 * items * rank, reasons)


def _of_cohorts(cohort: int, clients: int) -> tuple[str, ...]:
    """Return what sums of training over some of the clients say, and by which choice they say less."""
    if cohort >= clients:
        return ()
    return (
        f"cohorts of at most {cohort} of {clients} clients take turns, the same ones in every turn, so that their sums "
        "say what is true of a cohort; with -s sampling=uniform, which draws them anew in each round, they would say "
        "much of what each client has (docs/security.md#what-sums-give-away)",
    )


def _of_next(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    count = parameters.get("next_vectors", 0)
    if not count:
        return ()
    values = next_length(count)
    return (f"one sum of {values:,} values says what follows what, for members whose items have times; {NEXT_RANKED}",)


def spectrum_for(
    items: int, clients: int, interactions: int, budget: int, ordered: bool = False
) -> tuple[dict[str, Any], int, int]:
    """Return the parameters of `privirec-k` for such data, how many vectors it finds, and how many are safe.

    It finds more than are safe only where one for each iteration is too many. budget: see `components_within`. ordered:
    see `parameters_for`.
    """
    mean_items = interactions / clients
    parameters = parameters_for(
        "privirec-k", {"items": items}, budget=budget, clients=clients, mean_items=mean_items, ordered=ordered
    )
    iterations = int(parameters["iterations"])
    entries = np.array(interactions**2 / (clients * items))  # of the lists of an item's owners, on average
    safe = min(most_equations(items, clients), int(equations_within(entries, items)))
    return parameters, min(iterations * int(parameters["components"]), max(iterations, safe)), safe


def _why_not(found: int, safe: int, clients: int, budget: int) -> str:
    """Return why `privirec-k` is not advised, where its mechanism could carry it."""
    if found > safe or safe < _FEWEST_COMPONENTS:
        vectors = "1 vector" if safe == 1 else f"{safe} vectors"
        return (
            f"sums of privirec-k over {clients:,} clients may have {vectors}, or they give single clients' items "
            f"away, and with fewer than {_FEWEST_COMPONENTS} colr ranked as well or better; but to those who know "
            "some of a client's items its sums over so few clients tell nearly all others: gather more, or add a "
            "privacy block"
        )
    return (
        f"{found} vectors of privirec-k fit in messages of {budget / 1e6:g} MB; with fewer than {_FEWEST_COMPONENTS} "
        "colr ranked as well or better on some of the data sets of docs/results.md"
    )


_DENSE: Final = 1000
"""Ratings per item from which items are known well, so that users' factors may be longer: ML-1M has 190."""


def settings_of_ratings(items: int, ratings: int) -> dict[str, float]:
    """Return the parameters of `rfrec` that depend on how many ratings an item has; chosen on validation rows."""
    return {"user_penalty": 0.7} if ratings >= _DENSE * items else {}


def _of_ratings(items: int, clients: int, interactions: int, columns: int) -> Choice:
    given = {"items": items, "dim": min(20, columns), **settings_of_ratings(items, interactions)}
    parameters = parameters_for("rfrec", given)
    why = (
        "rfrec is the recipe that predicts ratings",
        "each device keeps a model of its own near the average of all, which the sums compute",
    )
    rounds = int(parameters.get("count_sums", 1)) + _SUMS_OF_RATINGS
    return Choice("rfrec", parameters, rounds, clients, 4 * items * int(parameters["dim"]), why)
