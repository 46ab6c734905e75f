"""The task that a simulation runs: the recipe and sizes that suit the data, and all clients of it in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.splits import Split
from client_sdk.lab.federation import Federation
from client_sdk.training.base import TrainingConfig
from protocols.advice import (
    MESSAGE_BUDGET,
    MOST_FACTORS,
    STARTED,
    Choice,
    Variant,
    advise,
    choose,
    parameters_for,
    settings_of_ratings,
)
from protocols.errors import BudgetError, ParameterError
from protocols.messages.privacy import Privacy, default_delta
from protocols.messages.rounds import Evaluation
from protocols.parameter_text import first_fault
from protocols.privacy_advice import Left, choose_noisy
from protocols.recipes.base import Recipe
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.registry import recipe_entry, recipes
from protocols.recipes.spectral_start import Source
from protocols.recipes.state import state_as
from protocols.sums.registry import mechanism as find_mechanism
from protocols.sums.registry import mechanism_entry

_ROUNDS: Final = 100
_ROUNDS_STARTED: Final = 20
_COHORT_STARTED: Final = 100
_COHORT: Final = 60
_FEWEST_FOR_ADVICE: Final = 3


@dataclass(frozen=True)
class SimulationRequest:
    """What to simulate. The defaults suit the recipe and the data."""

    recipe: str = "auto"
    """A name, or "auto" for what `protocols.advice.choose` chooses for the data, the mechanism and the budget."""
    recipe_parameters: Mapping[str, Any] = field(default_factory=dict)
    """By name; `items` follows from the data, and so does the range of ratings."""
    mechanism: str = "plain"
    """"masked" adds ring elements without masks, which gives the same bits; "plain" does so, too, with a privacy block,
    and over more clients than float32 counts (`plain_or_masked`); the others encrypt and decrypt."""
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    """By name."""
    training: TrainingConfig | None = None
    """Settings of the local training; None for the task's."""
    rounds: int | None = None
    """None for the number that `hushrec-server task advise` names, for recipes with item biases from counts; otherwise
    100, and one more for item means where the recipe predicts ratings. A recipe that sums the same data again
    (PriviRec) ends by itself."""
    cohort: int | None = None
    """Clients of a round; None for the size that `hushrec-server task advise` names, for recipes with item biases from
    counts; otherwise 60, or all clients if the recipe predicts ratings, because its paper sums over everyone. A recipe
    that sums the same data again (PriviRec) needs all."""
    every: int | None = None
    """Rounds between two points of the curve; None for ten points."""
    most_users: int = 2000
    """Users that are evaluated, at most."""
    seed: int = 0
    """Fixes all draws but those of the encryption libraries."""
    recommend: Sequence[str] = ()
    """Ids of users, as in the data, to list recommendations for."""
    evaluation: Evaluation | None = None
    """How the clients measure the model themselves, on rows of their training data that they hold out; None for not at
    all."""
    start_from_privirec: bool | None = None
    """Whether a `privirec-k` task of all clients runs first, in plain sums, and the task starts from its factors; 20
    rounds then. None: for pfedclr, which ranks below popularity without."""
    variant: Variant = "recommended"
    """Values of recipe parameters that are not named, as for `hushrec-server task create`."""
    budget: int = MESSAGE_BUDGET
    """Bytes of a client's longest message, from which the number of vectors of `privirec-k` follows."""
    epsilon: float | None = None
    """Privacy budget of a client in the whole task, for which noise is added to every sum, of masked ones in place of
    plain; None for no noise."""
    delta: float | None = None
    """None for users^-1.1, and at most 1e-5."""

    @property
    def starts(self) -> bool:
        """Whether a `privirec-k` task runs first."""
        if self.start_from_privirec is None:
            return self.variant == "recommended" and self.recipe != "auto" and recipe_entry(self.recipe).needs_start
        return self.start_from_privirec


