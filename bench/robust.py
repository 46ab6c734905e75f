"""What clients that lie do to everybody's recommendations, and what stops them.

    .venv/bin/python -m bench.robust --data-dir DATA [--quick] [--only PART ...] [--sets SET ...] [--seeds N ...]

`<set>.<recipe>.<defence>.<lie>.<liars>.*`: means over `*.seeds` seeds, with the recommended parameters of each recipe.
Each finished row of a seed is kept in the folder `--work`, and not measured again; `--finished` reports those alone.

| figure | meaning |
|---|---|
| `share` | of the users without the promoted item, which about 20 clients have: those with it in their first 20 |
| `ndcg20` | NDCG@20 of all users' held-out items, ranked among all items |
| `gated` | the share behind a gate of two standard errors (`Evaluation.gate`); 0 where no lie that was tried passes |
| `kept` | share of the groups that the rule keeps, in the last sum |
| `refused` | share of the tried sizes with which a sum is refused, without a model; the others are of what passes |

| defence | what is checked |
|---|---|
| `open` | the length of a contribution |
| `checked` | every sum is one that so many honest contributions can have (`protocols.sums.possible`), as in all tasks |
| `groups<G>` | and of G groups those within 1.5 times the median distance are used, by row (`protocols.sums.groups`) |
| `groups5whole` | the same with every sum as one row: nothing but whole groups is left out |

The members of a group are the same in every round. Of `privirec-k` and `privirec` only the sum of degrees is in groups.

| lie | what each liar sends |
|---|---|
| `none` | nothing false |
| `within` | a profile, by the protocol: the item and the most popular ones |
| `aimed` | what puts the item into all lists, see below |
| `always` | the same in every round |
| `noise` | numbers drawn anew, in every round |
| `flood` | what many lists would give: S Q, S random without negative eigenvalues, or counts of random cliques |
| `degrees` | `aimed`, and in the sum of degrees owners of the item that it does not have |

Aimed are, in power iterations, s b b^T with b between the item and what most users have; in trained rows the mean of
the users' factors; in counts as many as pass, of pairs also as many as an item has that all like alike. What a liar
knows, and how it chooses: `bench.liars`. `privirec` sums exact counts of pairs. Neither it nor `privirec-k` has a sum
of validation here, so that the filter stays as it is.

In `colr`, `fedmf` and `arrays` a liar is a member like others: it is asked in its turn, once in as many rounds as there
are cohorts of other members. `always` and `noise` are in every round, whoever's turn it is. The model of `arrays` are
item factors that an application trains as `fedmf` does (`OwnItems`).

`<set>.gate.z<Z>.<lie>.*`: of a task of `colr` that measures itself after every ten sums of training, what a gate of Z
standard errors would refuse, with nobody that lies, and with noise in every sum of the second half. `refused`: share of
the measurements, `ndcg10`: of the model that is adopted last, as measured.

`cost.<clients>.groups<G>.*`: a masked round with G groups by one without, in turn, all parties in one process:
processor time of the server, with opening the sum, medians of five; bytes of a client's vector; its neighbours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say
from bench.experiments.quality import split_of
from bench.figures import run
from bench.liars import OWN_ITEMS, Case, Defence, Liars, Lie, Lied, own_parameters, train_own_items
from bench.sums import CLIP, Shape, play_round
from client_sdk.lab.data.interactions import interaction_rows, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.metrics import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.training.privirec import PriviRecSide
from protocols.advice import advise, parameters_for
from protocols.errors import CodecError
from protocols.layout import Floats
from protocols.messages import Evaluation
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import RoundSpec
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.factors import FactorState, item_biases
from protocols.recipes.state import state_as
from protocols.sums.ring import spare_bits

SETS: Final = ("gowalla", "ml-1m")
TRAINED_ON: Final = ("ml-100k", "ml-1m", "gowalla")
"""The sets of the recipes that train."""
TRAINED: Final = ("colr", "fedmf", "arrays")
_SETS_OF: Final = {"colr": TRAINED_ON, **dict.fromkeys(("fedmf", "arrays", "gate"), TRAINED_ON[:1])}
PARTS: Final = ("counts", "privirec-k", "privirec", "colr", "arrays", "fedmf", "gate", "cost")
GATES: Final = (0.5, 1.0, 2.0, 3.0)
FLOODS: Final[Mapping[str, tuple[tuple[int, ...], tuple[float, ...]]]] = {
    "privirec-k": ((1, 16, 128, 1024), (1.0, 1e-2, 1e-3)),
    "privirec": ((0, 10, 40, 160), (1.0, 0.3, 0.1)),
}
"""Ranks and sizes of what floods sums."""
LIARS: Final = (1, 5, 60)
OWNERS: Final = 20
TOP: Final = 20
SIZES: Final = (1.0, 0.1, 1e-2, 1e-3, 1e-4)
"""Sizes of a lie in power iterations, of the most that passes."""
NOISES: Final[Mapping[str, tuple[float, ...]]] = {
    "privirec-k": (1e-3, 3e-4, 1e-4, 3e-5, 1e-5),
    "privirec": SIZES,
}
"""Sizes of what noise sums, near the largest that passes."""
DEGREES: Final = (0.1, 1.0)
"""Shares of the room in the sum of degrees, from the item's owners to all clients, that a liar fills in turn."""
FEW: Final[dict[str, Any]] = {"dropout": 0.1, "eta": 10}
COSTS: Final[tuple[tuple[int, int, dict[str, Any]], ...]] = ((150, 3, FEW), (150, 5, FEW), (300, 5, {}))
"""Clients, groups and parameters of the rounds whose cost is compared: 150 are too few for the default ones."""
ERRORS: Final = 2.0
"""Standard errors below the last model's mean from which on a model is not adopted."""


