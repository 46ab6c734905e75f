"""What the noise of a privacy block leaves of a recipe, from the sizes of a task alone: no data are looked at.

A plan is computed from the very `Private` recipe that a task would have, so clip, multiplier and deviation are exact.
What is left of the signal is a rule of thumb:

- **Counts** (item popularity): how many items have a count above twice the deviation of the noise.
- **PriviRec**: a component is visible if its eigenvalue is above the noise. For an iteration that is the spectral norm
  of items x k independent values, about sd (sqrt(items) + sqrt(k)) (Vershynin, "High-Dimensional Probability", theorem
  4.4.5); for the Gram matrix 1.3 sd sqrt(items), somewhat above the level from which an eigenvector can be told from
  noise (Benaych-Georges and Nadakuditi, Advances in Mathematics 2011). The eigenvalues of X^T X, X with one row of
  length 1 for each of n users, add up to n. They are modelled as n / (j^s H), j = 1, 2, ..., H the sum of j^-s over all
  items; s = 1 where a user has 1 % of the items or more, 0.6 at 0.1 % or less, and linear in the logarithm between. Of
  ML-1M and Gowalla each of the first 64 is within a factor of 2.5. The counts of items are modelled likewise, with the
  mean items of a user in place of 1.
- **Updates** (`colr`, `fedmf`, `arrays`): the L2 norm of the noise in the mean update against the bound on an update,
  over all rounds: updates add up, noise by its root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log10, pow, sqrt
from typing import Any, Final, Literal

from protocols.advice import MESSAGE_BUDGET, NOISY, Choice, parameters_for
from protocols.errors import ParameterError
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import NoiseTerms, epsilon_of
from protocols.recipes.private import FAILED_SUMS, Private
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.registry import recipe_entry, recipes
from protocols.task_terms import carriers

_INTERACTIONS: Final = 50  # items of a user, where nothing better is known

_ROUNDS: Final = 100  # rounds of a task that trains
_COHORT, _SHARE = 1000, 0.01
"""Planned cohort of a task that trains: so many clients, or this share of the users if that is more."""
_FLOOR: Final = 0.8  # share of a cohort that the smallest round has

_FEW, _MANY = 5, 60
"""Visible components below which popularity is all that is left, and from which most of the rest is: 0.9 of NDCG@20."""
_LOUD, _QUIET = 0.05, 0.02
"""Noise of the mean update, in units of the bound, above which it drowns updates, and up to which it hardly matters."""
_FEW_COUNTS, _MANY_COUNTS = 50, 150
"""Visible counts from which popularity is left, and from which it is nearly what it is without noise.

Components and counts follow from the measurements of `bench.experiments.privacy` on ML-1M and Gowalla
(docs/results.md), in which updates with more noise than this never ranked better than popularity.
"""

_CLEARLY: Final = 1.3  # share by which an eigenvalue of a Gram matrix is clearly above the level of the noise

Left = Literal["nothing", "popularity", "part", "most"]
"""What noise leaves: not even popularity; popularity alone; a part of what is personal; most of it."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a task."""

    rounds: int
    cohort: int
    min_clients: int
    sums: int
    """Those that one client contributes to, at most."""
    all_users: bool
    """Whether all are in each sum."""


def sizes_for(
    recipe: str, users: int, *, rounds: int | None = None, cohort: int | None = None, min_clients: int | None = None
) -> Sizes:
    """Return the sizes of a task with so many users; what is given stays.

    Where a sum has some of the clients, `sums` is what one is asked for whose cohort takes turns
    (`protocols.cohorts`), after a first sum that asks each client once at most. It has room for `FAILED_SUMS` that
    fail. Raises `ParameterError` for sizes that contradict each other.
    """
    if users < 2:
        raise ParameterError(f"a plan needs at least 2 users, got {users}")
    spectrum = NOISY.get(recipe)
    cohort = cohort or (users if spectrum else min(users, max(_COHORT, floor(_SHARE * users))))
    rounds = rounds or (max(1, spectrum["iterations"]) if spectrum else 1 + _ROUNDS)  # one sum is of the Gram matrix
    if cohort > users:
        raise ParameterError(f"a cohort of {cohort:,} clients is larger than the {users:,} users")
    floor_ = min_clients or max(2, floor(_FLOOR * cohort))
    if floor_ > cohort:
        raise ParameterError(f"min_clients {floor_:,} is larger than the cohort of {cohort:,}: no round could complete")
    # the members of a frozen cohort are in all sums
    sums = rounds if spectrum or cohort == users else 1 + ceil((rounds - 1) * cohort / users)
    return Sizes(rounds, cohort, floor_, sums + FAILED_SUMS, cohort == users)