def predicts_ratings(recipe: str) -> bool:
    """Return whether a recipe predicts ratings instead of ranking items."""
    return recipe in recipes() and recipe_entry(recipe).ratings


def check_request(request: SimulationRequest) -> None:
    """Raise `ParameterError` for an unknown recipe or mechanism, a mechanism that is not simulated, wrong numbers."""
    if request.recipe != "auto":
        try:
            recipe_entry(request.recipe)
        except ParameterError as error:
            raise ParameterError(f"{error}; or auto, which chooses by the data") from None
    if (why := mechanism_entry(request.mechanism).not_simulated) != "":
        raise ParameterError(f"sums of {request.mechanism} are not simulated: {why}")
    least = {"rounds": 1, "cohort": 1, "every": 1, "most_users": 1, "seed": 0, "budget": 1}
    for name, lowest in least.items():
        given = getattr(request, name)
        if given is not None and not (isinstance(given, int) and given >= lowest):
            raise ParameterError(f"{name} must be a whole number of at least {lowest}, got {given!r:.40}")


def choice_for(split: Split, request: SimulationRequest) -> tuple[Choice, Left | None]:
    """Return what is advised for data of these sizes, and what the noise leaves of it by the plan; None without."""
    train = split.train
    clients = train.active_users.size
    block, sizes = _privacy(request, clients), (train.n_items, clients, train.size)
    if block is None:
        ordered = train.timestamps is not None
        return choose(*sizes, budget=request.budget, mechanism=request.mechanism, ordered=ordered), None
    choice, left = choose_noisy(*sizes, block, budget=request.budget, mechanism=request.mechanism)
    return choice, left.left


def federation_for(split: Split, request: SimulationRequest) -> Federation:
    train = split.train
    if not recipe_entry(request.recipe).has_items:
        raise ParameterError(f"recipe {request.recipe!r} trains a model of your own, which only your program can do")
    able = train.active_users
    if request.starts and request.recipe not in STARTED:
        raise ParameterError(
            f"recipe {request.recipe!r} cannot start from privirec-k: choose one of {', '.join(sorted(STARTED))}"
        )
    start = spectrum_of(train, request.seed, request.budget) if request.starts else None
    parameters = _parameters(split, request, start)
    made = make_recipe(request.recipe, parameters, noisy=request.epsilon is not None)
    rounds, usual = _sizes(made, parameters, train, able.size)
    if request.starts:  # which counts nothing, so the cohort need not be large
        rounds, usual = _ROUNDS_STARTED, min(_COHORT_STARTED, able.size)
    cohort = request.cohort or usual
    if cohort > able.size:
        raise ParameterError(f"a cohort of {cohort} is greater than the {able.size} users with training interactions")
    groups: NDArray[np.int64] | None = None
    if made.device_groups > 1:
        groups = np.random.default_rng([request.seed, 7]).permutation(train.n_users) % made.device_groups
    rounds = min(request.rounds or rounds, rounds) if _repeated(made) else request.rounds or rounds
    plain = request.mechanism == "plain"
    mechanism = plain_or_masked(made, cohort) if plain else request.mechanism
    return Federation(
        train, request.recipe, parameters, mechanism, request.mechanism_parameters, request.training, cohort,
        request.seed, user_groups=groups, masks=False, evaluation=request.evaluation, schedule_rounds=rounds,
        privacy=_privacy(request, able.size, ceil(rounds * cohort / able.size)),  # clients take turns
        start=start,
    )  # fmt: skip


def _privacy(request: SimulationRequest, clients: int, sums: int | None = None) -> Privacy | None:
    """Return the privacy block. sums: of a client."""
    if request.epsilon is None:
        if request.delta is not None:
            raise ParameterError("delta is of a privacy budget: give epsilon, too, or leave it out")
        return None
    delta = default_delta(clients) if request.delta is None else request.delta
    try:
        return Privacy(epsilon=request.epsilon, delta=delta, rounds=sums)
    except ValidationError as error:
        raise ParameterError(f"privacy: {first_fault(error, Privacy.model_fields)}") from None


