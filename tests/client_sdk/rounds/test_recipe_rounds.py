"""Recipes through whole rounds: one model over every mechanism, in one process and through a real server."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, MFConfig, Operator, Policy, PolicyRefused, task_request
from client_sdk.errors import InvalidParameters
from client_sdk.lab.data.interactions import Interactions, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.lab.fleet import Fleet
from client_sdk.store.states import ClientState
from client_sdk.training.base import LocalResult
from client_sdk.training.factors import RESIDUAL_ROWS
from client_sdk.training.pfedclr import BUFFER_ROWS, PFedCLRConfig, PFedCLRHalf
from client_sdk.training.rfrec import SUM_INDEX
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.base import FactorState
from protocols.recipes.rfrec import RFRecF, RFRecState
from protocols.recipes.state import state_as
from protocols.recipes.topk import TopKState
from tests.support.fleets import enrolled_fleet, model_in_the_clear
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess
from tests.support.tasks import ITEMS, SmallTask, interactions, small_task, take_part_together

SHORT = {"key_bits": 2048, "value_bits": 46}
OWN: dict[str, Any] = {"dim": 2, "share": 0.1, "support": "own", "reveal_indices": True}
RECIPES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "pfedclr": (
        "pfedclr",
        {"dim": 4, "rank": 2, "max_interactions": 10, "reveal_weights": True},
        PFedCLRConfig(epochs=2, batch_size=32),
    ),
    "vote": ("topk", {"dim": 2, "share": 0.2, "support_from": "vote", "reveal_touched": True}, MFConfig(epochs=1)),
    "feedback": ("topk", {**OWN, "error_feedback": True}, MFConfig(epochs=1)),
}
SMALL = RECIPES["pfedclr"][2]

# --- in one process ---------------------------------------------------------------------------------------------------

COHORT, ROUNDS = 20, 3


def federation(name: str, mechanism: str, how: dict[str, Any]) -> Federation:
    data = leave_one_out(synthetic(SyntheticConfig(users=30, items=60, positives=9)), 0)
    recipe, parameters, training = RECIPES[name]
    parameters = {"items": data.train.n_items, **parameters}
    made = Federation(data.train, recipe, parameters, mechanism, how, training, COHORT, sampling="uniform")
    assert [done.survivors for done in made.run(ROUNDS)] == [COHORT] * ROUNDS
    return made


@pytest.mark.parametrize(
    ("name", "mechanism", "how"),
    [
        ("pfedclr", "ckks", {"set": "standard"}),
        ("pfedclr", "ckks", {"set": "compact"}),
        ("pfedclr", "masked", {"dropout": 0.0}),
        ("vote", "paillier", SHORT),
        ("feedback", "paillier", SHORT),
        ("vote", "masked", {"dropout": 0.0}),
    ],
)
def test_encrypted_and_plain_sums_train_the_same_model(name: str, mechanism: str, how: dict[str, Any]) -> None:
    plain, hidden = federation(name, "plain", {}), federation(name, mechanism, how)
    gain = getattr(plain.recipe, "gain", 1.0)
    # the weight of a sum is above 1, so its error is a smaller one of the mean; training adds its own
    tolerance = 4 * ROUNDS * gain * (hidden.plan.predicted_error + plain.plan.predicted_error) + 1e-5
    np.testing.assert_allclose(hidden.state.item_factors, plain.state.item_factors, atol=tolerance)
    np.testing.assert_allclose(hidden.user_factors, plain.user_factors, atol=10 * tolerance)
    if isinstance(plain.state, TopKState):
        np.testing.assert_array_equal(hidden.state.support, plain.state.support)
    for ours, theirs in zip(hidden.client_states, plain.client_states, strict=True):
        if name == "pfedclr":
            np.testing.assert_allclose(ours[BUFFER_ROWS], theirs[BUFFER_ROWS], atol=10 * tolerance)
        assert name != "feedback" or theirs[RESIDUAL_ROWS].size
    moved = plain.state.item_factors - plain.recipe.initial_state(plain.task_seed).item_factors
    assert np.abs(moved).max() > 0.02


def test_noise_of_pfedclr_stays_within_the_range_of_the_ring() -> None:
    data = leave_one_out(synthetic(SyntheticConfig(users=30, items=60, positives=9)), 0)
    parameters = {"items": data.train.n_items, "dim": 4, "rank": 2, "noise_scale": 0.5}
    made = Federation(data.train, "pfedclr", parameters, "masked", {"dropout": 0.0}, SMALL, COHORT)
    list(made.run(1))
    moved = made.state.item_factors - made.recipe.initial_state(made.task_seed).item_factors
    expected = 0.5 * np.sqrt(2 / COHORT)  # the deviation of a mean of 20 draws
    assert moved.std() == pytest.approx(expected, rel=0.25)


# --- RFRec and RFRecF -------------------------------------------------------------------------------------------------

USERS, RATED, SUMS = 6, 24, 2
RATINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "rfrec": ("rfrec", {"variant": "paper"}),
    "rfrec-released": ("rfrec", {"variant": "released"}),
    "rfrecf": ("rfrecf", {"iterations": 10, "variant": "paper", "moves": "coin"}),
    "rfrecf-released": ("rfrecf", {"iterations": 10, "variant": "released", "probability": 0.5}),
}
MECHANISMS: dict[str, dict[str, Any]] = {"plain": {}, "ckks": {}, "masked": {"dropout": 0.0}}


def ratings() -> list[dict[int, float]]:
    """Return every user's ratings; every item is rated by some user, and no user rated all."""
    rng = np.random.default_rng(7)
    return [{i: float(rng.integers(1, 6)) for i in range(RATED) if (i + user) % 3 == 0} for user in range(USERS)]


