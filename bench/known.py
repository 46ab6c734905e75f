"""What sums without noise say to somebody who knows part of a member's list: figures of `bench.exposure`.

`told`: which items one client alone has. `half`: a random half of each client's items. Both know all sums, and who is
in them; `half` is compared with what the lists of everybody else say of the same client.

A client's changes of its items have much the same direction, that of its factors, and a sum over many rounds is a
projection of who has which items together on random directions. `half` ranks the other items of a client by the
direction of those that are known, and by ridge regression of what is known of all clients on the rows of the sums; of a
`privirec-k` task it ranks them by the model. The best of these, weighted with the counts as is best, is what is
reported.

What everybody else's lists say is EASE (Steck, WWW 2019) trained on them without the client, with the best of three
weights. A model that is useful says so much, whether the client takes part or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from bench._report import Figure
from bench.privacy_attacks import watched
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from protocols.advice import advise, parameters_for
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.state import state_as

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = dict[str, dict[str, Figure]]
"""Row -> its figures."""
_WEIGHTS: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_RIDGES: Final = (1.0, 10.0, 100.0)
EASE_WEIGHTS: Final = (10.0, 100.0, 1000.0)


def has_of(train: Interactions) -> Bools:
    """Return which client has which item, bool (clients, items)."""
    found = np.zeros((train.n_users, train.n_items), bool)
    found[train.users, train.items] = True
    return found[train.active_users]


def popularity(has: Bools) -> Floats:
    """Return what the counts say of each client's items, float64 (clients, items): the same of all."""
    return np.tile(np.log1p(has.sum(0)).astype(float), (len(has), 1))


def auc(has: Bools, scores: Floats, known: Bools | None = None) -> float:
    """Return the mean area under the curve of the clients' items among all others, but for those that are `known`."""
    found = []
    for client, (own, score) in enumerate(zip(has, scores, strict=True)):
        asked = slice(None) if known is None else ~known[client]
        positives, others = np.sort(score[asked][own[asked]]), np.sort(score[asked][~own[asked]])
        if positives.size and others.size:  # equal scores count a half
            below = np.searchsorted(others, positives).sum() + np.searchsorted(others, positives, "right").sum()
            found.append(below / (2 * positives.size * others.size))
    return float(np.mean(found))


def exact(has: Bools, scores: Floats) -> float:
    """Return the share of the clients whose items all have higher scores than the others."""
    lowest, highest = np.where(has, scores, np.inf).min(1), np.where(has, -np.inf, scores).max(1)
    return float(np.mean((lowest > highest) & has.any(1)))


def told(train: Interactions, name: str, rounds: int) -> Rows:
    """Return the figures of a task whose sums are over everybody, for somebody who knows whose items have one owner."""
    has = has_of(train)
    made = Federation(train, name, parameters_for(name, {"items": train.n_items}), cohort_size=len(has), masks=False)
    sizes = advise(train.n_items, len(has), train.size)
    rows = np.concatenate([change for _, change in _changes(made, min(sizes.rounds, rounds))], axis=1)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    owned = has & (has.sum(0) == 1)
    known = np.flatnonzero(owned.any(1))
    directions = np.stack([rows[owned[client]].mean(0) for client in known]).astype(np.float64)
    lower = cholesky(directions @ directions.T + 1e-9 * np.eye(known.size), lower=True)
    products = solve_triangular(lower, directions @ rows.T, lower=True)
    scores = popularity(has)
    scores[known] = np.stack([nnls(lower.T, product)[0] for product in products.T], axis=1)
    alone = auc(has, popularity(has))
    return {"": {"auc": auc(has, scores), "popularity": alone, "read": exact(has, scores)}}


def half(train: Interactions, name: str, rounds: int | None = None) -> Rows:
    """Return the figures of an advised task for somebody who knows half of each client's items.

    Of cohorts that take turns, those of the first one, from its own sums. rounds: fewer than advised, for a quick run.
    """
    items, everybody = train.n_items, has_of(train)
    if name == "privirec-k":
        places = np.arange(len(everybody))
        seen: Callable[[Bools], Iterator[Floats]] = partial(_by_model, *_spectrum(train))
    else:
        sizes = advise(items, len(everybody), train.size)
        made = Federation(
            train, name, parameters_for(name, {"items": items}), cohort_size=min(sizes.cohort_size, len(everybody)),
            sampling="turns", masks=False,
        )  # fmt: skip
        sums: dict[tuple[int, ...], list[NDArray[np.float32]]] = {}
        for users, change in _changes(made, min(sizes.rounds, rounds or sizes.rounds)):
            sums.setdefault(tuple(np.sort(users).tolist()), []).append(change)
        first, changes = next(iter(sums.items()))
        places = np.searchsorted(train.active_users, first)
        seen = partial(_by_rows, np.concatenate(changes, axis=1))
    has = everybody[places]
    known = has & (np.random.default_rng(0).random(has.shape) < 0.5)
    popular = np.tile(popularity(everybody)[0], (len(has), 1))
    alone = auc(has, popular, known)
    figures = {"popularity": alone, "auc": _best(has, known, popular, seen(known), alone)}
    return {"": figures | {"others": _best(has, known, popular, by_others(everybody, has, known), alone)}}


