"""RFRec and RFRecF (Liu et al., CIKM 2024) on MovieLens: errors of predicted ratings, compared with the paper's.

80% of the rating rows train, 20% are predicted, drawn at random as in the released code, with the run's seed. The last
round counts. Predictions are not clipped to 1..5: the paper does not mention it, and with a sigmoid it has no effect.

A run is named by its variant and its devices. "blocks200" are the released notebook's: 200 devices, each with the
ratings of users/200 consecutive users; "users" is one user per device, as in the service. The paper does not state what
a dropped device misses. "dropped" devices miss the whole round and continue to train with the last average that they
know, as the service's clients do. "unheard" devices receive every average, and only their contribution is lost.

RFRecF's "squared" uses the paper's penalty on |u|^2 instead of the released code's on |u|, with which it overfits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.experiments.rows import Row, Values
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import split_rows
from client_sdk.lab.evaluation.controls import rating_errors
from client_sdk.training.adam import Adam
from client_sdk.training.rfrec import LocalModel, Ratings, predicted_ratings
from protocols.crypto.keys import derive_seed
from protocols.errors import ParameterError
from protocols.recipes.base import Local, RoundSpec
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import INITIAL_STD, RFRec

# --- What Laplace noise costs one device that takes part in every sum

DELTA: Final = 1e-5
_ORDERS: Final = 1 + np.geomspace(1e-9, 1e6, 6001)
"""Renyi orders that are tried; each gives a valid bound, so their minimum is valid."""


def renyi_divergence(epsilon: float, order: float) -> float:
    """Return the Renyi divergence of `order` > 1 between two Laplace distributions `epsilon` scales apart.

    Mironov, "Renyi Differential Privacy" (CSF 2017), proposition 6: with a the order and e the distance, 1 / (a - 1)
    times the log of a / (2a - 1) exp((a - 1) e) + (a - 1) / (2a - 1) exp(-a e). The divergence of the discrete
    distributions that are used differs by a factor of less than 1e-12, as their steps are 2**-20 of a scale.
    """
    above = order - 1
    share = order / (order + above)
    if above * epsilon < 1:  # both terms are close to their weights, which add up to 1
        moved = share * math.expm1(above * epsilon) + (1 - share) * math.expm1(-order * epsilon)
        return math.log1p(moved) / above
    rest = (1 - share) / share * math.exp(-(order + above) * epsilon)
    return epsilon + (math.log(share) + math.log1p(rest)) / above


def renyi_epsilon(epsilon: float, releases: int, delta: float) -> float:
    """Return epsilon at `delta` of `releases` values with Laplace noise of pure `epsilon` each, all of one user's data.

    Mironov 2017, propositions 1 and 3: divergences add up, and order a adds ln(1 / delta) / (a - 1).
    """
    orders = _ORDERS.tolist()
    return min(releases * renyi_divergence(epsilon, a) + math.log(1 / delta) / (a - 1) for a in orders)


# --- All devices of an RFRec federation in one process, trained with the client side's steps, without sealing


class Devices:
    """The devices of all users in `train`: one per user, or `blocks` of consecutive users of about equal size.

    Devices without ratings take no part. A device starts in the round in which it is first present, with the average of
    that round. Raises `ParameterError` if the data has no ratings.
    """

    def __init__(self, train: Interactions, recipe: RFRec, seed: int, blocks: int | None = None) -> None:
        if train.ratings is None:
            raise ParameterError("RFRec needs ratings, and the data set has none")
        self.recipe, self._rule = recipe, recipe.parameters.rule
        self.task_seed = derive_seed(str(seed).encode(), "simulation task")
        self.state = recipe.initial_state(self.task_seed)
        shape = (train.n_users, recipe.parameters.dim)
        first = INITIAL_STD * np.random.default_rng([seed, 1]).standard_normal(shape)
        self.users = first.astype(np.float32)
        count = train.n_users if blocks is None else blocks
        edges = np.arange(count + 1) * train.n_users // count
        self._owned = [slice(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        self._ratings = [_ratings(train, owned, recipe) for owned in self._owned]
        self._models: list[LocalModel | None] = [None] * count
        self._known: list[NDArray[np.float32]] = [self.state.item_factors] * count

    @cached_property
    def able(self) -> NDArray[np.intp]:
        """Numbers of the devices that have ratings, ascending."""
        return np.array([number for number, ratings in enumerate(self._ratings) if ratings.items.size])

    def round(self, present: NDArray[np.intp], all_receive: bool = False) -> None:
        """Run one sum over the `present` devices, which must have ratings. Absent devices train if they have started.

        all_receive: absent devices receive the average too; only their contribution is lost.
        """
        spec = self.recipe.round_spec(self.task_seed, self.state.round_number + 1)
        total = np.zeros(self.recipe.layout().length)
        sending, receiving = set(present.tolist()), set((self.able if all_receive else present).tolist())
        for number in self.able.tolist():
            model = self._train(number, spec, number in receiving)
            if model is not None and number in sending:
                total += self.recipe.contribute(self.state, spec, Local(model.items)).vector
        self.state = self.recipe.absorb(self.state, spec, total, present.size)

    def _train(self, number: int, spec: RoundSpec, receives: bool) -> LocalModel | None:
        """Take a device's steps for the round's sum, with the newest average if it `receives` it.

        Returns its model, or None if the device has not started.
        """
        model = self._models[number]
        if model is None:
            if not receives:
                return None
            model = self._models[number] = self._begin(number)
        if receives:
            self._known[number] = self.state.item_factors
        known, stretch = self._known[number], self.recipe.stretch(self.state, spec.sum_index)
        if spec.sum_index > 1:
            model.move(known, self._rule, self.recipe.stretch(self.state, spec.sum_index - 1).moves)
        for _ in range(stretch.local):
            model.train(self._ratings[number], known, self._rule)
        return model

    def _begin(self, number: int) -> LocalModel:
        model = LocalModel(self.users[self._owned[number]], self.state.item_factors.copy())
        if self._rule.released:
            model.adam = Adam([model.users, model.items], [self._rule.rate] * 2)
        return model

    def predictions(self, users: NDArray[np.int32], items: NDArray[np.int32]) -> NDArray[np.float32]:
        """Predicted ratings of k pairs, float32 (k,), from each user's own factor and the average."""
        products = np.einsum("kd,kd->k", self.users[users], self.state.item_factors[items])
        return predicted_ratings(products, self.recipe.parameters)


