"""Do a `privirec-k` task's sums link the pairs of items that one member alone has to this member? Beside chance.

    .venv/bin/python -m bench.experiments.linked [--sizes 400x1682 ...] [--seeds 20] [--skewed] [--json FILE]

For a pair of items that one member alone has, the value of P says how many items this member has. A member counts as
linked if the model says it of one of its pairs at least: among thousands of pairs, some do by chance. `chance` is the
same with the values of all such pairs in random order, which is what values of that size say of members by themselves.
Both are told which pairs one member alone has; sums do not say it.

| figure of `<members>x<items>` | meaning |
|---|---|
| `linked`, `chance` | share of the members, mean over the populations |
| `excess`, `error` | mean of `linked` - `chance`, and the half of its 95 % interval (normal) |
| `told` | share of the pairs of items of which the model says rightly whether anybody has both |
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say, write_figures
from bench.exposure import has_of
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from protocols.advice import parameters_for
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.state import state_as

SIZES: Final = ("12x600", "100x800", "400x600", "400x1682")
_ITEMS: Final = 50  # of a member, on average
_PRESENT: Final = 0.02  # a larger value says that somebody has both items
_SPREAD: Final = 0.9  # of the logarithm of a member's number of items, in skewed populations


def population(members: int, items: int, seed: int, skewed: bool) -> Interactions:
    """Return a population whose members have 50 items on average; skewed: of very different numbers, 10 at least."""
    if not skewed:
        return synthetic(SyntheticConfig(users=members, items=items, positives=_ITEMS, skew=0.8, seed=seed))
    draws, weights = np.random.default_rng(seed), np.arange(1, items + 1) ** -0.8
    sizes = draws.lognormal(0.0, _SPREAD, members)
    sizes = np.clip(sizes / sizes.mean() * _ITEMS, 10, items // 2).astype(int)
    lists = [draws.choice(items, size, replace=False, p=weights / weights.sum()) for size in sizes]
    return Interactions.from_pairs(np.repeat(np.arange(members), sizes), np.concatenate(lists), n_users=members,
                                   n_items=items)  # fmt: skip


def linked(train: Interactions, given: dict[str, Any]) -> tuple[float, float, float]:
    """Return `told`, `linked` and `chance` of a task with these parameters, the others as advised."""
    members, items = train.active_users.size, train.n_items
    parameters = parameters_for("privirec-k", {"items": items, **given}, clients=members)
    federation = Federation(train, "privirec-k", parameters, cohort_size=members, masks=False)
    assert isinstance(federation.recipe, PriviRecK)
    list(federation.run(federation.recipe.steps))
    state, b = state_as(federation.state, PriviRecState), federation.recipe.parameters.degree_exponent
    has, scale = has_of(train), np.maximum(train.item_degrees(), 1.0) ** b
    found = np.zeros((items, items))
    if state.basis.size:  # a task over too few members ends before it has vectors
        found = (state.basis * state.singular_values.astype(float) ** 2) @ state.basis.T * np.outer(scale, scale)
    together = has.T.astype(np.float32) @ has.astype(np.float32)
    pairs = np.triu(np.ones((items, items), bool), 1)
    told = ((found > _PRESENT) == (together > 0))[pairs].mean()
    alone = pairs & (together == 1)
    sizes = np.rint(np.maximum(found, 1e-9) ** -2.0)  # the value of a pair that one member has is n^-2a, a = 1/4
    shuffled = np.zeros_like(sizes)
    shuffled[alone] = np.random.default_rng(0).permutation(sizes[alone])
    return float(told), _share(has, alone, sizes), _share(has, alone, shuffled)


def _share(has: NDArray[np.bool_], alone: NDArray[np.bool_], sizes: NDArray[np.float64]) -> float:
    """Return the share of the members of whom one pair says their number of items; alone, sizes: (items, items)."""
    found = 0
    for own in map(np.flatnonzero, has):
        block = np.ix_(own, own)
        found += bool((sizes[block][alone[block]] == own.size).any())
    return found / len(has)


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for size in options.sizes:
        say(size)
        members, items = map(int, size.split("x"))
        runs = [linked(population(members, items, seed, options.skewed), {}) for seed in range(options.seeds)]
        told, known, chance = np.array(runs).T
        more = known - chance
        own = {"told": told.mean(), "linked": known.mean(), "chance": chance.mean(), "excess": more.mean()}
        own["error"] = 1.96 * more.std(ddof=1) / len(runs) ** 0.5 if len(runs) > 1 else float("nan")
        figures |= {f"{size}.{key}": float(value) for key, value in own.items()}
        print(size, ", ".join(f"{key} {value:.3f}" for key, value in own.items()), flush=True)
    return figures


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="members x items (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="populations of each size (default: %(default)s)")
    parser.add_argument("--skewed", action="store_true", help="members have very different numbers of items")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sizes, chosen.seeds = SIZES[:2], 2
    write_figures(chosen.json, measure(chosen))