# --- data -----------------------------------------------------------------------------------------------------------


def case_of(name: str, data_dir: Path | None, seed: int) -> Case:
    """Return the case; name: of `bench.experiments.quality`, or "small" for made-up data."""
    if name == "small":
        made = synthetic(SyntheticConfig(users=150, items=80, positives=12, skew=0.8, seed=seed))
        split = OneHeldOut(leave_one_out(made, seed), None)
    else:
        split = replace(split_of(name, data_dir or Path("data"), seed), negatives=None)
    degrees = split.data.train.item_degrees()
    rng = np.random.default_rng([seed, 7])
    near = np.flatnonzero(degrees >= OWNERS) if name != "small" else np.arange(degrees.size)
    rare = near[np.argsort(degrees[near], kind="stable")[:10]]
    leading = np.sqrt(degrees.astype(np.float64))
    return Case(split, int(rng.choice(rare)), leading / np.linalg.norm(leading))


def measure(case: Case, scores: FullScorer) -> tuple[float, NDArray[np.float64]]:
    """Return the share of the users with the promoted item in their first 20, and each tested user's NDCG@20."""
    measured, rows = case.split.measured(scores), interaction_rows(case.train)
    users = case.train.active_users[:2000]
    found = []
    for start in range(0, users.size, 500):
        part = users[start : start + 500]
        ranked = np.array(scores(part), np.float64)
        own = rows[part].tocoo()
        has = np.zeros(part.size, bool)
        has[own.row[own.col == case.target]] = True
        ranked[own.row, own.col] = -np.inf
        ahead = (ranked > ranked[:, [case.target]]).sum(1)
        found.extend((ahead < TOP)[~has])
    return float(np.mean(found)), measured.of_users


# --- what is measured -----------------------------------------------------------------------------------------------

Measured = tuple[float, NDArray[np.float64], float]
"""The share, each user's NDCG@20, and the share of the groups that was kept."""


def spectral(name: str, case: Case, defence: Defence, lie: Lie, seed: int, quick: bool) -> Measured | None:
    """Measure a task of `privirec` or `privirec-k` with recommended parameters and the first setting of the filter.

    None if a sum is refused.
    """
    train, clients = case.train, case.train.active_users.size
    given: dict[str, Any] = {"items": train.n_items} | ({"reveal_gram": True} if name == "privirec" else {})
    if quick:
        given |= {"reveal_gram": True, "min_owners": 1} | ({"components": 4} if name == "privirec-k" else {})
    given["validation"] = 0.0
    parameters = parameters_for(name, given, clients=clients, mean_items=train.size / clients)
    # what encoding rounds leaves room for lies: sums have the ring of a new masked task, but no masks
    ring = {"dropout": 0.2 if quick else 0.1, "spare": spare_bits(32, clients)}
    options: dict[str, Any] = {"mechanism_name": "masked", "mechanism_parameters": ring, "masks": False}
    made = Lied(train, name, parameters, cohort_size=clients, seed=seed, **options)
    made.case, made.liars = case, Liars(defence, lie, seed)
    try:
        for _ in made.run(999):
            pass
    except CodecError:
        return None
    assert isinstance(made.client_side, PriviRecSide)
    scores = made.client_side.scores_of(made.state, interaction_rows(train))
    return *measure(case, lambda users: scores[users]), 1.0


