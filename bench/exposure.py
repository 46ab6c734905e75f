"""What the sums of advised tasks give away by themselves: honest parties, no privacy block, solvers that know all sums.

    .venv/bin/python -m bench.exposure --data-dir DATA [--quick] [--work FOLDER] [--json FILE]

`<set>.<clients>.<recipe>.*`, for made-up data with short and with long lists and for MovieLens-100K, over 12, 100 and
1,000 clients (943 of MovieLens), with the sizes and parameters that `task advise` gives, or would give for the recipe.

| figure | meaning |
|---|---|
| `read` | share of the clients whose list of items a solver finds exactly |
| `auc` | area under the curve of a client's items among all others, by the sums and the counts, weighted as is best |
| `popularity` | the same by the counts alone |
| `others` | of `half`, the same by the lists of all other clients |
| `equations`, `safe` | of `privirec-k`: equations for each item in the sums, and how many the bound allows |

*Sums over the same rows* (`privirec-k`): Y = P Q with known Q. For each item, those with the fewest entries for each
equation first, the row of P follows from least squares under x >= 0 (Lawson and Hanson), has the least sum among all
x >= 0 (linear programming). Where these find nothing, it is the mean of what is likely (expectation propagation,
`propagated`), for 200 rows together: P is symmetric, and a row that is found is put into the others. A row that is
right everywhere holds the lists of the item's owners; an owner whose number of items no other owner has counts as read.
The sums are the same for all clients, so nothing in them says whose a list is. `twice` repeats this with twice as many
equations as both bounds allow, and `unlimited.*` with four and eight times as many vectors as are safe, which tasks
with `reveal_gram` may have: there is something to find.

*Sums of training*: who is in each sum is known. Ridge regression of the size and of the largest values of each item's
row on who was in the sum. Cohorts take turns and are the same in every turn, as by default; everybody answers.
`uniform` (of short lists) has new random cohorts in each round; `groups3` and `groups6` have cohorts that take turns,
each split into groups with a sum of their own, as a task with `-m groups=3` has; `anew3` and `anew6` draw these groups
in each round. Where all clients are in every sum the regression has nothing to go by: the area is that of the counts,
and no task is run.

`told` is what these rows say to somebody who knows which items one client alone has (first 200 sums, over everybody),
and `half` what the sums of advised tasks say to somebody who knows half of a client's items, beside what the lists of
all others say of the same client, `others`: `bench.known`.

A finished row is kept in the folder `--work`, and not measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import linprog, nnls

from bench._report import Figure, arguments, say
from bench.figures import run
from bench.known import Rows, auc, exact, half, has_of, popularity, told
from bench.privacy_attacks import watched
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation, Sampling
from protocols.advice import IN_GROUPS, Advice, advise, parameters_for
from protocols.privacy import equations
from protocols.privacy.equations import most_equations
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.staircase import places_of
from protocols.recipes.state import state_as
from protocols.sums.groups import split_clients

Floats = NDArray[np.float64]
CLIENTS: Final = (12, 100, 1000)
SETS: Final = ("short", "long", "ml-100k")
TRAINED: Final = ("colr", "fedmf", "scolr", "pfedclr", "rfrec")
_SHORT: Final = {"items": 1000, "positives": 15}
_LONG: Final = {"items": 600, "positives": 50}
_ROWS: Final = 60
"""Rows that are solved for, of those with the fewest entries for each equation: the first that can be found."""
_TOGETHER: Final = 200
"""Rows that expectation propagation solves for together."""
_SWEEPS: Final = 24
_KNOWN: Final = 1e8  # precision of an entry that is known
_TIMES: Final = (4, 8)
_TOLD: Final = 200  # sums, the first ones
_STILL: Final = 0.01
"""Share of what a value may be off, by which a row that moves less in a sweep is solved."""
_SECONDS: Final = 20.0  # for one linear programme, which takes less than one where it finds a row


def data_of(name: str, clients: int, data_dir: Path | None) -> Interactions:
    """Return the interactions of so many clients, or of all if there are fewer."""
    if name == "ml-100k":
        found = load_interactions(name, data_dir)
        chosen = np.random.default_rng(0).permutation(found.active_users)[:clients]
        return found.where(np.isin(found.users, chosen))
    sizes = _SHORT if name == "short" else _LONG
    return synthetic(SyntheticConfig(users=clients, skew=0.8, seed=1, **sizes))


# --- sums over the same rows ------------------------------------------------------------------------------------------


def spectral(train: Interactions, times: int = 0, margin: int = 1) -> dict[str, Figure]:
    """Return the figures of a `privirec-k` task; times: 0 for the advised one, else so many times the safe vectors.

    margin: how many times the equations that both bounds allow the advised task has.
    """
    allowed = {"EQUATIONS": equations.EQUATIONS // margin, "ENTRIES": equations.ENTRIES // margin}
    with mock.patch.multiple(equations, **allowed):
        return _spectral(train, times)


def _spectral(train: Interactions, times: int) -> dict[str, Figure]:
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
    vectors = after.basis[kept] * after.singular_values
    model = np.asarray(vectors @ vectors.T, np.float64)
    rows = Seen(has[:, kept], after.item_degrees[kept], np.array(asked), seen, widths, model, recipe)
    return figures | {"read": read(rows)}


@dataclass(frozen=True, eq=False)
class Seen:
    """What the sums of a task say, and what is true.

    has: bool (clients, m). degrees: (m,). asked: Q of all sums, float64 (sums, m, K), and seen: Y = P Q of all sums
    (sums, m, K), of whose row i the first `widths[i]` columns are known, int64 (m,). model: P by the task's model.
    """

    has: NDArray[np.bool_]
    degrees: Floats
    asked: Floats
    seen: Floats
    widths: NDArray[np.int64]
    model: Floats
    recipe: PriviRecK


def read(rows: Seen) -> float:
    """Return the share of the clients of whom a solver finds a row."""
    has, widths, p = rows.has, rows.widths, rows.recipe.parameters
    sizes = has.sum(1)
    weights = np.maximum(sizes, 1.0) ** (-2 * p.user_exponent)
    scales = rows.degrees**-p.degree_exponent
    true = (has * weights[:, None]).T @ has.astype(float)  # P without the scales of the items
    system = rows.asked * scales[:, None]
    entries = (true > 0).sum(1)
    solvable = np.argsort(np.where(widths > 0, entries / np.maximum(widths, 1), np.inf), kind="stable")
    items = solvable[: min(_TOGETHER, int((widths > 0).sum()))]
    least = np.array([0.3 * weights[has[:, item]].min() for item in items])

    @lru_cache(maxsize=8)
    def asked_of(width: int) -> tuple[Floats, Floats]:
        return independent(system[:, :, :width].transpose(0, 2, 1).reshape(-1, rows.degrees.size))

    def equations_of(item: int) -> tuple[Floats, Floats]:
        asked, answer = asked_of(int(widths[item]))
        return asked, answer @ (rows.seen[:, item, : widths[item]].ravel() / scales[item])

    right = np.zeros(items.size, bool)
    for place, item in enumerate(items[:_ROWS]):
        present = true[item] > 0
        right[place] = any(np.array_equal(row > least[place], present) for row in rows_of(*equations_of(item)))
    if not right.any():
        model = (rows.model / np.outer(scales, scales))[items]
        likely = likely_entries(true[items], model, np.outer(rows.degrees[items], rows.degrees))
        right = propagated(items, [equations_of(item) for item in items], likely, true[items], least)
    found = set[int]()
    for item, is_right in zip(items, right, strict=True):
        owners = np.flatnonzero(has[:, item])
        same = (sizes[owners][:, None] == sizes[owners]).sum(1)
        found |= set(owners[same == 1].tolist()) if is_right else set()
    return len(found) / len(has)


def independent(system: Floats) -> tuple[Floats, Floats]:
    """Return A and B, float64 (rank, m) and (rank, M): A has orthonormal rows, and A x = B y are the equations of
    `system` x = y, float64 (M, m), without those that follow from others."""
    left, values, right = np.linalg.svd(system, full_matrices=False)
    known = values > 1e-9 * values[0]
    return right[known], left[:, known].T / values[known][:, None]


def rows_of(system: Floats, seen: Floats) -> Iterator[Floats]:
    """Return rows x >= 0 with `system` x = `seen`: by least squares, then that of least sum."""
    yield nnls(system, seen, maxiter=30 * system.shape[1])[0]
    found = linprog(np.ones(system.shape[1]), A_eq=system, b_eq=seen, options={"time_limit": _SECONDS}).x
    if found is not None:
        yield found


@dataclass(frozen=True, eq=False)
class Likely:
    """What an entry of a row is before the equations: not 0 with the probability `present`, float64 (rows, m), and then
    of a mixture of normals of the `means` and `deviations`, float64 (parts,)."""

    present: Floats
    means: Floats
    deviations: Floats

    def after(self, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of entries that are seen as normal, float64 (rows, m) each."""
        parts = [(np.log1p(-self.present), 0.0, 1e-7)]
        share = np.log(self.present / self.means.size)
        parts += [(share, at, spread**2) for at, spread in zip(self.means, self.deviations, strict=True)]
        logs = [one - np.log(variance + own) / 2 - (mean - at) ** 2 / (variance + own) / 2 for one, at, own in parts]
        highest = np.maximum.reduce(logs)
        whole, first, second = (np.zeros_like(mean) for _ in range(3))
        for one, (_, at, own) in zip(logs, parts, strict=True):
            weight, centre = np.exp(one - highest), (mean * own + at * variance) / (variance + own)
            whole += weight
            first += weight * centre
            second += weight * (variance * own / (variance + own) + centre**2)
        return first / whole, np.maximum(second / whole - (first / whole) ** 2, 1e-10)


