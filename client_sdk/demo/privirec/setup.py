"""The inputs of a PriviRec demo: what the user asked for, and the data, recipe and task that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.columns import Columns
from client_sdk.data.holdout import hold_out_share
from client_sdk.data.interactions import Interactions
from client_sdk.data.loaders import load_interactions
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.data.train_test import Report
from client_sdk.demo.settings import sampled_users
from client_sdk.operator import task_request
from client_sdk.organiser import TrialOrganiser
from protocols.errors import ParameterError
from protocols.messages import Schedule, TaskRequest
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.recommended import parameters_for
from protocols.recipes.registry import recipe as make_recipe

__all__ = ["PRIVIREC_DATASETS", "PriviRecRequest", "PriviRecSetup", "load_split", "prepare"]

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
