"""How well recipes rank when a privacy block bounds what each client spends: against epsilon, and against users.

    python -m bench.experiments.privacy --quick                              one small run of each kind
    python -m bench.experiments.privacy --data-dir DATA                      all rows; finished ones are kept
    python -m bench.experiments.privacy --data-dir DATA --only users privirec-k

A row is `<set>.<method>.eps<epsilon>` or `<set>.users<n>.<method>.eps<epsilon>`; `epsnone` has no noise. delta is
n^-1.1, and a tenth of the clients is not counted on. In rows of `users` the clients are resampled from the set's users,
each with a random 70 % of its rows. Ranked is the held-out item of the set's own users, from all their training rows.

Tasks with noise are federations in one process over masked sums without masks (`client_sdk.lab.federation`), where the
noise of all clients is one draw of the same distribution as the sum of their shares. PriviRec's sums are computed for
all clients at once. `colr` and `arrays` run client by client; with a privacy block each client is in two sums at most,
which is what its budget pays for: CoLR's count and a few of the clients again, then every client once.

`later`: a task of one iteration that starts from the vectors of a task of other clients, with the same epsilon.
`local`: each client's noise alone gives the guarantee, so that no sum need hide it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from bench._report import Figure
from bench.experiments.quality import split_of, values_of
from bench.experiments.rows import Found, Values, means, measure_seeds
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.evaluation.metrics import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.lab.whole import noise_of_all
from client_sdk.training.graph_filters import FILTERS
from client_sdk.training.privirec import components_of
from protocols.advice import parameters_for
from protocols.messages.privacy import Privacy
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import Local, ModelState
from protocols.recipes.factors import CountedFactors
from protocols.recipes.private import NoiseTerms, Private, with_privacy
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.state import state_as

_SETS: Final = ("ml-1m", "gowalla")
_EPSILONS: Final = ("0.5", "1", "2", "4", "8", "16", "none")
_USERS: Final = (10_000, 30_000, 100_000, 400_000, 1_000_000)
_METHODS: Final = ("popularity", "popularity-local", "privirec", "privirec-k", "privirec-k-local", "arrays", "colr")
_WITHOUT_NOISE: Final = {"iterations": 5}
"""Of tasks without noise, in which more iterations cost nothing."""
_LOCAL_COMPONENTS: Final = 16
"""With more, a client's steps would be so fine that its noise alone could not be drawn; no component is above it."""
_KEPT: Final = 0.7
_TURNS: Final = 10
"""Sums of `colr` and `arrays` in which everybody is once."""
_DIM, _RATE, _NEGATIVES = 16, 0.5, 4


# --- Clients and tasks of all of them


def resampled(train: Interactions, clients: int, seed: int) -> Interactions:
    """Return so many clients, each with a random part of the rows of a random user; those left without are dropped."""
    rng, rows = np.random.default_rng([seed, 7]), interaction_rows(train)
    found = rows[rng.integers(0, train.n_users, clients)]
    found.data *= rng.random(found.nnz) < _KEPT
    found.eliminate_zeros()
    sizes = np.diff(found.indptr)
    edges = np.concatenate([[0], np.cumsum(sizes[sizes > 0], dtype=np.int64)])
    return Interactions(edges.size - 1, train.n_items, edges, found.indices.astype(np.int32))


def _block(train: Interactions, epsilon: float | None, **more: Any) -> Privacy | None:
    if epsilon is None:
        return None
    return Privacy(epsilon=epsilon, delta=train.active_users.size**-1.1, corrupt=0.1, **more)


def _run(
    train: Interactions,
    recipe: str,
    parameters: dict[str, Any],
    sums: int,
    privacy: Privacy | None,
    seed: int,
    local: bool = False,
    start: ModelState | None = None,
    cohort: int = 0,
) -> Federation:
    """Run a task of so many sums, none of which fails. local: each client's noise alone gives the guarantee. cohort: 0:
    all clients."""
    if privacy is not None:
        privacy = privacy.model_copy(update={"rounds": privacy.rounds or sums})
    made = Federation(
        train, recipe, parameters, "masked", cohort_size=cohort or train.active_users.size, seed=seed, masks=False,
        schedule_rounds=sums, privacy=privacy,
    )  # fmt: skip
    if local and privacy is not None:
        terms = NoiseTerms(privacy.epsilon, privacy.delta, sums, honest=1)
        made.recipe = Private(made.recipe.own, privacy, terms)
    if start is not None:
        assert isinstance(made.recipe, Private)
        made.state = made.recipe.starting(start)
    list(made.run(sums))
    return made


