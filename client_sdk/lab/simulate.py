"""Trains any recipe on any split in one process, and measures the model between the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isnan
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.splits import Split
from client_sdk.lab.federation import Federation, SimulatedRound
from client_sdk.lab.measures import Advised, Comparison, Measured, measure_of, verdict
from client_sdk.lab.traffic import wire_traffic
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
from protocols.recipes.base import ModelState, Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.evaluation_curve import MODEL_ROUND
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
_POINTS: Final = 10  # of a curve, unless `every` is given


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


@dataclass(frozen=True)
class Point:
    """The model after a round."""

    round: int
    values: dict[str, float]
    """Metrics by name."""
    loss: float | None
    """Of the round; None before the first and without training."""
    seconds: float
    """Of all rounds until then, without measuring."""


@dataclass(frozen=True)
class SimulationResult:
    """The curve of a simulated task, beside controls, and what a round costs."""

    recipe: str
    recipe_parameters: dict[str, Any]
    mechanism: str
    mechanism_parameters: dict[str, Any]
    users: int
    items: int
    train_interactions: int
    test_interactions: int
    split: str
    measure: str
    """In words."""
    left_out: int
    """Users with test but without training interactions."""
    rounds: int
    cohort: int
    seed: int
    clipped: int
    bytes_up: float
    bytes_down: float
    """Of one client in one round, as `hushrec cost` counts them."""
    seconds: float
    points: list[Point]
    controls: dict[str, dict[str, float]]
    recommendations: dict[str, list[Any]]
    """Ids of items by id of the user."""
    verdict: Comparison
    measured: list[dict[str, float]] = field(default_factory=list)
    """The figures of each federated measurement."""
    chosen: tuple[str, ...] = ()
    """Why "auto" chose the recipe, sentences; empty otherwise."""
    rare: int = 0
    """Items with too few owners for the sums of `privirec` and `privirec-k`, which are recommended to nobody."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the most important first."""
        return tuple(self.points[-1].values)


RoundListener = Callable[[SimulatedRound, int, Point | None], None]
"""Is called after each round with the round, the number of rounds in all, and the newest point of the curve."""


def predicts_ratings(recipe: str) -> bool:
    """Return whether a recipe predicts ratings instead of ranking items."""
    return recipe in recipes() and recipe_entry(recipe).ratings