@dataclass(frozen=True)
class SumOutlook:
    """One kind of sum under noise."""

    what: Literal["counts", "iteration", "gram", "update"]
    """What is summed."""
    values: int
    """Of the sum."""
    bound: float
    """L2 bound on a contribution."""
    deviation: float
    """Of the noise in a value of the sum of a whole cohort, in the unit of the bound."""
    signal: float
    """Of counts, the items whose count is above twice the noise; of an iteration or a Gram matrix, the components above
    the noise; of updates, the noise in the mean update as a share of the bound, over all rounds."""
    in_words: str
    """The signal for people."""
    most: int = 0
    """The largest signal that counts and components can have."""
    level: float = 0.0
    """The smallest eigenvalue above the noise, 0.0 where there is none."""


@dataclass(frozen=True)
class NoiseOutlook:
    """What the noise leaves of a recipe."""

    recipe: str
    sizes: Sizes
    honest: int
    epsilon: float
    """Cost of the sums of one client, against everybody, also those who know who took part."""
    delta: float
    multiplier: float
    """Deviation of the noise of `honest` clients in units of the L2 bound."""
    sums: tuple[SumOutlook, ...]
    left: Left
    enough_users: int | None
    """From which most is left, with the same share of them in a sum; None where it is."""
    text: str
    """One sentence."""


def outlook(
    recipe: str,
    users: int,
    items: int,
    privacy: Privacy,
    sizes: Sizes,
    *,
    interactions: int = _INTERACTIONS,
    parameters: Mapping[str, Any] | None = None,
) -> NoiseOutlook:
    """Return what a task with these sizes costs, and what its noise leaves.

    users: in the population. interactions: mean items of a user. parameters: of the recipe, where they are not the
    planned ones. Raises `ParameterError` for a recipe that is not planned, and noise that cannot be drawn.
    """
    given = parameters_for_noise(recipe, items) if parameters is None else parameters
    return outlook_of(_planned(recipe, given, privacy, sizes), users, items, sizes, interactions)


def _planned(recipe: str, parameters: Mapping[str, Any], privacy: Privacy, sizes: Sizes) -> Private:
    of_block = (privacy.epsilon, privacy.delta, sizes.sums, privacy.corrupt, sizes.cohort, sizes.min_clients)
    return Private(make_recipe(recipe, parameters, noisy=True), privacy, NoiseTerms.of(*of_block))


def outlook_of(made: Private, users: int, items: int, sizes: Sizes, interactions: int = _INTERACTIONS) -> NoiseOutlook:
    """Return what the noise of a task leaves, whose recipe is `made`; see `outlook` for the arguments."""
    recipe, privacy, terms = made.name, made.privacy, made.terms
    inner = made.inner
    summed = [
        one
        for one in made.sum_kinds()
        if not (isinstance(inner, PriviRecK) and inner.sum_of(one) in ("next", "validation"))
    ]
    first, last = summed[0], made.main_sum if made.main_sum > 1 else summed[-1]
    kinds = tuple(_sum_outlook(made, index, sizes, items, interactions) for index in sorted({first, last}))
    main = kinds[-1]
    left = _left(main, kinds[0])
    curve = made.noise(made.main_sum).curve(terms.honest)
    cost = epsilon_of(sizes.sums * curve, privacy.delta)
    enough = None if left == "most" else _enough(main, kinds[0], users, items, interactions, sizes)
    text = f"{recipe} with {users:,} users at epsilon {privacy.epsilon:g}: {_WORDS[left]} ({main.in_words})"
    if left in ("nothing", "popularity") and kinds[0].what == "counts":
        text += f"; {kinds[0].in_words}"
    if enough is not None:
        text += f"; from about {enough:,} users most of what it learns without noise is left"
    return NoiseOutlook(recipe, sizes, terms.honest, cost, privacy.delta, made.multiplier, kinds, left, enough, text)