def likely_entries(true: Floats, model: Floats, counts: Floats) -> Likely:
    """Return what entries are likely to be. true, model, counts: of the same rows, float64 (rows, m).

    The solver is given more than the sums say: how often entries with such a value in the model, and of items of such
    degrees, are not 0, and of what size, as it is in truth.
    """
    cells = []
    for value, count in ((np.log(np.maximum(model, 0.0) + 0.02), 20), (np.log(np.maximum(counts, 1.0)), 10)):
        edges = np.quantile(value, np.linspace(0.0, 1.0, count + 1)[1:-1])
        cells.append(np.searchsorted(edges, value))
    cell = cells[0] * 10 + cells[1]
    shown = np.bincount(cell.ravel(), (true > 0).ravel().astype(float), 200)
    present = (shown + 0.02) / (np.bincount(cell.ravel(), minlength=200) + 2.0)
    values = true[true > 0]
    spread = 0.5 * np.diff(np.quantile(values, np.linspace(0.0, 1.0, 13))).clip(1e-3)
    return Likely(
        np.clip(present[cell], 1e-5, 0.999), np.quantile(values, np.linspace(0.02, 0.98, spread.size)), spread
    )


def propagated(
    items: NDArray[np.int64], systems: list[tuple[Floats, Floats]], likely: Likely, true: Floats, least: Floats
) -> NDArray[np.bool_]:
    """Return which rows are found by expectation propagation (Minka, UAI 2001), bool (rows,).

    Each row's equations, and what its entries are likely to be, are factors of one distribution, which is approximated
    by independent normals. An entry of two of the rows is one unknown, with the equations of both. Rows that are right
    are known to the others from then on, and it ends where no mean moves any more. items: which rows, int64 (rows,).
    systems: their equations. true: (rows, m); least: how far a value may be off, float64 (rows,).
    """
    start = likely.present * likely.means.mean()
    precision = 1.0 / (likely.present * np.square(likely.means).mean() - start**2 + 1e-4)
    shift, right = start * precision, np.zeros(items.size, bool)
    seen, moved, last = np.full_like(start, 1e-6), np.zeros_like(start), start
    for _ in range(_SWEEPS):
        precision[right], precision[:, items[right]] = _KNOWN, _KNOWN
        shift[right], shift[:, items[right]] = true[right] * _KNOWN, true[:, items[right]] * _KNOWN
        if right.all():
            break
        for row in np.flatnonzero(~right):
            seen[row], moved[row] = _answered(*systems[row], precision[row], shift[row])
        seen[right], moved[right] = 1e-6, 0.0
        both, together = seen.copy(), moved.copy()
        for whole, part in ((both, seen), (together, moved)):
            shared = part[:, items].T.copy()
            np.fill_diagonal(shared, 0.0)
            whole[:, items] += shared
        mean, variance = likely.after(together / both, 1.0 / both)
        left = np.clip(1.0 / variance - seen, 1e-4, 1e9)
        towards = np.where(left <= 1e-4, mean * 1e-4, mean / variance - moved)
        precision, shift = (precision + left) / 2, (shift + towards) / 2
        found = right | (np.abs(mean - true) < least[:, None]).all(axis=1)
        if (found == right).all() and (np.abs(mean - last) < _STILL * least[:, None]).all():
            break
        right, last = found, mean
    return right