def counted(_: str, case: Case, defence: Defence, lie: Lie, seed: int, __: bool) -> Measured:
    """Measure a ranking by summed item counts."""
    train = case.train
    rows, items = interaction_rows(train), train.n_items
    liars = Liars(defence, lie, seed)
    parameters = {"items": items, "dim": 2, "item_bias": "counts"}
    made = Federation(train, "fedmf", parameters, cohort_size=train.active_users.size, seed=seed)
    plan = made._plan(made.recipe.round_spec(made.task_seed, 1))
    parts = liars.parts(train.active_users.astype(np.int64))
    sums = [np.asarray(rows[part].sum(axis=0), np.float64).ravel() for part in parts]
    direction = np.zeros(items)
    direction[case.target] = 1.0
    added = None if lie.kind == "none" else liars.rng.standard_normal(items) if lie.kind == "noise" else direction
    total = liars.released(plan, sums, [part.size for part in parts], added, float(train.active_users.size))
    return *measure(case, lambda users: np.tile(total, (len(users), 1))), liars.kept


def trained(name: str, case: Case, defence: Defence, lie: Lie, seed: int, quick: bool) -> Measured:
    """Measure a task of a recipe that trains in rounds."""
    train = case.train
    sizes = advise(train.n_items, train.active_users.size, train.size)
    options: dict[str, Any] = {"cohort_size": sizes.cohort_size, "seed": seed, "sampling": "turns"}
    parameters = own_parameters(train.n_items)
    if name != "arrays":
        parameters = parameters_for(name, {"items": train.n_items}, clients=train.active_users.size)
    made = Lied(train, name, parameters, **options)
    if name == "arrays":
        train_own_items(made)
    made.case, made.liars = case, Liars(defence, lie, seed)
    for _ in made.run(3 if quick else sizes.rounds):
        pass
    if isinstance(made.recipe.own, Arrays):
        factors, biases = made.recipe.own.arrays(made.state)[OWN_ITEMS], None
    else:
        factors, biases = state_as(made.state, FactorState).item_factors, item_biases(made.state)
    users_factors = made.user_factors

    def scores(users: NDArray[np.intp]) -> NDArray[np.float32]:
        return users_factors[users] @ factors.T + (0.0 if biases is None else biases)

    return *measure(case, scores), made.liars.kept


MEASURES: Final[dict[str, Callable[..., Measured | None]]] = {
    "counts": counted,
    "privirec-k": spectral,
    "privirec": spectral,
    "colr": trained,
    "fedmf": trained,
    "arrays": trained,
}


def tries(part: str, lie: str, defence: Defence, liars: int, quick: bool) -> Iterable[Lie]:
    """Yield the sizes of a lie of which the best for the liar counts."""
    if part in TRAINED:
        yield Lie("aimed" if lie == "always" else lie, liars, always=lie in ("always", "noise"))
        return
    if lie in ("none", "within") or part == "counts":
        yield Lie(lie, liars)
        return
    shares = (0.0,) if lie != "degrees" else DEGREES[-1:] if defence.groups or quick else DEGREES
    if lie == "flood":
        ranks, passing = FLOODS[part]
        yield from (Lie(lie, liars, size, rank=rank) for rank in ranks for size in passing[: 1 if quick else None])
        return
    sizes: tuple[float, ...] = SIZES[:1] if quick else SIZES
    tilts: tuple[float, ...] = (0.2, 0.9)
    if lie == "noise":
        sizes, tilts = NOISES[part][: 2 if quick else None], tilts[:1]
    elif part == "privirec":
        sizes, tilts = SIZES[:1], (0.0, 1.0)
    elif lie == "degrees":
        sizes = sizes[::2]
    yield from (Lie(lie, liars, size, tilt, degrees=share) for share in shares for size in sizes for tilt in tilts)


def lies_of(part: str, defence: Defence) -> Iterable[tuple[str, int]]:
    """Yield the lies that are measured under a defence, and by how many liars; more than one where it matters."""
    yield "none", 0
    if part in TRAINED:
        yield "aimed", 1
        if not defence.by_row:
            return
        yield from (("aimed", LIARS[1]), ("always", 1), ("noise", 1))
        if defence.groups == 5:
            yield "always", 2
        yield "aimed", LIARS[-1]
        return
    if part.startswith("privirec"):
        if not defence.groups:
            yield from (("within", LIARS[-1]), ("aimed", 1), ("noise", 1), ("flood", 1))
        yield from (("degrees", liars) for liars in (LIARS[:2] if defence.groups else LIARS[:1]))  # 5: in all groups
        return
    if not defence.groups:
        if not defence.checked:
            yield "within", LIARS[-1]
        yield from (("aimed", 1), ("noise", 1))
        return
    yield from (("aimed", liars) for liars in LIARS)
    yield from (("noise", liars) for liars in LIARS[:2])