_WORDS: Final[Mapping[Left, str]] = {
    "nothing": "not even popularity is above the noise",
    "popularity": "popularity is all that is left",
    "part": "popularity and a part of what is personal are left",
    "most": "most of what it learns without noise is left",
}


def _sum_outlook(made: Private, index: int, sizes: Sizes, items: int, interactions: int) -> SumOutlook:
    inner, noise = made.inner, made.noise(index)
    own, values = inner.sensitivity(index), inner.layout(index).length
    if own.counts:
        deviation = noise.deviation(sizes.cohort)
        counted = sizes.cohort * min(interactions, made.privacy.most_items, items)
        above = _above(2 * deviation, counted, items, items, interactions)
        words = f"the counts of about {_rounded(above):,} of {items:,} items are above the noise"
        return SumOutlook("counts", values, noise.bound, deviation, above, words, items)
    bound = made.privacy.clip if own.l2 is None else own.l2
    deviation = noise.deviation(sizes.cohort) * bound / made.l2_bound(index)
    if isinstance(made.inner, PriviRecK):
        kind: Literal["iteration", "gram"] = "gram" if made.inner.sum_of(index) == "gram" else "iteration"
        columns = made.inner.parameters.columns
        level = deviation * (_CLEARLY * sqrt(items) if kind == "gram" else sqrt(items) + sqrt(columns))
        above = _above(level, sizes.cohort, items, columns, interactions)
        words = f"{above} of {columns} components are above the noise"
        return SumOutlook(kind, values, bound, deviation, above, words, columns, level)
    trained = max(1, sizes.rounds - (made.main_sum - 1))
    noisy = deviation * sqrt(values / trained) / sizes.cohort
    words = f"over all rounds the noise in the mean update is {_figure(noisy / bound)} of its bound"
    return SumOutlook("update", values, bound, deviation, noisy / bound, words)


_ADVISED: Final = ("privirec", "privirec-k", "colr")
"""The best first, where noise leaves the same of them; the last one where a mechanism carries no other."""
_ORDER: Final = ("nothing", "popularity", "part", "most")