def train_spectrum(
    train: Interactions,
    name: str,
    epsilon: float | None,
    seed: int,
    local: bool = False,
    earlier: Interactions | None = None,
) -> tuple[PriviRecK, PriviRecState]:
    """Run a task of `privirec-k` or `privirec`; its recipe and last state.

    earlier: clients of a task before, with the same epsilon, from whose vectors this one starts.
    """
    given: dict[str, Any] = {"items": train.n_items}
    given |= {"components": min(_LOCAL_COMPONENTS, train.n_items)} if local else {}
    given |= _WITHOUT_NOISE if epsilon is None else {}
    parameters = parameters_for(name, given, noisy=True, started=earlier is not None)
    inner = make_recipe(name, parameters, noisy=True)
    assert isinstance(inner, PriviRecK)
    if epsilon is None:
        return inner, exactly(inner, train)
    start = None
    if earlier is not None:
        _, before = train_spectrum(earlier, name, epsilon, seed + 1, local)
        start, _ = inner.starting_from(before.basis)
    made = _run(train, name, parameters, inner.steps, _block(train, epsilon), seed, local, start)
    recipe = made.recipe.own
    assert isinstance(recipe, PriviRecK)
    return recipe, state_as(made.state, PriviRecState)


def exactly(recipe: PriviRecK, train: Interactions) -> PriviRecState:
    """Return the state after all sums without noise, which follow from P = R~^T R~; for rows of length 1."""
    rows = interaction_rows(train)[train.active_users].astype(np.float64)
    scaled = csr_array(diags_array(np.diff(rows.indptr) ** -0.5) @ rows)
    whole, state = (scaled.T @ scaled).toarray(), recipe.initial_state(bytes(32))
    for number in range(1, recipe.steps + 1):
        spec = recipe.round_spec(bytes(32), number)
        is_gram = recipe.sum_of(number) == "gram"
        total = whole[np.triu_indices(train.n_items)] if is_gram else whole @ recipe.basis_before(state, spec)
        state = state_as(recipe.absorb(state, spec, total.ravel(), rows.shape[0]), PriviRecState)
    return state


def train_popularity(train: Interactions, epsilon: float | None, seed: int, local: bool) -> NDArray[np.floating]:
    """Sum the item counts once; the scores of all users, (items,)."""
    parameters = {"items": train.n_items, "dim": 1, "item_bias": "counts"}
    made = _run(train, "fedmf", parameters, 1, _block(train, epsilon), seed, local)
    return state_as(made.state, CountedFactors).biases


# --- Trained recipes, client by client


def _sizes(train: Interactions, quick: bool) -> tuple[int, int]:
    """Return the sums of one turn of all clients, and the clients of each."""
    return 1 if quick else _TURNS, max(2, ceil(train.active_users.size / _TURNS))


def train_colr(train: Interactions, privacy: Privacy | None, seed: int, quick: bool) -> FullScorer:
    """Train recommended CoLR: a sum of counts, then ten of changes. Sums are those of masked rounds."""
    turn, cohort = _sizes(train, quick)
    given = parameters_for("colr", {"items": train.n_items})
    return _run(train, "colr", given, turn + 1, privacy, seed, cohort=cohort).scores


def train_arrays(train: Interactions, privacy: Privacy | None, seed: int, quick: bool) -> FullScorer:
    """Train item vectors and biases; a user's vector is the mean of those of its items. Two turns of all clients."""
    (turn, cohort), able = _sizes(train, quick), train.active_users
    shapes = {"biases": [train.n_items], "items": [train.n_items, _DIM]}
    inner = make_recipe("arrays", {"shapes": shapes, "std": 0.1, "stds": {"biases": 0.0}, "server_rate": 20.0})
    assert isinstance(inner, Arrays)
    made = with_privacy(inner, privacy, 2 * turn, cohort, cohort)
    rng, state = np.random.default_rng([seed, 9]), made.initial_state(bytes(32))
    order = np.concatenate([rng.permutation(able), rng.permutation(able)])
    for number in range(1, 2 * turn + 1):
        spec, total = made.round_spec(bytes(32), number), np.zeros(made.layout(number).length)
        asked = order[(number - 1) * cohort : number * cohort]
        for user in asked:
            change = _trained(inner.arrays(state), train.positives(int(user)), rng)
            sent = inner.contribute(state, spec, Local(change))
            if isinstance(made, Private):
                sent = made.limited(state, spec, sent, os.urandom)
            total += sent.vector
        if isinstance(made, Private):
            total += noise_of_all(made, spec, total.size, asked.size, rng)
        state = made.absorb(state, spec, total, asked.size)
    arrays = inner.arrays(state)

    def scores(users: NDArray[np.intp]) -> NDArray[np.floating]:
        vectors = np.stack([arrays["items"][train.positives(int(user))].mean(axis=0) for user in users])
        return np.asarray(vectors @ arrays["items"].T + arrays["biases"])

    return scores


