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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from bench.experiments.runs import JobResult, Ticks, keep, path_of, prefix_of
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import DATASETS, load_interactions
from client_sdk.lab.data.splits import split_rows
from client_sdk.lab.evaluation.controls import rating_errors
from client_sdk.training.adam import Adam
from client_sdk.training.rfrec import LocalModel, Ratings, predicted_ratings
from protocols.crypto.domain import derive_seed
from protocols.errors import ParameterError
from protocols.privacy.accountant import laplace_cost
from protocols.recipes.base import Local, RoundSpec
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import INITIAL_STD, RFRec

__all__ = ["Devices", "RFRecRun", "rfrec_flat", "rfrec_runs", "rfrec_table", "rfrecf_runs"]


# --- All devices of an RFRec federation in one process, trained with the client half's steps, without sealing


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
        self.clipped = 0

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
                made = self.recipe.contribute(self.state, spec, Local(model.items))
                total += made.vector
                self.clipped += made.clipped
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
        if self._rule.adam:
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
ROBUST: Final = {
    "rfrec": (0.8870, 0.8956, 0.8966, 0.9001),
    "rfrecf": (0.8891, 0.9005, 0.9048, 0.9057),
}
"""RMSE on ML-1M at the shares `DROPPED`, from the paper's Table 3."""
NOISE: Final = {"rfrec": {"clip": 0.2, "scale": 0.04}, "rfrecf": {"clip": 0.2, "scale": 0.06}}
"""Laplace noise of the paper's section 4.7."""
CHOSEN: Final = {"variant": "released", "user_penalty": 0.3, "penalty": 5.0}
CHOSEN_BLOCKS: Final = 100
"""For RFRec on ML-100K: best of 18 settings on an eighth of the training rows; the paper does not state them."""
ITERATIONS: Final = {"paper": 100, "released": 200}
"""Of RFRecF: the paper's K, and the steps of its notebook."""
ROUNDS: Final = 100
Figures = dict[str, Any]


@dataclass(frozen=True)
class RFRecRun:
    """A federation to train. dropped: percent of its devices that are absent in each round.

    all_receive: absent devices receive the average, and only their contribution is lost.
    """

    name: str
    dataset: str
    system: str
    parameters: Mapping[str, Any]
    rounds: int
    blocks: int | None = None
    dropped: int = 0
    all_receive: bool = False
    seed: int = 0
    published: Mapping[str, float] = field(default_factory=dict)
    columns: Columns | None = None

    def on(self, dataset: str, columns: Columns | None) -> RFRecRun:
        """The same run on another data set, with the range of its ratings and without published figures."""
        return replace(self, dataset=dataset, columns=columns, published={})

    @property
    def key(self) -> str:
        """The name, such as ml1m.rfrec.released.blocks200.dropped20; .unheard20 if only contributions are lost."""
        prefix, seed = prefix_of(self.dataset), f".seed{self.seed}" if self.seed else ""
        devices = "users" if self.blocks is None else f"blocks{self.blocks}"
        lost = f".{'unheard' if self.all_receive else 'dropped'}{self.dropped}" if self.dropped else ""
        return f"{prefix}.{self.system}.{self.name}.{devices}{lost}{seed}"

    def execute(self, data_dir: Path, folder: Path, ticks: Ticks) -> None:
        """Train and write the errors after every tenth sum and at the end, or the sum in which training diverged."""
        started = perf_counter()
        whole = load_interactions(self.dataset, data_dir, self.columns)
        train, test = split_rows(whole, rng=self.seed)
        made = recipe(self.system, {"items": train.n_items, **self.parameters, **self._range(whole)})
        assert isinstance(made, RFRec)
        assert test.ratings is not None
        devices = Devices(train, made, self.seed, self.blocks)
        able, draws = devices.able, np.random.default_rng([self.seed, 90])
        curve: list[Figures] = []
        figures: Figures = {}
        while devices.state.sum_index < self.rounds and not made.is_done(devices.state):
            kept = max(1, round(able.size * (1 - self.dropped / 100)))
            present = np.sort(draws.choice(able, kept, replace=False))
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    devices.round(present, self.all_receive)
            except ParameterError:
                figures["diverged_at"] = devices.state.sum_index + 1
                break
            ticks[self.key] = devices.state.sum_index
            if devices.state.sum_index % 10 == 0:
                curve.append({"sums": devices.state.sum_index, **errors(devices, test)})
        else:
            figures |= errors(devices, test)
        values = made.layout().length
        figures |= made.report(devices.state) | {
            "sums": devices.state.sum_index,
            "devices": int(able.size),
            "values": values,
            "clipped_share": devices.clipped / max(1, devices.state.sum_index * kept * values),
            "curve": curve,
            "seconds": perf_counter() - started,
        }
        if made.parameters.ldp is not None:
            figures |= privacy(made, devices.state.sum_index)
        keep(path_of(self, folder), figures)

    def _range(self, whole: Interactions) -> dict[str, float]:
        """The range of the ratings of a file; the sets of the paper have the recipe's default, 1 to 5."""
        if self.dataset in DATASETS:
            return {}
        if whole.ratings is None:
            raise ParameterError(f"{self.dataset} has no ratings, which {self.system} learns from")
        return {"rating_min": float(whole.ratings.min()), "rating_max": float(whole.ratings.max())}