def _best(has: Bools, known: Bools, popular: Floats, rankings: Iterator[Floats], alone: float) -> float:
    """Return the largest area by one of the rankings, float64 (clients, items), and the counts, `alone` at least."""
    found = alone
    for scores in rankings:
        scores = scores / (scores.std() + 1e-12)
        found = max([found, *(auc(has, popular + weight * scores, known) for weight in _WEIGHTS)])
    return found


def _changes(made: Federation, rounds: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Run a task that trains, and yield the users of each sum of changes, and its rows, float32 (items, width)."""
    items, totals = made.recipe.parameters.items, list[Floats]()
    made.recipe = watched(made.recipe, totals)
    for done in made.run(rounds):
        if done.number >= made.recipe.main_sum:
            width = totals[-1].size // items
            users = made.cohort(made.recipe.round_spec(made.task_seed, done.number))
            yield users, totals[-1][: items * width].reshape(items, width).astype(np.float32)
        totals.clear()


def _by_rows(rows: NDArray[np.float32], known: Bools) -> Iterator[Floats]:
    """Yield scores by the rows of all sums, float32 (items, values), centred: by the mean direction of a client's known
    items, and by ridge regression of all that is known on the rows."""
    directions = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).astype(np.float64)
    centred = directions - directions[known.any(0)].mean(0)
    mean = known @ centred
    yield mean @ centred.T / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-9)
    inner, target = directions @ directions.T, known - known.mean(0)
    for ridge in _RIDGES:
        yield np.asarray(target @ np.linalg.solve(inner + ridge * np.eye(len(inner)), inner))


def _spectrum(train: Interactions) -> tuple[PriviRecState, NDArray[np.int64]]:
    """Return the model of an advised `privirec-k` task, and which items it has."""
    given: dict[str, Any] = {"items": train.n_items, "validation": 0.0}  # which says nothing of lists
    clients = train.active_users.size
    parameters = parameters_for("privirec-k", given, clients=clients, mean_items=train.size / clients)
    made = Federation(train, "privirec-k", parameters, cohort_size=clients, masks=False)
    recipe = made.recipe
    assert isinstance(recipe, PriviRecK)
    for _ in made.run(recipe.steps):
        pass
    state = state_as(made.state, PriviRecState)
    return state, recipe.kept(state)


def _by_model(state: PriviRecState, kept: NDArray[np.int64], known: Bools) -> Iterator[Floats]:
    """Yield scores by the item-item matrix of a model's spectrum, with the items scaled in three ways; none by a task
    that ended before the iterations, since so few may have no sum of them."""
    if not state.basis.size:
        return
    vectors = state.basis[kept].astype(np.float64)
    weighted = vectors * np.sqrt(state.singular_values)
    lengths = np.maximum(np.linalg.norm(weighted, axis=1, keepdims=True), 1e-9)
    for scaled in (weighted, weighted / lengths, vectors):
        matrix, scores = scaled @ scaled.T, np.zeros(known.shape)
        np.fill_diagonal(matrix, 0.0)
        scores[:, kept] = known[:, kept] @ matrix
        yield scores


def by_others(everybody: Bools, has: Bools, known: Bools) -> Iterator[Floats]:
    """Yield scores by EASE of all lists but the client's own: the inverse of the Gram matrix without its row follows
    from that with it (Sherman and Morrison)."""
    lists, own, given = everybody.astype(np.float64), has.astype(np.float64), known.astype(np.float64)
    for weight in EASE_WEIGHTS:
        inverse = np.linalg.inv(lists.T @ lists + weight * np.eye(lists.shape[1]))
        moved = own @ inverse
        left = 1.0 - (moved * own).sum(1)[:, None]
        diagonal = np.diag(inverse) + moved**2 / left
        yield -(given @ inverse + (given * moved).sum(1)[:, None] * moved / left) / diagonal