def _answered(system: Floats, seen: Floats, precision: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """Return what a row's equations say about each entry: precision, and precision times mean, float64 (m,) each."""
    spread = 1.0 / precision
    scaled = system * spread
    inner = scaled @ system.T
    inner[np.diag_indices_from(inner)] += 1e-9 * np.trace(inner) / len(inner) + 1e-12
    lower = cholesky(inner, lower=True, check_finite=False)
    left = np.column_stack([scaled, seen - system @ (spread * shift)])
    solved = solve_triangular(lower, left, lower=True, overwrite_b=True, check_finite=False)
    part = solved[:, :-1]
    mean = spread * shift + part.T @ solved[:, -1]
    variance = np.maximum(spread - np.square(part).sum(axis=0), 1e-12 * spread + 1e-14)
    return np.maximum(1.0 / variance - precision, 1e-6), mean / variance - shift


# --- sums of training -------------------------------------------------------------------------------------------------


Split = Callable[[NDArray[np.int64], np.random.Generator], list[NDArray[np.int32]]]
"""Returns who of a cohort, int64 (clients,), is in which sum: places in the cohort, int32 (any,) each."""


def whole(cohort: NDArray[np.int64], _: np.random.Generator) -> list[NDArray[np.int32]]:
    """One sum over the cohort."""
    return [np.arange(cohort.size, dtype=np.int32)]


def together(groups: int, cohort: NDArray[np.int64], _: np.random.Generator) -> list[NDArray[np.int32]]:
    """So many groups, of the same clients in every turn, as tasks have."""
    return split_clients("task", [str(user) for user in cohort], groups)


def anew(groups: int, cohort: NDArray[np.int64], draws: np.random.Generator) -> list[NDArray[np.int32]]:
    """So many groups, which are others in each round."""
    return [part.astype(np.int32) for part in np.array_split(draws.permutation(cohort.size), groups)]


WHOLE: Final[Mapping[str, Split]] = {"": whole}
SPLITS: Final[Mapping[str, Split]] = {
    **WHOLE,
    **{f".groups{count}": partial(together, count) for count in (3, 6)},
    **{f".anew{count}": partial(anew, count) for count in (3, 6)},
}
"""How the cohorts of a task are split into sums, by the end of the row's name; empty: as advised."""


def sizes_of(train: Interactions) -> Advice:
    """Return the sizes that are advised."""
    return advise(train.n_items, train.active_users.size, train.size)


def trained(
    train: Interactions,
    name: str,
    rounds: int | None,
    sampling: Sampling = "turns",
    splits: Mapping[str, Split] = WHOLE,
) -> Rows:
    """Return the figures of a task of a recipe that trains, for each of the ways to split its cohorts into sums.

    rounds: fewer than advised, for a quick run. Of cohorts that are split, contributions all have one length.
    """
    items, sizes, has = train.n_items, sizes_of(train), has_of(train)
    given: dict[str, Any] = {"items": items}
    if sizes.cohort_size >= len(has):
        alone = auc(has, popularity(has))
        return {split: {"auc": alone, "popularity": alone, "read": 0.0} for split in splits}
    if name == "rfrec":
        given |= {"rating_min": 1.0, "rating_max": 5.0}
    made = Federation(
        train, name, parameters_for(name, given), cohort_size=sizes.cohort_size, sampling=sampling, masks=False,
    )  # fmt: skip
    totals, sent = list[Floats](), list[Floats]()
    made.recipe = watched(made.recipe, totals)
    if len(splits) > 1:
        made.client_side = _Watched(made.client_side, sent)
    draws = np.random.default_rng(0)
    who: dict[str, list[NDArray[np.bool_]]] = {split: [] for split in splits}
    seen: dict[str, list[Floats]] = {split: [] for split in splits}
    for done in made.run(min(sizes.rounds, rounds or sizes.rounds)):
        cohort = made.cohort(made.recipe.round_spec(made.task_seed, done.number))
        for split, split_of in splits.items() if done.number >= made.recipe.main_sum else ():
            for part in split_of(cohort, draws):
                in_sum = np.zeros(train.n_users, bool)
                in_sum[cohort[part]] = True
                who[split].append(in_sum[train.active_users])
                total = totals[-1] if part.size == cohort.size else np.sum([sent[place] for place in part], axis=0)
                seen[split].append(_rows(total, items))
        sent.clear()
    return {split: attack(has, np.array(who[split], float), np.stack(seen[split])) for split in splits}


@dataclass(frozen=True)
class _Watched:
    """The client side of a recipe, of which `sent` gets what each client contributes, in the order of the cohort."""

    side: Any
    sent: list[Floats]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.side, name)

    def contribute(self, *given: Any) -> Any:
        local = self.side.contribute(*given)
        self.sent.append(np.concatenate([np.ravel(block) for block in local.contribution.blocks]).astype(np.float64))
        return local