def _parameters(split: Split, request: SimulationRequest, start: Source | None) -> dict[str, Any]:
    """Return the recipe's parameters: of the data, those that are named, and the others by the variant."""
    given: dict[str, Any] = {"items": split.train.n_items}
    if predicts_ratings(request.recipe):
        given |= _range_of_ratings(split)
        if request.variant == "recommended" and request.recipe == "rfrec":
            given |= settings_of_ratings(split.train.n_items, split.train.size)
    given |= request.recipe_parameters
    return parameters_for(
        request.recipe, given, request.variant, started=request.starts, budget=request.budget,
        noisy=request.epsilon is not None, clients=split.train.active_users.size,
        mean_items=split.train.size / max(1, split.train.active_users.size), vectors=_vectors(start),
        ordered=split.train.timestamps is not None,
    )  # fmt: skip


def _vectors(start: Source | None) -> int:
    return MOST_FACTORS if start is None else state_as(start.state, PriviRecState).singular_values.size


def _sizes(recipe: Recipe, parameters: Mapping[str, Any], train: Interactions, clients: int) -> tuple[int, int]:
    """Return the rounds and the cohort that suit a recipe with these parameters."""
    if isinstance(recipe, PriviRecK):
        return recipe.steps, clients
    if parameters.get("item_bias") == "counts" and clients >= _FEWEST_FOR_ADVICE:
        advice = advise(train.n_items, clients, train.size)
        return advice.rounds, advice.cohort_size
    if predicts_ratings(recipe.name):
        counting = parameters.get("count_sums", 1) if parameters.get("item_bias") == "means" else 0
        return counting + _ROUNDS, clients
    return _ROUNDS, clients if _repeated(recipe) else min(_COHORT, clients)


def _repeated(recipe: Recipe) -> bool:
    return recipe.layout(recipe.main_sum).sum_class.repeated


def plain_or_masked(recipe: Recipe, clients: int) -> str:
    """Return "plain", or "masked" where float32 does not hold a recipe's counts of so many clients.

    It does not hold the sum of lists of `privirec-k` over more than 16,777 clients where a list may count up to 1,000
    items. A ring does.
    """
    try:
        for index in range(1, (recipe.ends_after or 1) + 1):
            find_mechanism("plain").plan({}, recipe.layout(index), clients)
    except BudgetError:
        return "masked"
    return "plain"


def spectrum_of(train: Interactions, seed: int, budget: int = MESSAGE_BUDGET) -> Source:
    """Return the result of a `privirec-k` task of all clients with recommended parameters."""
    clients = train.active_users.size
    mean_items = train.size / max(1, clients)
    parameters = parameters_for(
        "privirec-k",
        {"items": train.n_items, "validation": 0.0},  # which chooses a filter, and a start needs none
        budget=budget,
        clients=clients,
        mean_items=mean_items,
    )
    mechanism = plain_or_masked(make_recipe("privirec-k", parameters), clients)
    made = Federation(train, "privirec-k", parameters, mechanism, cohort_size=clients, seed=seed, masks=False)
    assert isinstance(made.recipe, PriviRecK)  # noqa: S101 - it is what was asked for
    list(made.run(made.recipe.steps))
    if 0 in made.recipe.size_after(made.state):
        raise ParameterError(
            f"a start from privirec-k needs more users: sums over {clients} would give single users' items away"
        )
    return Source(made.state, made.recipe.parameters.degree_exponent)


def _range_of_ratings(split: Split) -> dict[str, float]:
    if split.train.ratings is None or split.test.ratings is None:
        raise DataError("this recipe learns from ratings, and the data has none")
    values = np.concatenate([split.train.ratings, split.test.ratings])
    if not values.size or values.min() == values.max():
        raise DataError("all ratings are equal, so there is nothing to learn from them")
    return {"rating_min": float(values.min()), "rating_max": float(values.max())}
