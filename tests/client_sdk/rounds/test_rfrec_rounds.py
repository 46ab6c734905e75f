"""RFRec and RFRecF through whole rounds: one model over every mechanism, by itself and through a real server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.training.rfrec import SUM_INDEX
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.rfrec import RFRecF, RFRecState
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess

USERS, ITEMS, ROUNDS = 6, 24, 2
SEED = bytes(range(32))
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "rfrec": ("rfrec", {"variant": "paper"}),
    "rfrec-released": ("rfrec", {"variant": "released"}),
    "rfrecf": ("rfrecf", {"iterations": 10, "variant": "paper", "moves": "coin"}),
    "rfrecf-released": ("rfrecf", {"iterations": 10, "variant": "released", "probability": 0.5}),
}
MECHANISMS: dict[str, dict[str, Any]] = {"plain": {}, "ckks": {}, "masked": {"dropout": 0.0}}


def ratings() -> list[dict[int, float]]:
    """Return every user's ratings; every item is rated by some user, and no user rated all."""
    rng = np.random.default_rng(7)
    return [{i: float(rng.integers(1, 6)) for i in range(ITEMS) if (i + user) % 3 == 0} for user in range(USERS)]


def parameters(case: str) -> dict[str, Any]:
    return {"items": ITEMS, "dim": 4, **RECIPES[case][1]}


def tolerance(*errors: float) -> float:
    """Return the error of a sum divided by the number of clients, once per round, plus float32 and training errors."""
    return 4 * ROUNDS * sum(errors) / USERS + 1e-6


@pytest.mark.parametrize("mechanism", ["ckks", "masked"])
@pytest.mark.parametrize("case", RECIPES)
def test_encrypted_and_plain_sums_train_the_same_model(case: str, mechanism: str) -> None:
    """RFRec with Adam for one round only: its steps do not shrink with the gradient, so that where clients' changes
    cancel the sign of a rounding error decides about the next one (docs/recipes.md).
    """
    rounds = 1 if case == "rfrec-released" else 3
    pairs = [(user, item, rating) for user, own in enumerate(ratings()) for item, rating in own.items()]
    users, items, given = (np.array(column) for column in zip(*pairs, strict=True))
    data = Interactions.from_pairs(users, items, n_users=USERS, n_items=ITEMS, ratings=given)
    plain, hidden = (
        Federation(data, RECIPES[case][0], parameters(case), name, MECHANISMS[name], cohort_size=USERS)
        for name in ("plain", mechanism)
    )
    for made in (plain, hidden):
        assert all(done.survivors == USERS and not done.clipped for done in made.run(rounds))
    atol = tolerance(plain.plan.predicted_error, hidden.plan.predicted_error)
    np.testing.assert_allclose(hidden.state.item_factors, plain.state.item_factors, atol=atol)
    np.testing.assert_allclose(hidden.user_factors, plain.user_factors, atol=atol)
    start = plain.recipe.initial_state(plain.task_seed)
    assert isinstance(start, RFRecState)
    assert np.abs(plain.state.item_factors - start.item_factors).max() > 100 * atol


def create(operator: Operator, case: str, mechanism: str, cohort: int = USERS, rounds: int = ROUNDS) -> str:
    schedule = Schedule(rounds=rounds, cohort_size=cohort, start_clients=USERS)
    request = task_request(
        f"{case}-{mechanism}-{cohort}", RECIPES[case][0], mechanism, schedule, parameters(case), MECHANISMS[mechanism],
        SEED,
        organiser=None if mechanism == "plain" else TRIAL.pin,
    )  # fmt: skip
    return operator.create_task(request).task_id


def trained(server: AggregatorProcess, operator: Operator, task_id: str, mechanism: str) -> Fleet:
    keyed = mechanism == "ckks"
    invitation = operator.invite(task_id, uses=USERS).invitation
    holder = operator.invite(task_id, role="holder").invitation if keyed else None
    made = Fleet(server.url, ratings(), FleetOptions(seed=3))
    made.enrol(invitation, holder, None if mechanism == "plain" else TRIAL.source)
    made.give_keys()
    assert {done.state for done in made.run()} == {"complete"}
    return made


@pytest.mark.parametrize("case", ["rfrec", "rfrecf-released"])
def test_one_model_over_every_mechanism_through_the_service(
    server: AggregatorProcess, operator: Operator, case: str
) -> None:
    found, scores, errors = [], [], []
    for mechanism in MECHANISMS:
        task_id = create(operator, case, mechanism)
        with trained(server, operator, task_id, mechanism) as fleet:
            found.append(fleet.model())
            scores.append(np.stack(list(fleet.scores())))
            errors.append(fleet.clients[0].member.terms.sum_plan.predicted_error)
        assert operator.task(task_id).state == "complete"
    assert all(isinstance(state, RFRecState) and state.sum_index == ROUNDS for state in found)
    for state, predicted, error in zip(found[1:], scores[1:], errors[1:], strict=True):
        atol = tolerance(errors[0], error)
        np.testing.assert_allclose(state.item_factors, found[0].item_factors, atol=atol)
        np.testing.assert_allclose(predicted, scores[0], atol=10 * atol)


def test_a_task_with_coins_ends_when_they_are_used_and_clients_miss_rounds(
    server: AggregatorProcess, operator: Operator
) -> None:
    """Cohorts of 3 of 6 clients, and a schedule of more sums than the coins need."""
    task_id = create(operator, "rfrecf", "plain", cohort=3, rounds=50)
    with trained(server, operator, task_id, "plain") as fleet:
        recipe, state = fleet.clients[0].member.terms.recipe, fleet.model()
        assert isinstance(recipe, RFRecF)
        assert isinstance(state, RFRecState)
        sums = len(recipe.stretches(state))
        assert recipe.is_done(state)
        assert state.sum_index == sums < 10
        steps = [
            int(client_state[SUM_INDEX][0])
            for client_state in (client.client_state() for client in fleet.clients)
            if client_state
        ]
        assert sorted(steps)[-3:] == [sums] * 3
        assert min(steps) < sums
    assert operator.task(task_id).state == "complete"


def test_an_unusable_history_is_refused_before_the_first_round(server: AggregatorProcess, operator: Operator) -> None:
    schedule = Schedule(rounds=1, cohort_size=2, min_clients=2)
    request = task_request("no-ratings", "rfrec", "plain", schedule, parameters("rfrec"))
    invitation = operator.invite(operator.create_task(request).task_id).invitation
    policy = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)
    with Client(server.url, Identity.generate(), MemoryStore(), policy) as client:
        part = client.join("no-ratings", invitation=invitation)
        with pytest.raises(ParameterError, match="learns from ratings"):
            part.take_part([1, 2, 3])
        with pytest.raises(ParameterError, match=r"1 \.\. 5 in this task, got 3 \.\. 7"):
            part.take_part({1: 3, 2: 7})
