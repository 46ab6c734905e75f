"""The sum of next items of `privirec-k`: what it is worth with and without an order, and what it gives away.

    .venv/bin/python -m bench.next_item --data-dir DATA [--worth SET] [--quick] [--json FILE]

`ml-100k.<arm>.<figure>`: NDCG@20 and HR@10 over all items of each user's latest one, means of three seeds. Arms: the
best EASE by validation rows (`central`), the recommended task without the sum (`none`), with it (`next`), and with the
times of each user's training items shuffled (`shuffled`), where it must add nothing.

`<set>.<figure>`: half of the clients take part, a quarter is known to who looks, as the population, and a quarter is
not. Lists of made-up data are in a random order. Who looks knows the sum, and of one person all items. The score is
that of a matched filter: (S - n mean)^T (Sigma + l I)^-1 s, s what the person would send, mean and Sigma of the known
ones, the best of four l for who looks.

| figure | meaning |
|---|---|
| `member` | area under the curve of members among others, by their items in their order |
| `member_iterations` | the same by the sums of the iterations, for comparison |
| `order` | share of a person's random orders of the items that score below the true one, members less others |
| `values_per_client` | of the sum |

`ml-100k.noise.<members>.<arm>`: NDCG@20 with the noise of a block of epsilon 4 over so many members like these, 0 for
none; `next` with half of the scores by order, `none` without the sum.

`ml-100k.promoted.<liars>`: users with an item of 20 owners in their first 20, the largest share for twelve items. Liars
know the model, the sum of all others and where the users are on average: each sends A = 0 and C = e x^T, x the item's
place and e the mean z, or the direction that moves the scores at the mean z most, whichever reaches more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, say
from bench.experiments.quality import BASELINES, scorer_of, split_of
from bench.exposure import data_of
from bench.figures import run
from bench.privacy_attacks import watched
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.evaluation.metrics import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import OneHeldOut
from client_sdk.training.graph_filters import Ease, blended, following
from client_sdk.training.privirec import PriviRecSide, components_of, trails
from protocols.advice import parameters_for
from protocols.recipes.base import Local, ModelState, RoundSpec
from protocols.recipes.next_item import model_of, next_length
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.spectrum import triangle_length
from protocols.recipes.state import state_as
from protocols.recipes.validation import Setting

Floats = NDArray[np.float64]
SEEDS: Final = (0, 1, 2)
_KEYS: Final = {"NDCG@20 full": "ndcg20", "HR@10 full": "hr10"}
_ORDERS: Final = 5
_LEAST: Final = 4  # items of a person whose order is guessed
_OWNERS: Final = 20
_TARGETS: Final = 12
_FEWEST: Final = 8
_MEMBERS: Final = (1_000, 10_000, 30_000, 100_000)
_EPSILON: Final = 4.0
_HONEST: Final = 0.9
_NOISY_VECTORS: Final = 32
_LIST: Final = 20
_WEIGHTS: Final = (1e-4, 1e-3, 1e-2, 1e-1)


# --- what it is worth -------------------------------------------------------------------------------------------------


def worth(data_dir: Path | None, seeds: tuple[int, ...], name: str = "ml-100k") -> dict[str, Figure]:
    """Return the figures of all arms on a set that has times."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        say(f"{name}, seed {seed}")
        split = split_of(name, data_dir or Path("data"), seed, False)
        for arm, scores in (
            ("central", _central(name, split, data_dir or Path("data"), seed)),
            ("none", trained(split.data.train, seed, {"next_vectors": 0})),
            ("next", trained(split.data.train, seed, {})),
            ("shuffled", trained(shuffled(split.data.train, seed), seed, {})),
        ):
            for key, value in split.measured(scores).values.items():
                if key in _KEYS:
                    say(f"{arm}: {key} {value:.4f}")
                    found.setdefault(f"{name}.{arm}.{_KEYS[key]}", []).append(value)
    figures: dict[str, Figure] = {key: float(np.mean(values)) for key, values in found.items()}
    for arm in ("next", "shuffled"):
        gain = float(figures[f"{name}.{arm}.ndcg20"] or 0) / float(figures[f"{name}.none.ndcg20"] or 1)
        figures[f"{name}.{arm}.gain"] = gain - 1
    figures[f"{name}.next.over_central"] = float(figures[f"{name}.next.ndcg20"] or 0) / float(
        figures[f"{name}.central.ndcg20"] or 1
    )
    return figures