def tolerance(*errors: float) -> float:
    """Return the error of a sum divided by the number of clients, once per round, plus float32 and training errors."""
    return 4 * SUMS * sum(errors) / USERS + 1e-6


@pytest.mark.parametrize("mechanism", ["ckks", "masked"])
@pytest.mark.parametrize("case", RATINGS)
def test_encrypted_and_plain_sums_train_the_same_model_of_ratings(case: str, mechanism: str) -> None:
    """RFRec with Adam for one round only: its steps do not shrink with the gradient, so that where clients' changes
    cancel the sign of a rounding error decides about the next one (docs/recipes.md).
    """
    rounds = 1 if case == "rfrec-released" else 3
    pairs = [(user, item, rating) for user, own in enumerate(ratings()) for item, rating in own.items()]
    users, items, given = (np.array(column) for column in zip(*pairs, strict=True))
    data = Interactions.from_pairs(users, items, n_users=USERS, n_items=RATED, ratings=given)
    name, parameters = RATINGS[case]
    plain, hidden = (
        Federation(data, name, {"items": RATED, "dim": 4, **parameters}, used, MECHANISMS[used], cohort_size=USERS)
        for used in ("plain", mechanism)
    )
    for made in (plain, hidden):
        assert all(done.survivors == USERS and not done.clipped for done in made.run(rounds))
    atol = tolerance(plain.plan.predicted_error, hidden.plan.predicted_error)
    np.testing.assert_allclose(hidden.state.item_factors, plain.state.item_factors, atol=atol)
    np.testing.assert_allclose(hidden.user_factors, plain.user_factors, atol=atol)
    start = state_as(plain.recipe.initial_state(plain.task_seed), RFRecState)
    assert np.abs(plain.state.item_factors - start.item_factors).max() > 100 * atol