def defences_of(part: str) -> list[Defence]:
    """Return the defences that are measured; the first one's honest model is the one before a gate."""
    many = [Defence(f"groups{groups}", groups=groups) for groups in (3, 5, 10)]
    if part in TRAINED:  # its cohorts are small
        return [Defence("checked"), *many[:2], Defence("groups5whole", groups=5, by_row=False)]
    if part.startswith("privirec"):
        return [Defence("checked"), *many[:2]]
    return [Defence("open", checked=False), Defence("checked"), *many]


def rows_of(part: str) -> list[tuple[Defence, str, int]]:
    """Return the defences with the lies that are measured: the same lie under all of them, then the next."""
    rows = [(defence, *lie) for defence in defences_of(part) for lie in lies_of(part, defence)]
    order = list(dict.fromkeys(row[1:] for row in rows))
    return sorted(rows, key=lambda row: (not row[0].by_row, order.index(row[1:])))


def _widest(one: Measured) -> float:
    return one[0]


def _lowest(one: Measured) -> float:
    return -float(one[1].mean())


Figures = dict[str, Figure]
Keep = Callable[[Figures], object]


def figures_of(
    part: str, case: Case, seed: int, quick: bool, known: Mapping[str, Figure], keep: Keep = lambda _: None
) -> Figures:
    """Return the figures of a recipe on a data set with one seed.

    known: those that were measured before. keep: called with all after each row.
    """
    found = dict(known)
    for defence, lie, liars in rows_of(part):
        key = f"{part}.{defence.name}.{lie}.{liars}"
        if f"{key}.share" in found:
            continue
        tried = [
            MEASURES[part](part, case, defence, one, seed, quick) for one in tries(part, lie, defence, liars, quick)
        ]
        measured = [one for one in tried if one is not None]
        found[f"{key}.refused"] = 1.0 - len(measured) / len(tried)
        if not measured:
            found[f"{key}.share"] = 0.0
            keep(found)
            say(f"{key}: every sum is refused")
            continue
        if f"{part}.limit" not in found:
            honest = measured[0][1]
            error = float(honest.std()) / 2 / np.sqrt(honest.size)
            found[f"{part}.limit"] = float(honest.mean()) - ERRORS * error
        limit = float(found[f"{part}.limit"] or 0)
        adopted = [one for one in measured if float(one[1].mean()) >= limit]
        goal = _lowest if lie in ("noise", "flood") else _widest
        best = max(measured, key=goal)
        found |= {f"{key}.share": best[0], f"{key}.ndcg20": float(best[1].mean()), f"{key}.kept": best[2]}
        found[f"{key}.gated"] = max((one[0] for one in adopted), default=0.0)
        keep(found)
        say(f"{key}: share {best[0]:.3f} ndcg {float(best[1].mean()):.4f} gated {found[f'{key}.gated']:.3f}")
    return found


class Gated(Lied):
    """A federation that measures itself, with noise in all sums of training from round `lies_from` on; 0: in none."""

    lies_from = 0

    def _rows_lie(self, spec: RoundSpec, cohort: NDArray[np.int64], length: int) -> Floats | None:
        lies = 0 < self.lies_from <= spec.number and not self.recipe.layout(spec.sum_index).sum_class.repeated
        return self.liars.rng.standard_normal(length) if lies else None