def in_noise(data_dir: Path | None) -> dict[str, Figure]:
    """Return NDCG@20 with half of the scores by order and without, with the noise of a block, by its members.

    The noise in each sum is divided by members / 943, so that the figures are those of as many members who have what
    MovieLens-100K's have. It is Gaussian, of zero-concentrated privacy, with a tenth of the members not counted on.
    """
    split, figures = split_of("ml-100k", data_dir or Path("data"), 0, False), dict[str, Figure]()
    for members in (0, *_MEMBERS):
        for arm, count in (("none", 0), ("next", _NOISY_VECTORS)):
            noise = 0.0
            if members:
                noise = _deviation(_EPSILON, members**-1.1, 3 + bool(count)) * split.data.train.n_users / members
            scores = [_noisy(split.data.train, seed, count, noise) for seed in SEEDS[:2]]
            found = [split.measured(one).values["NDCG@20 full"] for one in scores]
            figures[f"ml-100k.noise.{members}.{arm}"] = float(np.mean(found))
            say(f"{members} members, {arm}: {np.mean(found):.4f}")
    return figures


def _deviation(epsilon: float, delta: float, sums: int) -> float:
    """Return the deviation of the noise in sums of L2 sensitivity 1 (Bun and Steinke, TCC 2016, proposition 1.3)."""
    rho = (np.sqrt(np.log(1 / delta) + epsilon) - np.sqrt(np.log(1 / delta))) ** 2
    return float(np.sqrt(sums / (2 * rho)) / np.sqrt(_HONEST))


def _noisy(train: Interactions, seed: int, count: int, noise: float) -> FullScorer:
    rng, clients, rows = np.random.default_rng(seed), train.active_users.size, interaction_rows(train)
    given = {"items": train.n_items, "components": min(256, train.n_items), "iterations": 3, "next_vectors": count}
    block = {"user_exponent": 0.5, "item_exponent": 0.0, "degrees": False, "reveal_gram": True}
    made = Federation(train, "privirec-k", {**given, **block}, cohort_size=clients, seed=seed, masks=False)
    kind: Any = type(made.recipe)

    class Noisy(kind):
        def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Any:
            return super().absorb(
                state, replace(spec, noise=noise), total + noise * rng.standard_normal(total.size), contributions
            )

    made.recipe = recipe = Noisy(*(getattr(made.recipe, each.name) for each in fields(made.recipe)))
    for _ in made.run(99):
        pass
    components, state = components_of(recipe, made.state), state_as(made.state, PriviRecState)

    def scores(users: NDArray[np.integer]) -> NDArray[np.float32]:
        found = Ease().scores(components, rows[users])
        if not count:
            return found
        half = Setting(share=0.5)
        ends = trails(recipe, state, [_order(train, int(user)) for user in users])
        return blended(components, half, found, following(components, ends, half))

    return scores


def shuffled(train: Interactions, seed: int) -> Interactions:
    """Return the interactions with each user's times in a random order."""
    rng, times = np.random.default_rng([seed, 8]), np.array(train.timestamps)
    for user in range(train.n_users):
        own = train.rows_of(user)
        times[own] = rng.permutation(times[own])
    return replace(train, timestamps=times)


def _central(name: str, split: OneHeldOut, data_dir: Path, seed: int) -> Any:
    chosen = split_of(name, data_dir, seed, True)

    def validated(settings: Any) -> float:
        scorer = scorer_of("ease", settings, chosen, seed)
        return 0.0 if scorer is None else chosen.measured(scorer).values["NDCG@20 full"]

    return scorer_of("ease", max(BASELINES["ease"], key=validated), split, seed)


def trained(train: Interactions, seed: int, given: dict[str, Any]) -> FullScorer:
    """Return the scores of the recommended task, with its sum of next items unless `given` says otherwise."""
    made = _federation(train, seed, given)
    for _ in made.run(99):
        pass
    return made.scores


