"""Trains any recipe on any split in one process, and measures the model between the rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isnan
from time import perf_counter
from typing import Any, Final

import numpy as np

from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.splits import Split
from client_sdk.lab.federation import Federation, SimulatedRound
from client_sdk.lab.measures import Advised, Comparison, Measured, measure_of, verdict
from client_sdk.lab.simulated_task import SimulationRequest, check_request, choice_for, federation_for, predicts_ratings
from client_sdk.lab.traffic import wire_traffic
from protocols.advice import STARTED
from protocols.errors import ParameterError
from protocols.privacy_advice import Left
from protocols.recipes.base import ModelState, Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.evaluation_curve import MODEL_ROUND
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe_entry
from protocols.recipes.state import state_as

_POINTS: Final = 10  # of a curve, unless `every` is given


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


def simulate(split: Split, request: SimulationRequest, progress: RoundListener | None = None) -> SimulationResult:
    """Train on `split.train` and return the curve on `split.test`.

    The sums are computed by the mechanism's own arithmetic; only the network is left out. Raises `ParameterError` for
    parameters that do not fit, and `DataError` for data that the recipe cannot use.
    """
    check_request(request)
    if request.epsilon is not None and request.mechanism == "plain":
        request = replace(request, mechanism="masked")
    chosen: tuple[str, ...] = ()
    expected: Left | None = None
    if request.recipe == "auto":
        choice, expected = choice_for(split, request)
        request, chosen = replace(request, recipe=choice.recipe), choice.why
    federation = federation_for(split, request)
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
            other = choice_for(split, request)[0].recipe
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