def trained(
    server: AggregatorProcess, operator: Operator, case: str, mechanism: str, cohort: int = USERS, rounds: int = SUMS
) -> tuple[Fleet, SmallTask]:
    name, parameters = RATINGS[case]
    request = task_request(
        f"{case}-{mechanism}-{cohort}", name, mechanism,
        Schedule(rounds=rounds, cohort_size=cohort, start_clients=USERS), {"items": RATED, "dim": 4, **parameters},
        MECHANISMS[mechanism], bytes(range(32)), organiser=None if mechanism == "plain" else TRIAL.pin,
    )  # fmt: skip
    task = SmallTask.of(operator, request, USERS)
    fleet = enrolled_fleet(server.url, task, ratings())
    assert {done.state for done in fleet.run()} == {"complete"}
    assert operator.task(task.task_id).state == "complete"
    return fleet, task


@pytest.mark.parametrize("case", ["rfrec", "rfrecf-released"])
def test_one_model_of_ratings_over_every_mechanism_through_the_service(
    server: AggregatorProcess, operator: Operator, case: str
) -> None:
    found, scores, errors = [], [], []
    for mechanism in MECHANISMS:
        fleet, _ = trained(server, operator, case, mechanism)
        with fleet:
            found.append(state_as(fleet.model(), RFRecState))
            scores.append(np.stack(list(fleet.scores())))
            errors.append(fleet.clients[0].member.terms.sum_plan.predicted_error)
    assert [state.sum_index for state in found] == [SUMS] * 3
    for state, predicted, error in zip(found[1:], scores[1:], errors[1:], strict=True):
        atol = tolerance(errors[0], error)
        np.testing.assert_allclose(state.item_factors, found[0].item_factors, atol=atol)
        np.testing.assert_allclose(predicted, scores[0], atol=10 * atol)


def test_a_task_with_coins_ends_when_they_are_used_and_clients_miss_rounds(
    server: AggregatorProcess, operator: Operator
) -> None:
    """Cohorts of 3 of 6 clients, and a schedule of more sums than the coins need."""
    fleet, _ = trained(server, operator, "rfrecf", "plain", cohort=3, rounds=50)
    with fleet:
        recipe, state = fleet.clients[0].member.terms.recipe, state_as(fleet.model(), RFRecState)
        assert isinstance(recipe, RFRecF)
        sums = len(recipe.stretches(state))
        assert recipe.is_done(state)
        assert state.sum_index == sums < 10
        states = [client.client_state() for client in fleet.clients]
        steps = sorted(int(client_state[SUM_INDEX][0]) for client_state in states if client_state)
        assert steps[-3:] == [sums] * 3
        assert steps[0] < sums


def test_an_unusable_history_is_refused_before_the_first_round(server: AggregatorProcess, operator: Operator) -> None:
    schedule = Schedule(rounds=1, cohort_size=2, min_clients=2)
    request = task_request("no-ratings", "rfrec", "plain", schedule, {"items": RATED, "dim": 4})
    policy = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)
    with Client(server.url, Identity.generate(), MemoryStore(), policy) as client:
        part = SmallTask.of(operator, request, 2).join(client)
        with pytest.raises(ParameterError, match="learns from ratings"):
            part.take_part([1, 2, 3])
        with pytest.raises(ParameterError, match=r"1 \.\. 5 in this task, got 3 \.\. 7"):
            part.take_part({1: 3, 2: 7})


