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

*Sums over the same rows* (`privirec-k`): equations for each row of P, which the solvers of `bench.spectral` take. An
owner whose number of items no other owner has counts as read. `twice` repeats this with twice as many equations as both
bounds allow, and `unlimited.*` with four and eight times as many vectors as are safe, which tasks with `reveal_gram`
may have: there is something to find.

*Sums of training*: who is in each sum is known. Ridge regression of the size and of the largest values of each item's
row on who was in the sum. Cohorts take turns and are the same in every turn, as by default; everybody answers.
`uniform` (of short lists) has new random cohorts in each round; `groups3` and `groups6` have cohorts that take turns,
each split into groups with a sum of their own, as a task with `-m groups=3` has; `anew3` and `anew6` draw these groups
in each round. Where all clients are in every sum the regression has nothing to go by: the area is that of the counts,
and no task is run.

`short.1500.<recipe>.absent.*`: all 1,500 clients are asked for each sum, and a random tenth of them, others in each
round, does not answer; in one sum, and in 2 and 3 groups of 750 and 500.

`arrays` (of short lists) are the item factors of an application's own model, which trains them in FedMF's steps.

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
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say
from bench.figures import run
from bench.known import Rows, auc, exact, half, has_of, popularity, told
from bench.liars import own_parameters, train_own_items
from bench.privacy_attacks import watched
from bench.spectral import spectral
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation, Sampling
from protocols.advice import IN_GROUPS, Advice, advise, parameters_for
from protocols.recipes.base import RoundSpec
from protocols.sums.groups import split_clients

Floats = NDArray[np.float64]
CLIENTS: Final = (12, 100, 1000)
IN_ONE: Final = 1500
"""Clients of a task that are in one cohort, of which a tenth is absent."""
IN_ONE_QUICKLY: Final = 40
ABSENT: Final = 0.1
SETS: Final = ("short", "long", "ml-100k")
TRAINED: Final = ("colr", "fedmf", "scolr", "pfedclr", "rfrec")
_SHORT: Final = {"items": 1000, "positives": 15}
_LONG: Final = {"items": 600, "positives": 50}
_TIMES: Final = (4, 8)
_TOLD: Final = 200  # sums, the first ones


def data_of(name: str, clients: int, data_dir: Path | None) -> Interactions:
    """Return the interactions of so many clients, or of all if there are fewer."""
    if name == "ml-100k":
        found = load_interactions(name, data_dir)
        chosen = np.random.default_rng(0).permutation(found.active_users)[:clients]
        return found.where(np.isin(found.users, chosen))
    sizes = _SHORT if name == "short" else _LONG
    return synthetic(SyntheticConfig(users=clients, skew=0.8, seed=1, **sizes))


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
OF_ABSENT: Final[Mapping[str, Split]] = {**WHOLE, **{f".groups{count}": partial(together, count) for count in (2, 3)}}


class _Absent(Federation):
    """A federation in which a tenth of each cohort does not answer, others in each round."""

    def cohort(self, spec: RoundSpec) -> NDArray[np.int64]:
        asked = super().cohort(spec)
        order = np.random.default_rng([self.seed, 77, spec.number]).permutation(asked.size)
        return asked[order[: round(asked.size * (1.0 - ABSENT))]]


def sizes_of(train: Interactions) -> Advice:
    """Return the sizes that are advised."""
    return advise(train.n_items, train.active_users.size, train.size)


def trained(
    train: Interactions,
    name: str,
    rounds: int | None,
    sampling: Sampling = "turns",
    splits: Mapping[str, Split] = WHOLE,
    absent: bool = False,
) -> Rows:
    """Return the figures of a task of a recipe that trains, for each of the ways to split its cohorts into sums.

    rounds: fewer than advised, for a quick run. Of cohorts that are split, contributions all have one length. absent:
    whether all clients are in one cohort, and some of them absent.
    """
    items, sizes, has = train.n_items, sizes_of(train), has_of(train)
    given: dict[str, Any] = {"items": items}
    cohort_size = len(has) if absent else sizes.cohort_size
    if sizes.cohort_size >= len(has) and not absent:
        alone = auc(has, popularity(has))
        return {split: {"auc": alone, "popularity": alone, "read": 0.0} for split in splits}
    if name == "rfrec":
        given |= {"rating_min": 1.0, "rating_max": 5.0}
    parameters = own_parameters(items) if name == "arrays" else parameters_for(name, given)
    kind = _Absent if absent else Federation
    made = kind(train, name, parameters, cohort_size=cohort_size, sampling=sampling, masks=False)
    if name == "arrays":
        train_own_items(made)
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
    yield SETS[0], IN_ONE_QUICKLY if quick else IN_ONE


def parts_of(train: Interactions, short: bool, quick: bool) -> dict[str, Callable[[], Rows]]:
    """Return what gives the figures of a part of the rows of a data set; its rows' names are added to the part's.

    short: whether lists are short, where sums over cohorts that are drawn anew say most.
    """
    rounds = 4 if quick else None
    if train.active_users.size in (IN_ONE, IN_ONE_QUICKLY):
        parts = ("colr", "fedmf", "arrays")
        return {f"{one}.absent": partial(trained, train, one, rounds, splits=OF_ABSENT, absent=True) for one in parts}
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
    if short and sizes_of(train).cohort_size < train.active_users.size:
        found["arrays"] = partial(trained, train, "arrays", rounds, splits=SPLITS)
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
