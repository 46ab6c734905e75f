"""Tasks with a privacy block through a real server: noise in every sum, and a budget that each client keeps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, PolicyRefused, task_request
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.store.states import total_epsilon
from protocols.messages import Schedule, TaskRequest
from protocols.messages.privacy import Privacy
from protocols.recipes.private import Private
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess, running_aggregator

USERS, ITEMS, ROUNDS = 8, 30, 3
ROWS = [list(range(user, user + 9)) for user in range(USERS)]
PRIVACY = Privacy(epsilon=6.0, delta=1e-6)
COLR = {"items": ITEMS, "dim": 4, "rank": 2, "item_bias": "counts"}
PRIVIREC = {"items": ITEMS, "components": 3, "iterations": 2, "item_exponent": 0.0}
HOW = {"ckks": {"set": "precise"}, "masked": {"dropout": 0.0}, "oneshot": {}, "paillier": {}}


def request(name: str, recipe: str, mechanism: str, privacy: Privacy = PRIVACY, rounds: int = ROUNDS) -> TaskRequest:
    schedule = Schedule(rounds=rounds, cohort_size=USERS, min_clients=USERS, start_clients=USERS)
    parameters = COLR if recipe == "colr" else PRIVIREC
    return task_request(
        name, recipe, mechanism, schedule, parameters, HOW[mechanism], organiser=TRIAL.pin, privacy=privacy
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("privacy") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: AggregatorProcess) -> Iterator[Operator]:
    with Operator(server.url, server.operator_token) as found:
        yield found


def enrolled(server: AggregatorProcess, operator: Operator, wanted: TaskRequest) -> Fleet:
    task_id, mechanism = operator.create_task(wanted).task_id, wanted.mechanism.name
    holder = operator.invite(task_id, role="holder").invitation if mechanism in ("ckks", "paillier") else None
    made = Fleet(server.url, ROWS, FleetOptions(seed=3))
    made.enrol(operator.invite(task_id, uses=USERS).invitation, holder, TRIAL.source)
    made.give_keys()
    if mechanism == "oneshot":
        made.enrol_committee(operator.invite(task_id, role="committee", uses=5).invitation, TRIAL.source)
    return made


@pytest.mark.parametrize(
    ("recipe", "mechanism"),
    [("colr", "ckks"), ("colr", "masked"), ("colr", "oneshot"), ("colr", "paillier"), ("privirec-k", "masked")],
)
def test_noisy_sums_make_a_model_and_each_client_records_their_cost(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str
) -> None:
    wanted = request(f"private-{recipe}-{mechanism}", recipe, mechanism)
    with enrolled(server, operator, wanted) as fleet:
        assert {done.state for done in fleet.run()} == {"complete"}
        members, state = [client.member for client in fleet.clients], fleet.model()
    assert operator.task(members[0].task_id).privacy == PRIVACY
    assert isinstance(members[0].terms.recipe, Private)
    assert state.round_number == ROUNDS
    assert abs(np.log(state.l2_clip)) < 0.21  # two steps of the bound on updates, each by 0.1 at most
    for member in members:
        spending = member.store.spending(member.task_id)
        assert spending is not None
        assert spending.sums == ROUNDS
        assert PRIVACY.epsilon * 0.9 < total_epsilon([spending], PRIVACY.delta) <= PRIVACY.epsilon


def test_a_client_joins_no_task_that_its_budget_does_not_allow(server: AggregatorProcess, operator: Operator) -> None:
    """Two tasks of epsilon 6 cost more than 8 together, whatever the data set is called."""
    identity, store, policy = Identity.generate(), MemoryStore(), Policy(max_epsilon=8.0)
    tasks = [operator.create_task(request(f"budget-{number}", "colr", "masked")).task_id for number in range(2)]
    first, second = (operator.invite(task_id, uses=2).invitation for task_id in tasks)
    with Client(server.url, identity, store, policy) as client:
        client.join(invitation=first, certificate=TRIAL.source("member"))
        with pytest.raises(PolicyRefused, match=r"may cost this client's data epsilon .* of it for other tasks; .* 8 "):
            client.join(invitation=second, certificate=TRIAL.source("member"))
        with pytest.raises(PolicyRefused, match="max-epsilon"):
            client.preview(second)
    with Client(server.url, identity, store, Policy(max_epsilon=12.0)) as client:
        client.preview(second)


def test_a_client_abstains_once_the_sums_that_the_task_pays_for_have_its_data(
    server: AggregatorProcess, operator: Operator
) -> None:
    wanted = request("two-sums", "colr", "masked", PRIVACY.model_copy(update={"rounds": 2}))
    with enrolled(server, operator, wanted) as fleet:
        rounds = fleet.run()
        first, second, *others = rounds
        assert (first.state, second.state) == ("complete", "complete")
        assert not any(done.state == "complete" for done in others)
        member = fleet.clients[0].member
        spending = member.store.spending(member.task_id)
    assert spending is not None
    assert spending.sums == 2
    assert np.array_equal(np.maximum(spending.spent, spending.reserved), spending.reserved)