def simulate(split: Split, request: SimulationRequest, progress: RoundListener | None = None) -> SimulationResult:
    """Train on `split.train` and return the curve on `split.test`.

    The sums are computed by the mechanism's own arithmetic; only the network is left out. Raises `ParameterError` for
    parameters that do not fit, and `DataError` for data that the recipe cannot use.
    """
    _check(request)
    if request.epsilon is not None and request.mechanism == "plain":
        request = replace(request, mechanism="masked")
    chosen: tuple[str, ...] = ()
    expected: Left | None = None
    if request.recipe == "auto":
        choice, expected = _choice(split, request)
        request, chosen = replace(request, recipe=choice.recipe), choice.why
    federation = _federation(split, request)
    evaluated = federation.recipe.layer(Evaluated)
    recipe = evaluated or federation.recipe.own
    measure, left_out = measure_of(
        split, ratings=predicts_ratings(recipe.name), most_users=request.most_users, seed=request.seed
    )
    asked = [_user(split.train, name) for name in request.recommend]
    rounds = federation.schedule_rounds
    every = request.every or max(1, rounds // _POINTS)
    points: list[Point] = []
    found: list[Measured] = []
    clipped, seconds = 0, 0.0

    def measured(number: int, loss: float) -> None:
        state = federation.state
        if isinstance(recipe, PriviRecK) and state_as(state, PriviRecState).sum_index < recipe.first_scores:
            return  # it cannot score yet
        found.append(measure.measured(federation.scores))
        points.append(Point(number, found[-1].values, None if isnan(loss) else loss, seconds))

    measured(0, float("nan"))
    started = perf_counter()
    for done in federation.run(rounds):
        seconds += perf_counter() - started
        clipped += done.clipped
        if done.number % every == 0 or done.number == rounds or recipe.is_done(federation.state):
            measured(done.number, done.loss)
        if progress is not None:
            progress(done, rounds, points[-1] if points else None)
        started = perf_counter()
    if not points and recipe.is_done(federation.state):
        federation.scores(split.train.active_users[:1])  # raises, and says what the model lacks
    if not points:
        raise ParameterError(
            f"after {rounds} rounds, recipe {recipe.name!r} cannot score items yet: choose more rounds"
        )
    traffic = wire_traffic(
        recipe, federation.mechanism, dict(request.mechanism_parameters), federation.cohort_size, rounds
    )
    controls = measure.controls(np.random.default_rng([request.seed, 6]))
    federated: list[dict[str, float]] = []
    if evaluated is not None:
        curve = evaluated.curve(federation.state)
        federated = [{MODEL_ROUND: point.model_round, **curve.metrics(point)} for point in curve.points]
    return SimulationResult(
        recipe=recipe.name,
        recipe_parameters=recipe.parameters.model_dump(mode="json"),
        mechanism=federation.mechanism_name,
        mechanism_parameters=dict(request.mechanism_parameters),
        users=split.train.n_users,
        items=split.train.n_items,
        train_interactions=split.train.size,
        test_interactions=split.test.size,
        split=split.words,
        measure=measure.words,
        left_out=left_out,
        rounds=federation.state.round_number,
        cohort=federation.cohort_size,
        seed=request.seed,
        clipped=clipped,
        bytes_up=traffic.up_bytes / rounds,
        bytes_down=traffic.down_bytes / rounds,
        seconds=seconds,
        points=points,
        controls={name: control.values for name, control in controls.items()},
        recommendations={
            name: _recommended(federation, user) for name, user in zip(request.recommend, asked, strict=True)
        },
        verdict=verdict(
            [point.round for point in points],
            found,
            controls,
            _advised(split, request, recipe, expected, federation.state),
            recipe=recipe.name,
            higher_is_better=not predicts_ratings(recipe.name),
        ),
        measured=federated,
        chosen=chosen,
        rare=_rare(recipe, federation.state),
    )


def _rare(recipe: Recipe, state: ModelState) -> int:
    if not isinstance(recipe, PriviRecK):
        return 0
    return recipe.parameters.items - int(np.count_nonzero(recipe.widths(state_as(state, PriviRecState))[0]))


def _check(request: SimulationRequest) -> None:
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


def _choice(split: Split, request: SimulationRequest) -> tuple[Choice, Left | None]:
    """Return what is advised for data of these sizes, and what the noise leaves of it by the plan; None without."""
    train = split.train
    clients = train.active_users.size
    block, sizes = _privacy(request, clients), (train.n_items, clients, train.size)
    if block is None:
        ordered = train.timestamps is not None
        return choose(*sizes, budget=request.budget, mechanism=request.mechanism, ordered=ordered), None
    choice, left = choose_noisy(*sizes, block, budget=request.budget, mechanism=request.mechanism)
    return choice, left.left


def _advised(
    split: Split, request: SimulationRequest, recipe: Recipe, expected: Left | None, state: ModelState
) -> Advised:
    """Return what the verdict may suggest for this request. expected: by the plan that chose the recipe.

    state: the last one, which may hold what members chose.
    """
    if predicts_ratings(recipe.name):
        return Advised()
    if isinstance(recipe, PriviRecK):
        vectors = 0 if request.epsilon is not None else recipe.parameters.columns  # their worth is known without noise
        said = _validated(recipe, state_as(state, PriviRecState))
        return Advised(vectors=vectors, expected=expected, trains=False, validated=said)
    other = None
    if not request.starts:
        try:
            other = _choice(split, request)[0].recipe
        except ParameterError:  # data too small for advice
            return Advised()
    return Advised(
        recipe=other if other is not None and recipe_entry(other).frozen else None,
        start=recipe.name in STARTED and not request.starts,
        noisy=request.epsilon is not None,
        expected=expected,
    )


def _validated(recipe: PriviRecK, state: PriviRecState) -> str:
    """Return what the sum of validation chose, in a sentence; "" without one."""
    if not state.measured.size or state.measured[0] < 1:
        return ""
    members = state.measured[0]
    first, chosen = (state.measured[1 + index] / members for index in (0, state.setting))
    settings = recipe.settings
    text = f"Its filter is {settings[state.setting].text}: {members:.0f} members measured {len(settings)} settings"
    found = f"NDCG@20 {chosen:.4f} of items that they kept out, the first setting {first:.4f}"
    return f"{text} ({found if state.setting else f'{found}, and none was clearly better'})."


def _federation(split: Split, request: SimulationRequest) -> Federation:
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


def _user(train: Interactions, name: str) -> int:
    """Return the number of the user with an id, or with a number if the data has no ids."""
    ids = np.arange(train.n_users) if train.user_ids is None else train.user_ids
    found = np.flatnonzero(ids.astype(str) == name)
    if not found.size:
        raise DataError(f"no user has the id {name!r}")
    if not train.positives(int(found[0])).size:
        raise DataError(f"user {name!r} has no training interactions")
    return int(found[0])


def _recommended(federation: Federation, user: int, count: int = 10) -> list[Any]:
    """Return the ids of the best items that the user does not have."""
    from client_sdk.rounds.newest import top_items  # with much that only a client over HTTP needs

    train = federation.train
    seen = train.positives(user)
    best = top_items(federation.scores(np.array([user]))[0], seen, min(count, train.n_items - seen.size)).items
    return [int(item) for item in best] if train.item_ids is None else train.item_ids[best].tolist()
