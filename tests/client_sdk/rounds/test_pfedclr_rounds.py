"""PFedCLR through whole rounds: one model over every mechanism, and step 2 while the server sums."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import ClientState
from client_sdk.training.base import LocalResult
from client_sdk.training.pfedclr import BUFFER_ROWS, PFedCLRConfig, PFedCLRHalf
from protocols.messages import Schedule
from protocols.recipes.base import FactorState
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess
from tests.support.tasks import ITEMS, interactions

USERS, COHORT, ROUNDS = 30, 20, 3
SMALL = PFedCLRConfig(epochs=2, batch_size=32)
PLAIN = Policy(mechanisms=frozenset({"plain"}))
SHAPE = {"dim": 4, "rank": 2, "max_interactions": 10, "reveal_weights": True}


@pytest.fixture(scope="module")
def data() -> LeaveOneOut:
    return leave_one_out(synthetic(SyntheticConfig(users=USERS, items=60, positives=9)), 0)


def federation(data: LeaveOneOut, mechanism: str, **mechanism_parameters: Any) -> Federation:
    parameters = {"items": data.train.n_items, **SHAPE}
    made = Federation(
        data.train, "pfedclr", parameters, mechanism, mechanism_parameters, SMALL, COHORT, sampling="uniform"
    )
    assert [done.survivors for done in made.run(ROUNDS)] == [COHORT] * ROUNDS
    return made


@pytest.fixture(scope="module")
def plain(data: LeaveOneOut) -> Federation:
    return federation(data, "plain")


@pytest.mark.parametrize(
    ("mechanism", "parameters"),
    [("ckks", {"set": "standard"}), ("ckks", {"set": "compact"}), ("masked", {"dropout": 0.0})],
)
def test_encrypted_and_plain_sums_train_the_same_model(
    data: LeaveOneOut, plain: Federation, mechanism: str, parameters: dict[str, Any]
) -> None:
    hidden = federation(data, mechanism, **parameters)
    # the sum of 20 weights is above 4, so an error of the sum is a smaller one of the mean; training adds its own
    tolerance = 4 * ROUNDS * (hidden.plan.predicted_error + plain.plan.predicted_error) + 1e-5
    np.testing.assert_allclose(hidden.state.item_factors, plain.state.item_factors, atol=tolerance)
    np.testing.assert_allclose(hidden.user_factors, plain.user_factors, atol=10 * tolerance)
    for ours, theirs in zip(hidden.client_states, plain.client_states, strict=True):
        np.testing.assert_allclose(ours[BUFFER_ROWS], theirs[BUFFER_ROWS], atol=10 * tolerance)
    moved = plain.state.item_factors - plain.recipe.initial_state(plain.task_seed).item_factors
    assert np.abs(moved).max() > 0.02


def test_noise_stays_within_the_range_of_the_ring(data: LeaveOneOut) -> None:
    parameters = {"items": data.train.n_items, "dim": 4, "rank": 2, "noise_scale": 0.5}
    made = Federation(data.train, "pfedclr", parameters, "masked", {"dropout": 0.0}, SMALL, COHORT)
    list(made.run(1))
    moved = made.state.item_factors - made.recipe.initial_state(made.task_seed).item_factors
    expected = 0.5 * np.sqrt(2 / COHORT)  # the deviation of a mean of 20 draws
    assert moved.std() == pytest.approx(expected, rel=0.25)


# --- over the service ------------------------------------------------------------------------------------------------


def create(operator: Operator, name: str, mechanism: str, users: int, rounds: int) -> str:
    schedule = Schedule(rounds=rounds, cohort_size=users, start_clients=users)
    return operator.create_task(
        task_request(
            name,
            "pfedclr",
            mechanism,
            schedule,
            {"items": ITEMS, **SHAPE},
            organiser=None if mechanism == "plain" else TRIAL.pin,
        )
    ).task_id


def expected_factors(fleet: Fleet, users: int) -> np.ndarray:
    """Return the item factors after round 1, from running step 1 again with the same seeds and adding in the clear."""
    terms = fleet.clients[0].member.terms
    state, spec = terms.recipe.initial_state(terms.seed), terms.recipe.round_spec(terms.seed, 1)
    total = np.zeros(terms.recipe.layout(1).length)
    for index, (client, positives) in enumerate(zip(fleet.clients, interactions(users), strict=True)):
        twin = replace(
            client,
            rng=np.random.default_rng((3, index)),
            member=replace(client.member, store=ClientStore(MemoryStore(), "twin")),
            _client_state=None,
        )
        (block,) = twin._train(spec, state, twin.history(positives)).blocks
        total += block
    after = terms.recipe.absorb(state, spec, total, users)
    assert isinstance(after, FactorState)
    return after.item_factors


@pytest.mark.parametrize("mechanism", ["plain", "ckks", "masked"])
def test_a_round_through_the_service_gives_the_model_of_the_plain_sum(
    server: AggregatorProcess, operator: Operator, mechanism: str
) -> None:
    users = 4
    task_id = create(operator, f"same-{mechanism}", mechanism, users, 1)
    holder = operator.invite(task_id, role="holder").invitation if mechanism == "ckks" else None
    code = None if mechanism == "plain" else TRIAL.source
    with Fleet(server.url, interactions(users), FleetOptions(seed=3, training=SMALL)) as fleet:
        fleet.enrol(operator.invite(task_id, uses=users).invitation, holder, code)
        fleet.give_keys()
        (played,) = fleet.run()
        assert (played.state, played.survivors) == ("complete", users)
        expected, error = expected_factors(fleet, users), fleet.clients[0].member.terms.sum_plan.predicted_error
        found = fleet.model()
        assert isinstance(found, FactorState)
        np.testing.assert_allclose(found.item_factors, expected, atol=8 * error + 1e-6)
        first = fleet.clients[0].member.terms
        start = first.recipe.initial_state(first.seed)
        assert isinstance(start, FactorState)
        assert np.abs(found.item_factors - start.item_factors).max() > 0.01
        client_states = [client.client_state() for client in fleet.clients]
        assert all(
            client_state is not None and client_state[BUFFER_ROWS].any() for client_state in client_states
        )  # step 2 took place


def test_the_server_sums_while_clients_personalise(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 of every client waits until the round is complete, which requires that no upload waits for step 2."""
    users, rounds = 3, 2
    task_id = create(operator, "overlap", "plain", users, rounds)
    found: list[tuple[int, str]] = []
    contribute = PFedCLRHalf.contribute

    def state_of(number: int) -> str:
        return next(view.state for view in operator.rounds(task_id) if view.number == number)

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
    invitation = operator.invite(task_id, uses=users).invitation
    clients = [Client(server.url, Identity.generate(), MemoryStore(), PLAIN) for _ in range(users)]
    try:
        parts = [client.join("overlap", invitation=invitation, training=SMALL) for client in clients]
        with ThreadPoolExecutor(users) as pool:
            reports = list(pool.map(lambda part, items: part.take_part(items), parts, interactions(users)))
    finally:
        for client in clients:
            client.close()
    assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * users
    assert sorted(number for number, _ in found) == [1] * users + [2] * users
    assert {state for _, state in found} <= {"folding", "complete"}
