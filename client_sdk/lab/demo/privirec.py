"""The inputs of a PriviRec demo: what the user asked for, and the data, recipe and task that follow from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.published import Report, load_interactions
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.demo.results import sampled_users
from client_sdk.lab.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.measures import Advised, Measured, verdict
from client_sdk.operator import task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.training.graph_filters import Components
from client_sdk.training.privirec import matching_filter
from protocols.errors import ParameterError
from protocols.layout import Block, Segment, VectorLayout
from protocols.messages import Schedule, TaskRequest
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.recommended import parameters_for
from protocols.recipes.registry import recipe as make_recipe
from protocols.sum_classes import TRAINED
from protocols.sums.masked.masks import SECRET_BYTES, Mask, add_masks
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import run_masked_sum

__all__ = [
    "FilterRanking",
    "PRIVIREC_DATASETS",
    "PriviRecRequest",
    "PriviRecResult",
    "PriviRecSetup",
    "SumResult",
    "Users",
    "central_components",
    "estimated_seconds",
    "load_split",
    "prepare",
    "rank_filters",
]


PRIVIREC_DATASETS: Final = {
    "synthetic": {"components": 16, "iterations": 4, "oversampling": 8},
    "ml-100k": {"components": 48, "iterations": 4, "oversampling": 80},
}
"""Data sets of the demo, with sizes that are quick; other parameters are the recommended ones."""

PRIVIREC_MECHANISMS: Final = ("masked", "oneshot", "plain")

_MIN_DIFFERENCE: Final = 3
"""Smallest number of clients by which two sums may differ, unless they are over the same clients. If fewer drop out,
the server excludes others with them."""


@dataclass(frozen=True)
class PriviRecRequest:
    """What the user asked for.

    iterations, components: None for the value of `PRIVIREC_DATASETS`. dropout: share of the clients that have dropped
    out when the task ends. mechanism: masked, oneshot or plain. server_dir: data directory of the server.
    """

    dataset: str = "synthetic"
    data_dir: Path | None = None
    columns: Columns | None = None
    recipe: str = "privirec-k"
    iterations: int | None = None
    components: int | None = None
    dropout: float = 0.0
    seed: int = 0
    mechanism: str = "masked"
    server_dir: Path = Path("hushrec-demo/server")


@dataclass(frozen=True)
class PriviRecSetup:
    """The request with its recipe, its training and test interactions, and the task to create."""

    request: PriviRecRequest
    recipe: PriviRecK
    train: Interactions
    test: Interactions
    organiser: TrialOrganiser | None = None

    @property
    def users(self) -> NDArray[np.intp]:
        """Users with training interactions, ascending: the clients of the demo, in this order."""
        return np.flatnonzero(self.train.user_degrees() > 0)

    def task_request(self) -> TaskRequest:
        """Return the task: one round for each sum of the recipe, over all clients."""
        clients = self.users.size
        schedule = Schedule(
            rounds=self.recipe.steps,
            cohort_size=clients,
            min_clients=max(3, clients // 2),
            min_difference=_MIN_DIFFERENCE,
            start_clients=clients,
            # With dropouts every sum waits for its deadline, so the deadline is near the time that a sum takes.
            collect_seconds=300.0 if self.request.dropout == 0 else max(30.0, clients / 5),
            stage_seconds=300.0,
        )
        organiser = None if self.organiser is None else self.organiser.pin
        return task_request(self.recipe.name, self.recipe, self.request.mechanism, schedule, organiser=organiser)


def prepare(request: PriviRecRequest, report: Report | None = None) -> PriviRecSetup:
    """Load the data and make the recipe. report: called with what was found in a file.

    Raises `ParameterError` for invalid parameters and another mechanism, and `DataError` for an unknown data set or
    missing files.
    """
    if request.mechanism not in PRIVIREC_MECHANISMS:
        known = ", ".join(PRIVIREC_MECHANISMS)
        raise ParameterError(f"this demo runs {known} sums, not {request.mechanism!r}: that is for --recipe colr")
    train, test = load_split(request, report)
    organiser = None if request.mechanism == "plain" else TrialOrganiser()
    return PriviRecSetup(request, _recipe(request, train.n_items), train, test, organiser)


def load_split(request: PriviRecRequest, report: Report | None = None) -> tuple[Interactions, Interactions]:
    """Return training and test interactions of the request's data set. Raises `DataError`."""
    if request.dataset == "synthetic":
        return hold_out_share(
            synthetic(SyntheticConfig(users=120, items=240, positives=24, seed=request.seed)), rng=request.seed
        )
    whole = load_interactions(request.dataset, request.data_dir, request.columns, report)
    if request.dataset not in PRIVIREC_DATASETS:
        whole = sampled_users(whole, request.seed, report)
    return hold_out_share(whole, rng=request.seed)