def gate_figures(case: Case, seed: int, quick: bool) -> dict[str, Figure]:
    """Return what gates would refuse of the models of a task without one, by its own measurements."""
    train, found = case.train, dict[str, Figure]()
    sizes = advise(train.n_items, train.active_users.size, train.size)
    rounds = 25 if quick else sizes.rounds + sizes.rounds // 10
    parameters = parameters_for("colr", {"items": train.n_items}, clients=train.active_users.size)
    for lie in ("none", "noise"):
        made = Gated(
            train, "colr", parameters, cohort_size=sizes.cohort_size, seed=seed, sampling="turns",
            evaluation=Evaluation(every=10), schedule_rounds=rounds,
        )  # fmt: skip
        made.case, made.liars = case, Liars(Defence("checked"), Lie(lie, 1, always=True), seed)
        made.lies_from = rounds // 2 if lie == "noise" else 0
        for _ in made.run(rounds):
            pass
        layer = made.recipe.layer(Evaluated)
        assert layer is not None
        curve = layer.curve(made.state)
        so_far = [replace(curve, points=curve.points[:count]) for count in range(1, len(curve.points) + 1)]
        levels = [curve.metrics(point)["ndcg@10"] for point in curve.points]
        found |= {f"gate.{lie}.measured.{number}": level for number, level in enumerate(levels)}
        for gate in GATES:
            last = curve.adopted(gate)
            assert last is not None
            key = f"gate.z{gate:g}.{lie}"
            found[f"{key}.refused"] = sum(one.adopted(gate) is not one.points[-1] for one in so_far) / len(so_far)
            found[f"{key}.ndcg10"] = curve.metrics(last)["ndcg@10"]
            say(f"{key}: refused {found[f'{key}.refused']:.2f}, adopted {found[f'{key}.ndcg10']:.4f} of {levels}")
    return found


def cost(quick: bool) -> dict[str, Figure]:
    """Return what a round with groups costs the server, and a client, by one without."""
    found = dict[str, Figure]()
    for clients, groups, parameters in ((15, 3, FEW),) if quick else COSTS:
        values, given = (1000 if quick else 65_536), {"bits": 32} | parameters
        one = Shape(clients, values, 0 if quick else 5, given)
        split = replace(one, parameters=given | {"groups": groups})
        vectors = np.random.default_rng(3).uniform(-CLIP, CLIP, (clients, values))
        clocks = [[play_round(shape, vectors) for shape in (one, split)] for _ in range(1 if quick else 5)]
        seconds = [[clock.server_seconds + clock.clients["open"][0] for clock in pair] for pair in clocks]
        without, of_groups = (median(pair[at] for pair in seconds) for at in (0, 1))
        bodies = [shape.plan.contribution_bytes(shape.route) for shape in (one, split)]
        near = [shape.plan.neighbourhood(clients).degree for shape in (one, split)]
        key = f"cost.{clients}.groups{groups}"
        found |= {f"{key}.server_ms": 1e3 * without, f"{key}.server_ratio": of_groups / without}
        found |= {f"{key}.contribution_ratio": bodies[1] / bodies[0], f"{key}.neighbours_ratio": near[1] / near[0]}
        say(f"{key}: {found[f'{key}.server_ratio']:.3f} times {1e3 * without:.0f} ms")
    return found


def measured(options: argparse.Namespace) -> Figures:
    """Return all figures, means over the seeds that have them; `<set>.<recipe>.*.seeds` says how many these are."""
    figures: Figures = cost(options.quick) if "cost" in options.only else {}
    for part in (one for one in options.only if one != "cost"):
        for name in ("small",) if options.quick else options.sets or _SETS_OF.get(part, SETS):
            seeds = options.seeds[:1] if options.quick else options.seeds
            found = [kept(name, part, seed, options) for seed in seeds]
            for key in dict.fromkeys(key for one in found for key in one):
                values = [float(one[key] or 0) for one in found if key in one]
                figures[f"{name}.{key}"] = fmean(values)
                if key.endswith((".share", ".ndcg10")):
                    figures[f"{name}.{key.rpartition('.')[0]}.seeds"] = len(values)
    return figures


def kept(name: str, part: str, seed: int, options: argparse.Namespace) -> Figures:
    """Return the figures of a part: what the work folder has, and the rest measured; quick ones are always measured."""
    path: Path = options.work / f"{name}.{part}.{seed}.json"
    known: Figures = json.loads(path.read_text()) if path.exists() and not options.quick else {}
    if options.finished or (part == "gate" and known):
        return known

    def keep(found: Figures) -> None:
        if not options.quick:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1))

    say(f"{name}, {part}, seed {seed}")
    case = case_of(name, options.data_dir, seed)
    if part != "gate":
        return figures_of(part, case, seed, options.quick, known, keep)
    found = gate_figures(case, seed, options.quick)
    keep(found)
    return found


if __name__ == "__main__":
    parser = arguments(__doc__, parts=PARTS)
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("bench/results/local/robust"), help="folder of finished rows")
    parser.add_argument("--sets", nargs="+", choices=TRAINED_ON, help="data sets (default: those of each part)")
    parser.add_argument("--finished", action="store_true", help="measure no more rows: report those of --work")
    run("robust", parser, measured)
