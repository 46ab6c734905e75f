"""Which recipe, sizes and parameters suit data of a size: chosen on validation rows (bench/experiments/quality.py).

What was measured is in docs/results.md. A stored task means what its parameters say, and a parameter that it leaves
out keeps the paper's value. Recommended values are therefore written into a task's parameters when the task is made,
where clients read and check them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from protocols.errors import ParameterError
from protocols.privacy.equations import equations_within, most_equations
from protocols.recipes.next_item import next_equations, next_length
from protocols.sums.groups import GroupedParameters, Works
from protocols.sums.registry import mechanism_entry, parameters_of
from protocols.task_terms import carriers

Variant = Literal["recommended", "paper"]
"""Which values a new task has where its maker names none: the recommended ones, or those of the paper."""

_FACTORS: Final[Mapping[str, Any]] = {"item_bias": "counts", "count_sums": 1, "batch_size": 32, "weight_decay": 0.005}

MESSAGE_BUDGET: Final = 10_000_000
"""Bytes of a client's longest message of a `privirec-k` task, unless its maker says otherwise; 4 bytes a value."""
MOST_COMPONENTS: Final = 256
MOST_FACTORS: Final = 128  # factors of a started task at most: the length that was measured (docs/recipes.md)

_ROWS: Final[Mapping[str, Any]] = {"user_exponent": 0.25, "item_exponent": 0.3125}
_KRYLOV: Final[Mapping[str, Any]] = {**_ROWS, "krylov": True, "iterations": 3}
"""Three iterations with new directions each: of as many equations two or four ranked worse (validation rows)."""
_LONG_LISTS: Final = 20.0
_OF_SHORT_LISTS: Final[Mapping[str, Any]] = {"item_exponent": 0.4}
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
_SPECTRUM: Final[Mapping[str, Any]] = {**_ROWS, "rayleigh_ritz": True}

RECOMMENDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "colr": {**_FACTORS, "clip": 1.3, "row_clip": 0.4},
    "fedmf": {**_FACTORS, "clip": 0.8, "row_clip": 0.7, "server_rate": 4.0},
    "privirec": _SPECTRUM,
    "privirec-k": _KRYLOV,
    "rfrec": {"item_bias": "means", "learning_rate": 0.03, "penalty": 0.3, "user_penalty": 3.0},
    "scolr": _FACTORS,
}
"""Recipe -> its recommended parameters. A recipe that is not listed has its paper's.

`clip` and `row_clip` are a little above what 99 of 100 updates reach in the round where that is most, of the first
twelve on validation rows of MovieLens-100K, FilmTrust and a sample of Gowalla, and the first eight of MovieLens-1M, so
that a client that lies adds little more than they do. Largest value 1.07, 0.50, 0.44 and 1.28 (colr), 0.74, 0.58, 0.48
and 0.73 (fedmf); root mean square of the rows' norms 0.36, 0.18, 0.18 and 0.38, 0.62, 0.48, 0.46 and 0.60.
"""

_NOISY: Final[Mapping[str, Any]] = {"user_exponent": 0.5, "item_exponent": 0.0, "degrees": False}
NOISY: Final[Mapping[str, Mapping[str, Any]]] = {
    "privirec": {**_NOISY, "iterations": 0},
    "privirec-k": {**_NOISY, "iterations": 3, "krylov": False, "rayleigh_ritz": True},
}
"""Recipe -> what differs in tasks with a privacy block: rows of length 1, and few sums, on which the noise depends.

Rows are not scaled by the items' degrees, so these need no sum. A start from the vectors of an earlier task makes one
iteration better than three: docs/results.md.

The noise in a value does not depend on the number of vectors, and with more of them three iterations find the leading
ones: 256 vectors ranked better than 64 at every epsilon and number of users. Chosen on validation rows.
"""

_TOUCHED: Final[Mapping[str, Any]] = {"normalise": "touched", "reveal_touched": True}

_PAPER: Final[Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("colr", "fedmf", "scolr", "svd", "topk"), _TOUCHED),
    "fair": {"max_interactions": 10_000, "reveal_weights": True},
    "pfedclr": {"max_interactions": 1000, "reveal_weights": True},
    "privirec-k": {"min_owners": 1, "reveal_gram": True},
}
"""Recipe -> the parameters of its paper or its released code that reveal constants of clients, so are not defaults."""

_STARTED: Final[Mapping[str, Any]] = {"item_bias": "counts", "learning_rate": 0.0001, "start_weight": 32.0}

STARTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "colr": _STARTED,
    "fedmf": {**_STARTED, "server_rate": 1.0},
    "pfedclr": {
        "item_bias": "counts",
        "start_weight": 32.0,
        "learning_rate": 0.001,
        "buffer_learning_rate": 0.0005,
        "epochs": 2,
    },
    "scolr": _STARTED,
}
"""Recipe -> what a task has besides, or instead, if it starts from a spectrum.

The steps are small because user factors are long (`start_weight`): docs/recipes.md has what was measured.
"""