def choose_noisy(
    items: int,
    users: int,
    interactions: int,
    privacy: Privacy,
    *,
    budget: int = MESSAGE_BUDGET,
    mechanism: str = "masked",
) -> tuple[Choice, NoiseOutlook]:
    """Return the recipe of which the noise of a privacy block leaves most, and what it leaves of it.

    interactions: of all users together. budget: bytes of a client's longest message, at 4 bytes a value. Raises
    `ParameterError` if no recipe fits mechanism, budget and noise.
    """
    found: list[tuple[NoiseOutlook, Private]] = []
    missing: dict[str, None] = {}  # in order, each once
    for name in _ADVISED:
        try:
            if mechanism not in carriers(name, "noise"):
                raise ParameterError(f"{mechanism} sums cannot carry {name} with noise")
            sizes = sizes_for(name, users)
            made = _planned(name, parameters_for_noise(name, items, budget), privacy, sizes)
            if (length := _message_bytes(made)) > budget:
                raise ParameterError(f"{name} has messages of {length / 1e6:.3g} MB")
            found.append((outlook_of(made, users, items, sizes, max(1, interactions // users)), made))
        except ParameterError as error:
            missing[str(error)] = None
    if not found:
        raise ParameterError(f"no recipe can be trained with this privacy block: {'; '.join(missing)}")
    able = [one for one in found if one[0].recipe in NOISY] or found  # no other beat popularity yet
    best, made = max(able, key=lambda one: _ORDER.index(one[0].left))  # the first of equals
    chosen = parameters_for_noise(best.recipe, items, budget)
    estimated = "what noise leaves is estimated from the sizes alone (docs/privacy.md)"
    why = (best.text, *(one.text for one, _ in found if one is not best), *missing, estimated)
    return Choice(best.recipe, chosen, best.sizes.rounds, best.sizes.cohort, _message_bytes(made), why), best


def _message_bytes(made: Private) -> int:
    return 4 * max(made.layout(sum_index).length for sum_index in made.sum_kinds())


def noisy_recipes() -> list[str]:
    """Return the names of the recipes that are planned, in the order in which `choose_noisy` prefers them."""
    planned = [name for name in recipes() if recipe_entry(name).defaults.planned is not None]
    return [*_ADVISED, *(name for name in planned if name not in _ADVISED)]


def parameters_for_noise(recipe: str, items: int, budget: int = MESSAGE_BUDGET) -> dict[str, Any]:
    """Return the parameters of a planned task with a privacy block: the recommended ones, where there are any.

    Raises `ParameterError` for a recipe that is not planned.
    """
    planned = recipe_entry(recipe).defaults.planned
    if planned is None:
        raise ParameterError(f"no plan for recipe {recipe!r}: choose one of {', '.join(noisy_recipes())}")
    return parameters_for(recipe, planned(items), noisy=True, budget=budget)


def modelled_eigenvalue(j: int, clients: int, items: int, interactions: int) -> float:
    """Return eigenvalue j = 1, 2, ... of so many clients' rows of length 1, by the model of the module's docstring."""
    slope = _slope(items, interactions)
    return clients / (pow(j, slope) * _weights(items, slope))


def _above(level: float, total: float, items: int, most: int, interactions: int) -> int:
    """Return how many of the first `most` modelled eigenvalues, or counts, are above a level. total: of all."""
    slope = _slope(items, interactions)
    return min(most, int((total / (_weights(items, slope) * level)) ** (1 / slope)))


def _slope(items: int, interactions: int) -> float:
    """Return s of the eigenvalues: from 0.6 for users with 0.1 % of the items to 1 for users with 1 %."""
    return 0.6 + 0.4 * min(1.0, max(0.0, log10(interactions / items) + 3))


@lru_cache(maxsize=64)
def _weights(items: int, slope: float) -> float:
    return float(sum(float(j) ** -slope for j in range(1, items + 1)))


def _left(main: SumOutlook, first: SumOutlook) -> Left:
    if main.level:
        if main.signal >= min(_FEW, main.most):
            return "most" if main.signal >= min(_MANY, main.most) else "part"
        return "popularity" if main.signal or _counted(first, _FEW_COUNTS) else "nothing"
    counts = first.what == "counts"
    if main.signal <= _QUIET and (not counts or _counted(first, _MANY_COUNTS)):
        return "most"
    if main.signal <= _LOUD and (not counts or _counted(first, _FEW_COUNTS)):
        return "part"
    return "popularity" if _counted(first, _FEW_COUNTS) else "nothing"


def _counted(first: SumOutlook, least: int) -> bool:
    """Whether at least so many counts, or all of them, are above the noise."""
    return first.what == "counts" and first.signal >= min(least, first.most)


def _enough(main: SumOutlook, first: SumOutlook, users: int, items: int, interactions: int, sizes: Sizes) -> int:
    """Return from how many users most is left, to two digits, with the same share of them in a sum.

    The noise in a sum stays as it is then, and what it is compared with grows with the number of users.
    """
    if main.level:
        found = users * main.level / modelled_eigenvalue(min(_MANY, main.most), sizes.cohort, items, interactions)
    else:
        found = users * main.signal / _QUIET
        if first.what == "counts" and not _counted(first, _MANY_COUNTS):
            share = (min(_MANY_COUNTS, first.most) + 1) / max(1.0, first.signal)
            found = max(found, users * pow(share, _slope(items, interactions)))
    return _rounded(found)


def _rounded(value: float) -> int:
    """Return a number with its first two digits, rounded up."""
    digits = 10 ** max(0, floor(log10(value)) - 1) if value >= 1 else 1
    return ceil(value / digits) * digits


def _figure(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"