def _usual_parameters(dataset: str, items: int) -> dict[str, Any]:
    """Return the parameters of a data set of the demo; for others those of ml-100k, with no more vectors than items."""
    found = PRIVIREC_DATASETS.get(dataset, PRIVIREC_DATASETS["ml-100k"])
    components = min(int(found["components"]), items)
    return found | {"components": components, "oversampling": min(int(found["oversampling"]), items - components)}


def _recipe(request: PriviRecRequest, items: int) -> PriviRecK:
    given = {"iterations": request.iterations, "components": request.components}
    chosen: dict[str, Any] = {**_usual_parameters(request.dataset, items), "items": items}
    chosen |= {name: value for name, value in given.items() if value is not None}
    parameters = parameters_for(request.recipe, chosen)
    if request.recipe == "privirec":
        parameters["reveal_gram"] = True  # the user chose this recipe by name; the task's warnings say what it reveals
    made = make_recipe(request.recipe, parameters)
    if not isinstance(made, PriviRecK):
        raise ParameterError(f"this demo runs privirec-k or privirec, not {request.recipe!r}")
    return made


# --- results of the PriviRec demo: the spectrum after every sum, and the ranking quality of the filters --------------


@dataclass(frozen=True)
class SumResult:
    """One round, completed or failed.

    number: the round's number. sum_index: index of the sum among the task's sums, from 1. kind: degrees, iteration or
    gram. survivors: clients in the sum. seconds: wall-clock time. failure: the reason if the round failed.
    captured, change, singular_values: of the model after a completed iteration; None and () otherwise.
    """

    number: int
    sum_index: int
    kind: str
    survivors: int
    seconds: float
    bytes_up: float
    """Mean bytes of HTTP bodies that one client sent."""
    failure: str | None = None
    captured: float | None = None
    change: float | None = None
    singular_values: Sequence[float] = ()


@dataclass(frozen=True)
class FilterRanking:
    """Ranking quality of a filter over all items. name: the filter and the source of its components."""

    name: str
    ranking: RankingResult


@dataclass(frozen=True)
class PriviRecResult:
    """Results of a complete demo: data set, recipe, every sum, the rankings and the task's warnings.

    plan: the task's sum plan. dropped: contributions that were missing, over all rounds.
    """

    dataset: str
    users: int
    items: int
    interactions: int
    recipe: str
    parameters: Mapping[str, object]
    mechanism: str
    plan: Mapping[str, object]
    dropped: int
    sums: Sequence[SumResult]
    ranked: Sequence[FilterRanking]
    warnings: Sequence[str]

    @property
    def verdict(self) -> str:
        """Whether the devices rank better than popularity, the last of `ranked`, and by how many standard errors."""
        ours, popular = (
            Measured({"NDCG@20": entry.ranking.ndcg}, entry.ranking.user_ndcg)
            for entry in (self.ranked[0], self.ranked[-1])
        )
        found = verdict(
            [len(self.sums)],
            [ours],
            {"popularity": popular},
            Advised(trains=False),
            recipe=self.recipe,
            higher_is_better=True,
        )
        return found.text


# --- filter components computed from all data in one place, the reference for PriviRec's sums. Exact, in float64 -----

Users = NDArray[np.intp] | None


def central_components(
    train: Interactions,
    columns: int,
    counted: Users = None,
    summed: Users = None,
    *,
    exponents: tuple[float, float] = (0.5, 0.5),
) -> tuple[Components, Components]:
    """Return the `columns` leading singular vectors of R~, without and with the item-item matrix P.

    The first result is what privirec-k converges to; the second is what the released filters use. The interactions are
    expanded to a dense float64 matrix (users, items). counted: users whose interactions make the item degrees, all by
    default. summed: users whose rows make P, `counted` by default. exponents: a of the users' and b of the items'
    degrees.
    """
    whole = interaction_rows(train).toarray().astype(np.float64)
    degrees = (whole if counted is None else whole[counted]).sum(axis=0)
    among = counted if summed is None else summed
    rows = whole if among is None else whole[among]
    normalised = _scales(rows.sum(axis=1), exponents[0])[:, None] * rows * _scales(degrees, exponents[1])
    _, values, transposed = np.linalg.svd(normalised, full_matrices=False)
    vectors = np.ascontiguousarray(transposed[:columns].T, dtype=np.float32)
    values = values[:columns].astype(np.float32)
    gram = csr_array((normalised.T @ normalised).astype(np.float32))
    return Components(degrees, vectors, values, None, *exponents), Components(
        degrees, vectors, values, gram, *exponents
    )