def components_within(items: int, budget: int = MESSAGE_BUDGET) -> int:
    """Return how many vectors of so many items fit in `budget` bytes, at 4 bytes a value: 1 to 256, at most `items`.

    More than 256 were not better on validation rows of sets with up to 4,000 items (docs/results.md).
    """
    return max(1, min(MOST_COMPONENTS, items, budget // (4 * items)))


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
    if variant == "paper":
        without_weights = given.get("noise_scale") is not None  # noise does not hide a weight
        return dict(given) if without_weights else {**_PAPER.get(recipe, {}), **given}
    if given.get("item_bias") == "none" or given.get("variant") == "paper" or given.get("ldp") is not None:
        return dict(given)
    more = STARTED.get(recipe, {}) if started else {}
    chosen = {**RECOMMENDED.get(recipe, {}), **(NOISY.get(recipe, {}) if noisy else {}), **more}
    if noisy and started and recipe == "privirec-k":
        chosen["iterations"] = 1
    if any(given.get(name) for name in ("rayleigh_ritz", "tolerance", "oversampling")):
        chosen.pop("krylov", None)
    items = given.get("items")
    if isinstance(items, int) and items > 0:
        within = components_within(items, budget)
        if recipe in ("privirec", "privirec-k"):
            safe = most_equations(items, clients or items)
            if recipe == "privirec-k" and ordered and not (noisy or started or given.get("tolerance")):
                chosen["next_vectors"] = _next_vectors(items, safe, clients or items, budget)
            if recipe == "privirec-k" and not (noisy or given.get("reveal_gram")):
                iterations, following = {**chosen, **given}["iterations"], {**chosen, **given}.get("next_vectors", 0)
                within = min(within, max(0, safe - next_equations(following, items)) // max(1, iterations))
            chosen["components"] = max(1, within)
            if chosen.get("krylov") and mean_items is not None and mean_items < _LONG_LISTS:
                chosen |= _OF_SHORT_LISTS
            if {**chosen, **given}.get("krylov"):
                share = _VALIDATION if mean_items is None else round(min(1.0, mean_items / _OF_INTERACTIONS), 2)
                if clients is None or share * clients >= _FEWEST_VALIDATING:
                    chosen["validation"] = share
        elif started:
            chosen["dim"] = min(MOST_FACTORS, within, vectors)
    if given.get("item_exponent"):
        chosen.pop("degrees", None)  # such rows are scaled by degrees
    return {**chosen, **given}


def _next_vectors(items: int, safe: int, clients: int, budget: int) -> int:
    """Return the vectors of a sum of next items that are recommended; 0 for none. safe: equations for each item."""
    for count in _NEXT_VECTORS:
        most = min(_TRACED * clients, budget // 4)
        if 4 * next_equations(count, items) <= safe and next_length(count) <= most:
            return count
    return 0


_VISITS: Final = 300
"""Positives per item that the advised rounds train on: with fewer, curves on validation rows were still rising."""


_COUNTED: Final = 5
"""Times that an item is counted on average. With fewer than three, a set of 5,000 users began, and stayed, below
popularity. With five, what the sums say of a cohort adds at most 0.02 to what the counts say of one of its clients, as
area under the curve; with three 0.03 (`bench/exposure.py`: 1,000 clients of 15 of 1,000 items)."""


IN_GROUPS: Final = frozenset({"colr", "fedmf"})
"""Recipes of which it was measured what groups stop (`bench/robust.py`) and what they say (`bench/exposure.py`)."""


def works_in_groups(mechanism: str, given: Mapping[str, Any]) -> Works | None:
    """Return whether rounds of some sizes work over a mechanism with these parameters; None if it has no groups.

    Raises `ValidationError` for parameters that are wrong.
    """
    model = parameters_of(mechanism)
    own = None if model is None else model.model_validate(dict(given))
    return own.works if isinstance(own, GroupedParameters) else None


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
OF_CENTRAL: Final[Mapping[int | str, tuple[float, float]]] = {
    2: (0.34, 0.88),
    4: (0.47, 0.91),
    8: (0.63, 0.92),
    16: (0.74, 0.95),
    32: (0.79, 0.97),
    SAFE: (0.79, 0.98),
    UNLIMITED: (0.88, 1.0),
}
"""Vectors of each of three iterations of `privirec-k`, as many as are safe (the default), or 256 in five with
`reveal_gram` -> lowest and highest NDCG@20 over all items, divided by that of the best central model without order.

On the data sets of bench/experiments/quality.py (bench/results/quality.json, test rows, three seeds).
"""
_FEWEST_COMPONENTS: Final = 12
"""Vectors of all iterations below which `colr` is advised: with 12 `privirec-k` ranked better, or at most 8 % lower."""

_TABLE: Final = "docs/which-recipe.md"
PRIVIREC_RANKED: Final = f"ranked better than colr, fedmf and pfedclr without a start on the six data sets of {_TABLE}"
STARTS_RANKED: Final = "ranked better than none for colr, fedmf and pfedclr when it had 256 vectors (docs/results.md)"
NEXT_RANKED: Final = "its worth on MovieLens-100K is in docs/results.md"
VECTORS_RANKED: Final = "docs/results.md has their worth on six data sets"
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