def errors(devices: Devices, test: Any) -> Figures:
    """MAE and RMSE of the test rows, also with predictions clipped to the range of ratings (`_held`)."""
    predicted, p = devices.predictions(test.users, test.items), devices.recipe.parameters
    found = rating_errors(predicted, test.ratings)
    held = rating_errors(np.clip(predicted, p.rating_min, p.rating_max), test.ratings)
    return {"mae": found.mae, "rmse": found.rmse, "mae_held": held.mae, "rmse_held": held.rmse}


def privacy(made: RFRec, sums: int) -> Figures:
    """Privacy cost of a device that takes part in every sum. The paper states the cost of one value in one round."""
    noise = made.parameters.ldp
    assert noise is not None
    cost = laplace_cost(noise, made.layout().length, sums)
    return {
        "epsilon_value": noise.epsilon,
        "epsilon_round": noise.epsilon * made.layout().length,
        "epsilon_total": cost.epsilon_at_delta,
    }


def _runs(system: str, *, quick: bool, seed: int) -> list[RFRecRun]:
    def run(name: str, dataset: str, parameters: Mapping[str, Any], blocks: int | None = None, **more: Any) -> RFRecRun:
        variant = str(parameters["variant"])
        rounds = 20 if quick else ROUNDS
        if system == "rfrecf":
            rounds = ITERATIONS[variant]
            parameters = {"iterations": 40 if quick else rounds, **parameters}
        return RFRecRun(name, dataset, system, parameters, rounds, blocks, seed=seed, **more)

    def table(dataset: str) -> dict[str, Any]:
        return {} if quick else {"published": dict(zip(("mae", "rmse"), MAIN[system, dataset], strict=True))}

    paper, released = {"variant": "paper"}, {"variant": "released"}
    runs: list[RFRecRun] = []
    for dataset in ("ml-100k",) if quick else ("ml-100k", "ml-1m"):
        runs.append(run("released", dataset, released, BLOCKS, **table(dataset)))
        runs.append(run("paper", dataset, paper, None, **table(dataset)))
        runs.append(run("released", dataset, released, None, **table(dataset)))
    runs.append(run("paper.raw", "ml-100k", {**paper, "scaling": "raw"}, None, **table("ml-100k")))
    if quick:
        runs.append(run("released.noise", "ml-100k", {**released, "ldp": NOISE[system]}, BLOCKS))
        return runs
    if system == "rfrec":
        runs.append(run("released.chosen", "ml-100k", CHOSEN, CHOSEN_BLOCKS, **table("ml-100k")))
    slow = {**paper, "learning_rate": 0.02 if system == "rfrec" else 0.01}
    runs.append(run("paper.slow", "ml-100k", slow, None, **table("ml-100k")))
    steady, steadier = "released", released
    if system == "rfrecf":
        steady, steadier = "released.squared", {**released, "user_norm": "squared"}
        for dataset in ("ml-100k", "ml-1m"):
            runs.append(run(steady, dataset, steadier, BLOCKS, **table(dataset)))
    for dropped, rmse in zip(DROPPED, ROBUST[system], strict=True):
        for all_receive in (False, True):
            lost: dict[str, Any] = {"dropped": dropped, "all_receive": all_receive, "published": {"rmse": rmse}}
            runs.append(run(steady, "ml-1m", steadier, BLOCKS, **lost))
    runs.append(run(f"{steady}.noise", "ml-1m", steadier | {"ldp": NOISE[system]}, BLOCKS))
    return runs


def rfrec_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[RFRecRun]:  # noqa: ARG001
    """Runs of RFRec: both variants on both sets; on ML-1M with absent devices and noise. Ignores `protocol`."""
    return _runs("rfrec", quick=quick, seed=seed)


def rfrecf_runs(*, quick: bool, protocol: str, seed: int = 0) -> list[RFRecRun]:  # noqa: ARG001
    """Runs of RFRecF, as in `rfrec_runs`."""
    return _runs("rfrecf", quick=quick, seed=seed)


def rfrec_table(results: list[JobResult]) -> Table:
    """A table of our errors and the paper's."""
    made = Table(title="Fidelity: 80/20 split of the rating rows, last round")
    for heading in ("run", "MAE", "paper", "diff", "RMSE", "paper", "diff", "sums", "clipped", "minutes"):
        made.add_column(heading, justify="left" if heading == "run" else "right")
    for result in results:
        figures = result.figures
        cells = [result.run.key]
        for metric in ("mae", "rmse"):
            ours, theirs = figures.get(metric), result.run.published.get(metric)
            cells.append("diverged" if ours is None else f"{ours:.4f}")
            cells.append("" if theirs is None else f"{theirs:.4f}")
            cells.append("" if theirs is None or ours is None else f"{ours - theirs:+.4f}")
        cells += [f"{figures['sums']}", f"{figures['clipped_share']:.1%}", f"{figures['seconds'] / 60:.1f}"]
        made.add_row(*cells)
    return made


def rfrec_flat(results: list[JobResult]) -> Figures:
    """`<run key>.<figure>`, and published figures as `<run key>.paper.<figure>`; without curves."""
    flat: Figures = {}
    for result in results:
        key = result.run.key
        flat |= {f"{key}.{name}": v for name, v in result.figures.items() if name != "curve"}
        flat |= {f"{key}.paper.{name}": value for name, value in result.run.published.items()}
    return flat