def _scales(degrees: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    return np.asarray(np.power(degrees, -exponent, out=np.zeros_like(degrees), where=degrees > 0))


# --- how long the sums of a PriviRec task take on this machine, estimated before the first one from measured parts ---

_SAMPLE_CLIENTS: Final = 6
_SAMPLE_MASKS: Final = 4


def estimated_seconds(setup: PriviRecSetup) -> float | None:
    """Return the wall-clock seconds that all sums of the task take; None for plain sums, which take no time to mention.

    Every client expands a mask for each neighbour and one of its own, and the server one for each client; every pair
    agrees on a key and exchanges shares. The time of one mask and of one pair is measured here, in a fraction of a
    second. Requests, catching up and training are left out, so the real time is longer.
    """
    if setup.request.mechanism != "masked":
        return None
    clients = setup.users.size
    pair = _seconds_of_a_pair()
    total = 0.0
    for sum_index in range(1, setup.recipe.steps + 1):
        plan = MASKED.plan({}, setup.recipe.layout(sum_index), clients)
        degree = plan.neighbourhood(clients).degree
        total += clients * ((degree + 2) * _seconds_of_a_mask(plan) + degree * pair)
    return total / min(2, os.cpu_count() or 1)  # the server and the process of the clients


def _seconds_of_a_mask(plan: MaskedPlan) -> float:
    target = np.zeros(plan.layout.length, plan.dtype)
    masks: list[Mask] = [(bytes(SECRET_BYTES), b"estimate", 1)] * _SAMPLE_MASKS
    started = perf_counter()
    add_masks(target, masks)
    return (perf_counter() - started) / _SAMPLE_MASKS


def _seconds_of_a_pair() -> float:
    """Return the seconds that a client's work for one neighbour takes: agreement, shares, checks and opening them."""
    layout = VectorLayout((Block("estimate", (Segment("value", 1, 1.0),)),), sum_class=TRAINED)
    plan = MASKED.plan({"mode": "curious", "dropout": 0.0}, layout, _SAMPLE_CLIENTS)
    vectors = {f"c_{number}": np.zeros(1) for number in range(_SAMPLE_CLIENTS)}
    started = perf_counter()
    run_masked_sum(plan, vectors)
    return (perf_counter() - started) / (_SAMPLE_CLIENTS * (_SAMPLE_CLIENTS - 1))


# --- ranking quality of the task's filter: with the scores of the devices, and with all data in one place ------------


def rank_filters(setup: PriviRecSetup, fleet: Fleet) -> list[FilterRanking]:
    """Return Recall and NDCG over the test items for several sources of the filter's components.

    First the scores that each client computes with its own rows, then the filter on central data: with the same number
    of exact singular vectors (privirec-k only), and with the whole item-item matrix. Popularity is the last.
    """
    recipe, train, users = setup.recipe, setup.train, setup.users
    client_scores = np.zeros((train.n_users, train.n_items), dtype=np.float32)
    for user, scores in zip(users, fleet.scores(), strict=True):
        client_scores[user] = scores
    rows, graph_filter = interaction_rows(train), matching_filter(recipe)
    degrees = train.item_degrees().astype(np.float64)

    def rank(components: Components) -> RankingResult:
        return rank_all(lambda asked: graph_filter.scores(components, rows[asked]), train, setup.test, users=users)

    p = recipe.parameters
    factors, exact = central_components(train, p.components, exponents=(p.user_exponent, p.degree_exponent))
    on_devices = rank_all(client_scores.__getitem__, train, setup.test, users=users)
    popular = rank_all(lambda asked: np.tile(degrees, (asked.size, 1)), train, setup.test, users=users)
    found = [FilterRanking(f"EASE, {recipe.name} {setup.request.mechanism}", on_devices)]
    if recipe.name == "privirec-k":
        found.append(FilterRanking("EASE, central, the same vectors exactly", rank(factors)))
    whole = FilterRanking("EASE, central, the whole matrix", rank(exact))
    return [*found, whole, FilterRanking("popularity", popular)]


# --- the PriviRec demo: masked sums through a server process, the spectrum as it converges, and ranking quality ------