def _ratings(train: Interactions, owned: slice, recipe: RFRec) -> Ratings:
    """The ratings of the users in `owned`, with users numbered from 0 on their device."""
    rows = slice(int(train.indptr[owned.start]), int(train.indptr[owned.stop]))
    count = owned.stop - owned.start
    users = np.repeat(np.arange(count), train.user_degrees()[owned])
    assert train.ratings is not None
    return Ratings.of(users, train.items[rows], train.ratings[rows], recipe.parameters, count)


# ---

BLOCKS: Final = 200
"""Number of devices in the released notebook."""
DROPPED: Final = (20, 50, 80, 90)
"""Percent of the devices that are absent, anew in every round (the paper's Table 3)."""
MAIN: Final = {
    ("rfrec", "ml-100k"): (0.7237, 0.9325),
    ("rfrec", "ml-1m"): (0.6937, 0.8831),
    ("rfrecf", "ml-100k"): (0.7317, 0.9385),
    ("rfrecf", "ml-1m"): (0.6906, 0.8840),
}
"""(MAE, RMSE) of the paper's Table 2."""
ROBUST: Final = {"rfrec": (0.8870, 0.8956, 0.8966, 0.9001), "rfrecf": (0.8891, 0.9005, 0.9048, 0.9057)}
"""RMSE on ML-1M at the shares `DROPPED`, from the paper's Table 3."""
NOISE: Final = {"rfrec": {"clip": 0.2, "scale": 0.04}, "rfrecf": {"clip": 0.2, "scale": 0.06}}
"""Laplace noise of the paper's section 4.7."""
CHOSEN: Final = {"variant": "released", "user_penalty": 0.3, "penalty": 5.0}
CHOSEN_BLOCKS: Final = 100
"""For RFRec on ML-100K: best of 18 settings on an eighth of the training rows; the paper does not state them."""
ITERATIONS: Final = {"paper": 100, "released": 200}
"""Of RFRecF: the paper's K, and the steps of its notebook."""
ROUNDS: Final = 100