def _federation(train: Interactions, seed: int, given: dict[str, Any]) -> Federation:
    clients = train.active_users.size
    parameters = parameters_for(
        "privirec-k", {"items": train.n_items, **given}, clients=clients, mean_items=train.size / clients, ordered=True
    )
    if not given:
        parameters["next_vectors"] = parameters["next_vectors"] or _FEWEST  # of few clients, in a quick run
    return Federation(train, "privirec-k", parameters, cohort_size=clients, seed=seed, masks=False)


# --- what it gives away -----------------------------------------------------------------------------------------------


def traced(name: str, clients: int, data_dir: Path | None) -> dict[str, Figure]:
    """Return the figures of an advised task of half of so many clients."""
    train, rng = data_of(name, clients, data_dir), np.random.default_rng(0)
    if train.timestamps is None:
        train = replace(train, timestamps=rng.permutation(train.size))
    people = rng.permutation(train.active_users)
    members, others, known = np.split(people, [people.size // 2, 3 * people.size // 4])
    inside = train.where(np.isin(train.users, members))
    given = {"items": train.n_items, "validation": 0.0}
    sizes = {"clients": members.size, "mean_items": inside.size / members.size}
    parameters = parameters_for("privirec-k", given, ordered=True, **sizes)
    parameters["next_vectors"] = parameters["next_vectors"] or _FEWEST
    made = Federation(inside, "privirec-k", parameters, cohort_size=members.size, masks=False)
    recipe, bases = made.recipe, list[Floats]()
    assert isinstance(recipe, PriviRecK)
    for _ in range(recipe.last_iteration):
        if (basis := state_as(made.state, PriviRecState).basis).size:
            bases.append(basis.astype(np.float64))
        next(made.run(1))
    state = state_as(made.state, PriviRecState)
    spec = recipe.round_spec(made.task_seed, recipe.last_iteration + 1)

    def sent(order: NDArray[np.int32]) -> Floats:
        return np.asarray(recipe.contribute(state, spec, Local(order)).vector)

    orders = {int(user): _order(train, int(user)) for user in people}
    groups = [np.array([sent(orders[int(user)]) for user in group]) for group in (members, others, known)]
    figures: dict[str, Figure] = {
        "values_per_client": next_length(recipe.parameters.next_vectors) / members.size,
        "member_iterations": _by_iterations(train, recipe, state, bases, (members, others, known)),
    }
    areas, guesses = [], []
    for weight in _WEIGHTS:
        matched = _filter(groups[0].sum(0), len(members), groups[2], weight)
        areas.append(_area(groups[0] @ matched, groups[1] @ matched))
        right = [
            np.mean([_share(sent, matched, own, rng) for user in group if (own := orders[int(user)]).size >= _LEAST])
            for group in (members, others)
        ]
        guesses.append(right[0] - right[1])
    return figures | {"member": max(areas), "order": float(max(guesses))}


def _order(train: Interactions, user: int) -> NDArray[np.int32]:
    times = train.history(user).times
    assert times is not None
    return train.positives(user)[np.argsort(times, kind="stable")]


def _filter(total: Floats, count: int, known: Floats, weight: float) -> Floats:
    """Return (Sigma + l I)^-1 (S - n mean), l = weight tr(Sigma), float64 (values,)."""
    mean, level = known.mean(0), weight * known.var(0).sum()
    rest, looked = known - mean, total - count * mean
    small = rest @ rest.T + level * len(rest) * np.eye(len(rest))
    return np.asarray((looked - rest.T @ np.linalg.solve(small, rest @ looked)) / level)


def _area(members: Floats, others: Floats) -> float:
    return float((members[:, None] > others).mean())


def _share(sent: Callable[..., Floats], matched: Floats, order: NDArray[np.int32], rng: np.random.Generator) -> float:
    """Return the share of random orders that score below the true one."""
    true = float(sent(order) @ matched)
    scores = [float(sent(rng.permutation(order)) @ matched) for _ in range(_ORDERS)]
    return float(np.mean([(score < true) + 0.5 * (score == true) for score in scores]))


def _by_iterations(
    train: Interactions, recipe: PriviRecK, state: PriviRecState, bases: list[Floats], groups: tuple[Any, Any, Any]
) -> float:
    """Return the area under the curve by the sums of the iterations, of which every row has all columns.

    What u sends has with what v sends the inner product (r_u . r_v) (r_u Q . r_v Q), so no sum is made.
    """
    kept, (members, others, known) = recipe.kept(state), groups
    rows = np.asarray(interaction_rows(train).toarray(), np.float64)[:, kept]
    rows *= np.maximum(rows.sum(1), 1)[:, None] ** -recipe.parameters.user_exponent * recipe.item_scales(state)[kept]
    products = sum(((rows @ rows.T) * (rows @ q[kept] @ (rows @ q[kept]).T) for q in bases), np.zeros(()))
    people = np.concatenate([members, others])

    def centred(first: Any, second: Any) -> Floats:
        both = products[np.ix_(first, second)] + products[np.ix_(known, known)].mean()
        less = products[np.ix_(first, known)].mean(1)[:, None] + products[np.ix_(known, second)].mean(0)
        return np.asarray(both - less)

    among, areas = centred(known, known), []
    for weight in _WEIGHTS:
        level = weight * np.trace(among) * np.eye(known.size)
        looked = centred(known, members).sum(1)
        found = centred(people, members).sum(1) - centred(people, known) @ np.linalg.solve(among + level, looked)
        areas.append(_area(found[: members.size], found[members.size :]))
    return max(areas)


# --- what liars in it reach -------------------------------------------------------------------------------------------


def promoted(data_dir: Path | None) -> dict[str, Figure]:
    """Return the largest shares of users that liars reach with an item, by their number."""
    split = split_of("ml-100k", data_dir or Path("data"), 0, False)
    train, users = split.data.train, split.data.tested_users
    made = _federation(train, 0, {})
    recipe, states, totals = made.recipe, list[PriviRecState](), list[Floats]()
    assert isinstance(recipe, PriviRecK) and isinstance(made.client_side, PriviRecSide)
    made.recipe = watched(recipe, totals)
    for _ in made.run(99):
        states.append(state_as(made.state, PriviRecState))
    state, total, count = states[-1], totals[recipe.last_iteration], recipe.parameters.next_vectors
    orders, found = [_order(train, int(user)) for user in users], state.singular_values[:count] > 0
    mean = trails(recipe, state, list(orders)).mean(0)
    seen, rows = interaction_rows(train)[users].toarray() > 0, interaction_rows(train)[users]
    shares: dict[str, Figure] = {}
    nearest = np.argsort(np.abs(train.item_degrees() - _OWNERS), kind="stable")
    for item in nearest[:_TARGETS]:
        place = recipe.places_of(state, np.array([item], np.int32))[0]
        moves = _solved(total, count, mean)
        for direction, liars in product((mean, moves), (0, 1, 5)):
            lie = np.outer(direction, place)
            sent = np.concatenate([np.zeros(triangle_length(count)), lie.ravel() / (np.linalg.norm(lie) or 1.0)])
            changed = replace(state, transitions=model_of(total + liars * sent, count, found))
            scores = np.where(seen, -np.inf, made.client_side.scores_of(changed, rows, list(orders)))
            above = (scores > scores[:, [item]]).sum(1)
            share, name = float(((above < _LIST) & ~seen[:, item]).mean()), f"ml-100k.promoted.{liars}"
            shares[name] = max(share, float(shares.get(name) or 0))
    return shares


def _solved(total: Floats, count: int, mean: Floats) -> Floats:
    """Return (A + l I)^-1 z: the e for which a C of e x^T moves scores at z most."""
    known = np.concatenate([total[: triangle_length(count)], np.eye(count).ravel()])
    return np.asarray(model_of(known, count, np.ones(count, bool)).astype(np.float64) @ mean)


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    seeds = SEEDS[:1] if options.quick else SEEDS
    if options.worth:
        return worth(options.data_dir, seeds, options.worth)
    figures = worth(options.data_dir, seeds) | promoted(options.data_dir) | in_noise(options.data_dir)
    for name, clients in (("ml-100k", 943), ("long", 800), ("short", 800)):
        say(name)
        found = traced(name, 160 if options.quick else clients, options.data_dir)
        figures |= {f"{name}.{key}": value for key, value in found.items()}
    figures["order"] = max(float(figures[f"{name}.order"] or 0) for name in ("ml-100k", "long", "short"))
    return figures


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--worth", help="only what it is worth on this set: ml-100k, ml-small, insteval or journey")
    parser.add_argument("--data-dir", type=Path, help="folder of data sets (default: data)")
    run("next_item", parser, measure)