def _rows(total: Floats, items: int) -> Floats:
    """Return figures of each item's row of a sum, float64 (items, 2): its length, and its largest value."""
    width = max(1, total.size // items)
    rows = np.abs(total[: items * width].reshape(items, width))
    return np.stack([np.linalg.norm(rows, axis=1), rows.max(axis=1)], axis=1)


def attack(has: NDArray[np.bool_], who: Floats, seen: Floats) -> dict[str, Figure]:
    """Return the areas under the curve, and the share of lists that are exact.

    has: bool (clients, items). who: (sums, clients), 1 for those in a sum. seen: (sums, items, figures).
    """
    popular = popularity(has)
    alone = auc(has, popular)
    best, lists = alone, 0.0
    centred = who - who.mean(0)
    for figure in range(seen.shape[2]):
        values = seen[:, :, figure] - seen[:, :, figure].mean(0)
        values /= values.std(0) + 1e-12
        for ridge in (1.0, 10.0, 100.0):
            solved = centred.T @ np.linalg.solve(centred @ centred.T + ridge * np.eye(len(who)), values)
            solved /= solved.std() + 1e-12
            best = max([best, *(auc(has, popular + weight * solved) for weight in (0.1, 0.3, 1.0, 3.0))])
            lists = max(lists, exact(has, solved), exact(has, popular + solved))
    return {"auc": best, "popularity": alone, "read": lists}


# --- all of it --------------------------------------------------------------------------------------------------------


def _cases(quick: bool) -> Iterator[tuple[str, int]]:
    for name in SETS:
        for clients in (12, 300) if quick else CLIENTS:
            yield name, clients


def parts_of(train: Interactions, short: bool, quick: bool) -> dict[str, Callable[[], Rows]]:
    """Return what gives the figures of a part of the rows of a data set; its rows' names are added to the part's.

    short: whether lists are short, where sums over cohorts that are drawn anew say most.
    """
    rounds = 4 if quick else None
    found: dict[str, Callable[[], Rows]] = {"privirec-k": lambda: {"": spectral(train)}}
    found["privirec-k.half"] = partial(half, train, "privirec-k")
    for recipe in (one for one in TRAINED if one != "rfrec" or train.ratings is not None):
        more = recipe in IN_GROUPS and sizes_of(train).cohort_size < train.active_users.size
        found[recipe] = partial(trained, train, recipe, rounds, splits=SPLITS if more else WHOLE)
        if recipe in IN_GROUPS and not more:
            found[f"{recipe}.told"] = partial(told, train, recipe, rounds or _TOLD)
        if recipe in IN_GROUPS:
            found[f"{recipe}.half"] = partial(half, train, recipe, rounds)
        if more and short:
            found[f"{recipe}.uniform"] = partial(trained, train, recipe, rounds, "uniform")
    if not quick:
        found["privirec-k.twice"] = lambda: {"": spectral(train, margin=2)}
        found |= {f"privirec-k.unlimited.{times}x": partial(_unlimited, train, times) for times in _TIMES}
    return found


def _unlimited(train: Interactions, times: int) -> Rows:
    return {"": spectral(train, times)}


def _finished(options: argparse.Namespace, name: str, rows: Callable[[], Rows]) -> Rows:
    """Return the figures of a part, from the work folder if it is finished; quick ones are always measured."""
    path: Path = options.work / f"{name}.json"
    if path.exists() and not options.quick:
        return dict(json.loads(path.read_text()))
    say(name)
    found = rows()
    if not options.quick:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1))
    return found


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, clients in _cases(options.quick):
        train = data_of(name, clients, options.data_dir)
        for part, rows in parts_of(train, name == "short", options.quick).items():
            found = _finished(options, f"{name}.{clients}.{part}", rows)
            figures |= {
                f"{name}.{clients}.{part}{row}.{key}": v for row, own in found.items() for key, v in own.items()
            }
    return figures | _of_defaults(figures)


def _of_defaults(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return the largest figures of the rows of defaults, whose keys have four parts."""
    own = {key: float(value or 0) for key, value in figures.items() if key.count(".") == 3}
    areas = [key.removesuffix(".auc") for key in own if key.endswith(".auc")]
    known = [key.removesuffix(".others") for key in figures if key.endswith(".others")]
    more = {key: float(figures[f"{key}.auc"] or 0) - float(figures[f"{key}.others"] or 0) for key in known}
    return {
        "read": max(value for key, value in own.items() if key.endswith(".read")),
        "told": max(float(figures[key] or 0) for key in figures if key.endswith(".told.read")),
        "half_above_others.privirec-k": max(value for key, value in more.items() if "privirec-k" in key),
        "half_above_others.trained": max(value for key, value in more.items() if "privirec-k" not in key),
        "auc_above_popularity": max(own[f"{key}.auc"] - own[f"{key}.popularity"] for key in areas),
    }


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    parser.add_argument(
        "--work", type=Path, default=Path("bench/results/local/exposure"), help="folder of finished rows"
    )
    run("exposure", parser, measure)