# --- any recipe over the service --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "mechanism"),
    [
        ("fedmf", "masked"),
        ("colr", "masked"),
        ("scolr", "masked"),
        ("colr", "ckks"),
        ("pfedclr", "plain"),
        ("pfedclr", "ckks"),
        ("pfedclr", "masked"),
    ],
)
def test_a_round_through_the_service_gives_the_model_of_the_plain_sum(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str
) -> None:
    """The model that the server released is that of training every client again from the same seeds."""
    _, parameters, training = RECIPES.get(recipe, ("", None, None))
    task = small_task(
        operator, f"same-{recipe}-{mechanism}", users=USERS, recipe=recipe, mechanism=mechanism,
        recipe_parameters=parameters, rounds=1,
    )  # fmt: skip
    policy = Policy(mechanisms=frozenset({mechanism}))
    with enrolled_fleet(server.url, task, interactions(USERS), training=training, policy=policy) as fleet:
        start = state_as(fleet.model(), FactorState).item_factors.copy()
        (played,) = fleet.run()
        assert (played.state, played.survivors, len(played.reports)) == ("complete", USERS, USERS)
        assert all(report.seal_seconds > 0 and report.upload_seconds > 0 for report in played.reports)
        expected = state_as(model_in_the_clear(fleet, interactions(USERS)), FactorState).item_factors
        error = fleet.clients[0].member.terms.sum_plan.predicted_error
        found = state_as(fleet.model(), FactorState).item_factors
        np.testing.assert_allclose(found, expected, atol=8 * error + 1e-6)
        assert np.abs(expected - start).max() > 0.01
        if recipe == "pfedclr":  # step 2 took place
            states = [client.client_state() for client in fleet.clients]
            assert all(client_state is not None and client_state[BUFFER_ROWS].any() for client_state in states)
    assert operator.task(task.task_id).state == "complete"


def test_the_server_sums_while_clients_of_pfedclr_personalise(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 of every client waits until the round is complete, which requires that no upload waits for step 2."""
    users = 3
    task = small_task(operator, "overlap", users=users, recipe="pfedclr", recipe_parameters=RECIPES["pfedclr"][1])
    found: list[tuple[int, str]] = []
    contribute = PFedCLRHalf.contribute

    def state_of(number: int) -> str:
        return next(view.state for view in operator.rounds(task.task_id) if view.number == number)

    def waiting(self: PFedCLRHalf, spec: Any, *rest: Any) -> LocalResult:
        local = contribute(self, spec, *rest)
        finish, deadline = local.finish, time.monotonic() + 20
        assert finish is not None

        def late() -> ClientState:
            while (seen := state_of(spec.number)) == "collecting" and time.monotonic() < deadline:
                time.sleep(0.02)
            found.append((spec.number, seen))
            return finish()

        return replace(local, finish=late)

    monkeypatch.setattr(PFedCLRHalf, "contribute", waiting)
    policy = Policy(mechanisms=frozenset({"plain"}))
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(server.url, Identity.generate(), MemoryStore(), policy)) for _ in range(users)
        ]
        reports = take_part_together([task.join(client, training=SMALL) for client in clients], interactions(users))
    assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * users
    assert sorted(number for number, _ in found) == [1] * users + [2] * users
    assert {state for _, state in found} <= {"folding", "complete"}


def test_a_client_reveals_its_indices_only_if_its_policy_allows_it(
    server: AggregatorProcess, operator: Operator
) -> None:
    task = small_task(
        operator, "own-unasked", users=3, recipe="topk", mechanism="paillier", recipe_parameters=OWN,
        mechanism_parameters={"key_bits": 2048},
    )  # fmt: skip
    with (
        Client(server.url, Identity.generate(), MemoryStore()) as client,
        pytest.raises(PolicyRefused, match="which items it touched"),
    ):
        task.join(client)


@pytest.mark.parametrize(
    ("recipe", "mechanism", "parameters", "fault"),
    [
        ("topk", "masked", OWN, "choose their positions"),
        ("topk", "ckks", {"share": 0.2}, "cannot be combined with 'ckks'"),
        ("topk", "plain", {"support": "own"}, "reveal_indices=true"),
        ("svd", "masked", {}, "open problem"),
    ],
)
def test_combinations_that_cannot_work_are_refused_when_the_task_is_created(
    operator: Operator, recipe: str, mechanism: str, parameters: dict[str, Any], fault: str
) -> None:
    asked = {"items": ITEMS, "dim": 4, **parameters}
    with pytest.raises(InvalidParameters, match=fault):
        operator.create_task(task_request("refused", recipe, mechanism, Schedule(rounds=2), asked))