def _trained(
    arrays: dict[str, NDArray[np.float32]], own: NDArray[np.int32], rng: np.random.Generator
) -> dict[str, Any]:
    """Return the change of one gradient step of the logistic loss on a client's items and drawn negatives."""
    items = np.concatenate([own, rng.integers(0, len(arrays["items"]), _NEGATIVES * own.size)])
    labels = np.arange(items.size) < own.size
    vector = arrays["items"][own].mean(axis=0)
    errors = (labels - 1 / (1 + np.exp(-(arrays["items"][items] @ vector + arrays["biases"][items])))) / own.size
    changes = {name: np.zeros_like(array) for name, array in arrays.items()}
    np.add.at(changes["biases"], items, _RATE * errors)
    np.add.at(changes["items"], items, _RATE * errors[:, None] * vector)
    changes["items"][own] += _RATE * (errors @ arrays["items"][items]) / own.size
    return changes


# --- Rows


def _names() -> Iterator[tuple[str, str]]:
    """Yield data set and name of each row."""
    for dataset in _SETS:
        for method in _METHODS:
            yield from ((dataset, f"{method}.eps{epsilon}") for epsilon in _EPSILONS if _has(method, epsilon))
    for users in _USERS:
        for epsilon in ("2", "4", "none"):
            for method in ("popularity", "privirec", "privirec-k", "privirec-k-later"):
                if _has(method, epsilon):
                    yield "ml-1m", f"users{users}.{method}.eps{epsilon}"


def _has(method: str, epsilon: str) -> bool:
    return epsilon != "none" or not method.endswith(("local", "later"))


_newest: dict[tuple[str, int, int | None], tuple[OneHeldOut, Interactions]] = {}
"""The newest split and its clients: they are large, and the rows that need them follow each other."""


def _clients(
    dataset: str, seed: int, users: int | None, validation: bool, data_dir: Path
) -> tuple[OneHeldOut, Interactions]:
    if (dataset, seed, users) not in _newest:
        _newest.clear()
        split = split_of(dataset, data_dir, seed, validation)
        train = split.data.train
        _newest[dataset, seed, users] = split, train if users is None else resampled(train, users, seed)
    return _newest[dataset, seed, users]


def _measured(dataset: str, name: str, seed: int, validation: bool, quick: bool, data_dir: Path) -> Values:
    *between, method, last = name.replace("eps0.5", "eps1/2").split(".")
    epsilon = None if last == "epsnone" else 0.5 if last == "eps1/2" else float(last.removeprefix("eps"))
    users = int(between[0].removeprefix("users")) if between else None
    if quick and ((users or 0) > _USERS[0] or epsilon not in (None, 4.0)):
        return {}
    split, train = _clients(dataset, seed, users, validation, data_dir)
    own, local = split.data.train, method.endswith("-local")
    match kind := method.removesuffix("-local").removesuffix("-later"):
        case "popularity":
            counts = train_popularity(train, epsilon, seed, local)
            return values_of(lambda asked: np.broadcast_to(counts, (asked.size, counts.size)), split)
        case "colr" | "arrays":
            trained = train_colr if kind == "colr" else train_arrays
            return values_of(trained(own, _block(own, epsilon, clip=0.5, rounds=2), seed, quick), split)
    earlier = resampled(own, users or 0, seed + 100) if method.endswith("-later") else None
    components, rows = components_of(*train_spectrum(train, kind, epsilon, seed, local, earlier)), interaction_rows(own)
    scores = FILTERS["ease"].scores(components, rows)
    return values_of(lambda asked: scores[asked], split)


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, and NDCG@20 divided by that without noise and by that of exact popularity."""
    figures = means(found)
    for row in found:
        base = row.partition(".eps")[0]
        exact, popular = f"{base.removesuffix('-later')}.epsnone", f"{base.rpartition('.')[0]}.popularity.epsnone"
        for name, other in (("kept", exact), ("over_popularity", popular)):
            if other in found and other != row:
                ratio = float(figures[f"{row}.ndcg20"] or 0) / float(figures[f"{other}.ndcg20"] or 1)  # type: ignore[arg-type]
                figures[f"{row}.{name}"] = ratio
    return figures


if __name__ == "__main__":
    sys.exit(measure_seeds(__doc__ or "", _names(), _measured, figures_of))