def rfrec_run(
    system: str,
    dataset: str,
    parameters: Mapping[str, Any],
    blocks: int | None,
    rounds: int,
    dropped: int,
    all_receive: bool,
    seed: int,
    data_dir: Path,
) -> Values:
    """Train for `rounds` sums; the errors of the last, or the sum in which training diverged.

    blocks: number of devices; None: one per user. dropped: percent of the devices that are absent in each round.
    all_receive: absent devices receive the average, and only their contribution is lost.
    """
    train, test = split_rows(load_interactions(dataset, data_dir), rng=seed)
    made = recipe(system, {"items": train.n_items, **parameters})
    assert isinstance(made, RFRec)
    devices, draws = Devices(train, made, seed, blocks), np.random.default_rng([seed, 90])
    kept = max(1, round(devices.able.size * (1 - dropped / 100)))
    figures: Values = {}
    while devices.state.sum_index < rounds and not made.is_done(devices.state):
        present = np.sort(draws.choice(devices.able, kept, replace=False))
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                devices.round(present, all_receive)
        except ParameterError:
            figures["diverged_at"] = devices.state.sum_index + 1
            break
    else:
        assert test.ratings is not None
        found = rating_errors(devices.predictions(test.users, test.items), test.ratings)
        figures |= {"mae": found.mae, "rmse": found.rmse}
    sums, values, noise = devices.state.sum_index, made.layout().length, made.parameters.ldp
    if noise is not None:  # of a device that takes part in every sum; the paper states that of one value in one round
        figures |= {"epsilon_value": noise.epsilon, "epsilon_round": noise.epsilon * values}
        figures["epsilon_total"] = renyi_epsilon(noise.epsilon, values * sums, DELTA)
    return {**figures, **made.report(devices.state), "sums": sums, "devices": int(devices.able.size), "values": values}


def rfrec_rows(system: str, quick: bool) -> list[Row]:
    """RFRec or RFRecF: both variants on both sets; on ML-1M with absent devices and noise."""

    def row(
        name: str,
        dataset: str,
        parameters: Mapping[str, Any],
        blocks: int | None = None,
        dropped: int = 0,
        all_receive: bool = False,
        published: Mapping[str, float] | None = None,
    ) -> Row:
        rounds = 20 if quick else ROUNDS
        if system == "rfrecf":
            rounds = ITERATIONS[parameters["variant"]]
            parameters = {"iterations": 40 if quick else rounds, **parameters}
        devices = "users" if blocks is None else f"blocks{blocks}"
        lost = f".{'unheard' if all_receive else 'dropped'}{dropped}" if dropped else ""
        measure = partial(rfrec_run, system, dataset, parameters, blocks, rounds, dropped, all_receive)
        known = dict(zip(("mae", "rmse"), MAIN[system, dataset], strict=True)) if published is None else published
        return Row(f"{dataset.replace('-', '')}.{system}.{name}.{devices}{lost}", measure, known)

    paper, released = {"variant": "paper"}, {"variant": "released"}
    noise = {"ldp": NOISE[system]}
    rows: list[Row] = []
    for dataset in ("ml-100k",) if quick else ("ml-100k", "ml-1m"):
        rows.append(row("released", dataset, released, BLOCKS))
        rows.append(row("paper", dataset, paper))
        rows.append(row("released", dataset, released))
    rows.append(row("paper.raw", "ml-100k", {**paper, "scaling": "raw"}))
    if quick:
        return [*rows, row("released.noise", "ml-100k", released | noise, BLOCKS)]
    rows.append(row("paper.slow", "ml-100k", {**paper, "learning_rate": 0.02 if system == "rfrec" else 0.01}))
    steady, steadier = "released", released
    if system == "rfrec":
        rows.append(row("released.chosen", "ml-100k", CHOSEN, CHOSEN_BLOCKS))
    else:
        steady, steadier = "released.squared", {**released, "user_norm": "squared"}
        rows += [row(steady, dataset, steadier, BLOCKS) for dataset in ("ml-100k", "ml-1m")]
    for dropped, rmse in zip(DROPPED, ROBUST[system], strict=True):
        for all_receive in (False, True):
            rows.append(row(steady, "ml-1m", steadier, BLOCKS, dropped, all_receive, {"rmse": rmse}))
    return [*rows, row(f"{steady}.noise", "ml-1m", steadier | noise, BLOCKS, published={})]
