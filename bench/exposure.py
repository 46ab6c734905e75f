"""What the sums of advised tasks give away by themselves: honest parties, no privacy block, solvers that know all sums.

    .venv/bin/python -m bench.exposure --data-dir DATA [--quick] [--json FILE]

`<set>.<clients>.<recipe>.*`, for made-up data with short and with long lists and for MovieLens-100K, over 12, 100 and
1,000 clients (943 of MovieLens), with the sizes and parameters that `task advise` gives, or would give for the recipe.

| figure | meaning |
|---|---|
| `read` | share of the clients whose list of items a solver finds exactly |
| `auc` | area under the curve of a client's items among all others, by the sums and the counts, weighted as is best |
| `popularity` | the same by the counts alone |
| `equations`, `safe` | of `privirec-k`: equations for each item in the sums, and how many the bound allows |

*Sums over the same rows* (`privirec-k`): Y = P Q with known Q. For each item, those with the fewest entries for each
equation first, the row of P follows from least squares under x >= 0 (Lawson and Hanson), or has the least sum among all
x >= 0 (linear programming), both of which find sparse rows from few equations. A row that is right
everywhere holds the lists of the item's owners; an owner whose number of items no other owner has counts as read. The
sums are the same for all clients, so nothing in them says whose a list is. `unlimited.*` repeats this with two, four
and eight times as many vectors, which tasks with `reveal_gram` may have: there is something to find.

*Sums of training*: who is in each sum is known. Ridge regression of the size and of the largest values of each item's
row on who was in the sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls
from scipy.stats import rankdata

from bench._report import Figure, arguments, say
from bench.figures import run
from bench.privacy_attacks import watched
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from protocols.advice import advise, parameters_for
from protocols.privacy.equations import EQUATIONS, most_equations
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as

Floats = NDArray[np.float64]
CLIENTS: Final = (12, 100, 1000)
SETS: Final = ("short", "long", "ml-100k")
TRAINED: Final = ("colr", "fedmf", "scolr", "pfedclr", "rfrec")
_SHORT: Final = {"items": 1000, "positives": 15}
_LONG: Final = {"items": 600, "positives": 50}
_ROWS: Final = 60
"""Rows that are solved for, of those with the fewest entries for each equation: the first that can be found."""
_SECONDS: Final = 20.0  # for one linear programme, which takes less than one where it finds a row


def data_of(name: str, clients: int, data_dir: Path | None) -> Interactions:
    """Return the interactions of so many clients, or of all if there are fewer."""
    if name == "ml-100k":
        found = load_interactions(name, data_dir)
        chosen = np.random.default_rng(0).permutation(found.active_users)[:clients]
        return found.where(np.isin(found.users, chosen))
    sizes = _SHORT if name == "short" else _LONG
    return synthetic(SyntheticConfig(users=clients, skew=0.8, seed=1, **sizes))


def has_of(train: Interactions) -> NDArray[np.bool_]:
    """Return which client has which item, bool (clients, items)."""
    found = np.zeros((train.n_users, train.n_items), bool)
    found[train.users, train.items] = True
    return found[train.active_users]


# --- sums over the same rows ------------------------------------------------------------------------------------------


def spectral(train: Interactions, times: int = 0) -> dict[str, Figure]:
    """Return the figures of a `privirec-k` task; times: 0 for the advised one, else so many times the safe vectors."""
    clients, items = train.active_users.size, train.n_items
    given: dict[str, Any] = {"items": items, "validation": 0.0}  # a sum of validation is no equation
    if times:
        most = times * most_equations(items, clients) // 3
        given |= {"components": max(1, min(most, items // 3)), "reveal_gram": True}
    parameters = parameters_for("privirec-k", given, clients=clients, mean_items=train.size / clients)
    made = Federation(train, "privirec-k", parameters, cohort_size=clients, masks=False)
    recipe, totals, states = made.recipe, list[Floats](), [state_as(made.state, PriviRecState)]
    assert isinstance(recipe, PriviRecK)
    made.recipe = watched(recipe, totals)
    for _ in made.run(recipe.steps):
        states.append(state_as(made.state, PriviRecState))
    has, after = has_of(train), states[-1]
    kept = recipe.kept(after)
    widths, columns = recipe.widths(after) if len(totals) >= recipe.first_vectors else (np.zeros(kept.size, int), 0)
    figures: dict[str, Figure] = {"equations": 3 * columns, "safe": most_equations(kept.size, clients)}
    if not columns:  # the task ended before the iterations
        return figures | {"read": 0.0}
    first = recipe.first_vectors - 1
    asked = [state.basis[kept].astype(np.float64) for state in states[first:-1]]
    places, seen = places_of(widths)[0], np.zeros((3, kept.size, columns))
    for product, total in zip(seen, totals[first:], strict=True):
        product[places] = total
    return figures | {"read": read(has[:, kept], after.item_degrees[kept], np.array(asked), seen, widths, recipe)}


def read(
    has: NDArray[np.bool_], degrees: Floats, asked: Floats, seen: Floats, widths: NDArray[np.int64], recipe: PriviRecK
) -> float:
    """Return the share of the clients of whom a solver finds a row.

    has: bool (clients, m). degrees: (m,). asked: Q of all sums, float64 (sums, m, K), and seen: Y = P Q of all sums
    (sums, m, K), of whose row i the first `widths[i]` columns are known, int64 (m,).
    """
    p = recipe.parameters
    sizes = has.sum(1)
    weights = np.maximum(sizes, 1.0) ** (-2 * p.user_exponent)
    scales = degrees**-p.degree_exponent
    true = (has * weights[:, None]).T @ has.astype(float)  # P without the scales of the items
    system = asked * scales[:, None]
    found = set[int]()
    entries = (true > 0).sum(1)
    solvable = np.argsort(np.where(widths > 0, entries / np.maximum(widths, 1), np.inf), kind="stable")
    for item in solvable[: min(_ROWS, int((widths > 0).sum()))]:
        owners, width = np.flatnonzero(has[:, item]), widths[item]
        own = system[:, :, :width].transpose(0, 2, 1).reshape(-1, degrees.size)
        least = 0.3 * weights[owners].min()
        if any(
            np.array_equal(row > least, true[item] > 0)
            for row in rows_of(own, seen[:, item, :width].ravel() / scales[item])
        ):
            same = (sizes[owners][:, None] == sizes[owners]).sum(1)
            found |= set(owners[same == 1].tolist())
    return len(found) / len(has)


def rows_of(system: Floats, seen: Floats) -> Iterator[Floats]:
    """Return rows x >= 0 with `system` x = `seen`, float64 (M, m) and (M,): by least squares, then that of least sum.

    The equations are first made orthonormal, which leaves out those that follow from others.
    """
    left, values, right = np.linalg.svd(system, full_matrices=False)
    known = values > 1e-9 * values[0]
    system, seen = right[known], (left[:, known].T @ seen) / values[known]
    yield nnls(system, seen, maxiter=30 * system.shape[1])[0]
    found = linprog(np.ones(system.shape[1]), A_eq=system, b_eq=seen, options={"time_limit": _SECONDS}).x
    if found is not None:
        yield found


# --- sums of training -------------------------------------------------------------------------------------------------


def trained(train: Interactions, name: str, rounds: int | None) -> dict[str, Figure]:
    """Return the figures of a task of a recipe that trains; rounds: fewer than advised, for a quick run."""
    clients, items = train.active_users.size, train.n_items
    sizes, given = advise(items, clients, train.size), {"items": items}
    if name == "rfrec":
        given |= {"rating_min": 1.0, "rating_max": 5.0}
    made = Federation(
        train, name, parameters_for(name, given), cohort_size=sizes.cohort_size, sampling="uniform", masks=False,
    )  # fmt: skip
    totals: list[Floats] = []
    made.recipe = watched(made.recipe, totals)
    who = []
    for done in made.run(min(sizes.rounds, rounds or sizes.rounds)):
        in_sum = np.zeros(train.n_users, bool)
        in_sum[made.cohort(made.recipe.round_spec(made.task_seed, done.number))] = True
        who.append(in_sum[train.active_users])
    first = made.recipe.main_sum - 1
    seen = np.stack([_rows(total, items) for total in totals[first:]])
    has = has_of(train)
    return attack(has, np.array(who[first:], float), seen)


def _rows(total: Floats, items: int) -> Floats:
    """Return figures of each item's row of a sum, float64 (items, 2): its length, and its largest value."""
    width = max(1, total.size // items)
    rows = np.abs(total[: items * width].reshape(items, width))
    return np.stack([np.linalg.norm(rows, axis=1), rows.max(axis=1)], axis=1)


def attack(has: NDArray[np.bool_], who: Floats, seen: Floats) -> dict[str, Figure]:
    """Return the areas under the curve, and the share of lists that are exact.

    has: bool (clients, items). who: (sums, clients), 1 for those in a sum. seen: (sums, items, figures).
    """
    popular = np.log1p(has.sum(0)).astype(float) * np.ones((len(has), 1))
    alone = auc(has, popular)
    best, lists = alone, 0.0
    centred = who - who.mean(0)
    if np.abs(centred).sum():  # otherwise every sum is over everybody, and says the same of all
        for figure in range(seen.shape[2]):
            values = seen[:, :, figure] - seen[:, :, figure].mean(0)
            values /= values.std(0) + 1e-12
            for ridge in (1.0, 10.0, 100.0):
                gram = centred.T @ centred + ridge * np.eye(who.shape[1])
                solved = np.linalg.solve(gram, centred.T @ values)
                solved /= solved.std() + 1e-12
                best = max([best, *(auc(has, popular + weight * solved) for weight in (0.1, 0.3, 1.0, 3.0))])
                lists = max(lists, exact(has, solved), exact(has, popular + solved))
    return {"auc": best, "popularity": alone, "read": lists}


def auc(has: NDArray[np.bool_], scores: Floats) -> float:
    """Return the mean area under the curve of the clients' items among all others."""
    found = []
    for own, score in zip(has, scores, strict=True):
        positives = int(own.sum())
        if 0 < positives < own.size:
            ranks = rankdata(score)[own].sum() - positives * (positives + 1) / 2
            found.append(ranks / (positives * (own.size - positives)))
    return float(np.mean(found))


def exact(has: NDArray[np.bool_], scores: Floats) -> float:
    """Return the share of the clients whose items are those with the highest scores, so many as they have."""
    right = [
        set(np.argsort(-score)[: own.sum()]) == set(np.flatnonzero(own)) for own, score in zip(has, scores, strict=True)
    ]
    return float(np.mean(right))


# --- all of it --------------------------------------------------------------------------------------------------------


def _cases(quick: bool) -> Iterator[tuple[str, int]]:
    for name in SETS:
        for clients in (12, 100) if quick else CLIENTS:
            yield name, clients


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, clients in _cases(options.quick):
        train = data_of(name, clients, options.data_dir)
        say(f"{name}, {clients} clients")
        found = {"privirec-k": spectral(train)}
        for recipe in TRAINED:
            if recipe != "rfrec" or train.ratings is not None:
                found[recipe] = trained(train, recipe, 4 if options.quick else None)
        if not options.quick:
            found |= {f"privirec-k.unlimited.{times}x": spectral(train, times) for times in (2, 4, EQUATIONS)}
        figures |= {f"{name}.{clients}.{one}.{key}": value for one, own in found.items() for key, value in own.items()}
    defaults = {key: value for key, value in figures.items() if "unlimited" not in key}
    figures["read"] = max(float(value or 0) for key, value in defaults.items() if key.endswith(".read"))
    areas = [key.removesuffix(".auc") for key in defaults if key.endswith(".auc")]
    gains = [float(figures[f"{key}.auc"] or 0) - float(figures[f"{key}.popularity"] or 0) for key in areas]
    figures["auc_above_popularity"] = max(gains)
    return figures


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    run("exposure", parser, measure)
