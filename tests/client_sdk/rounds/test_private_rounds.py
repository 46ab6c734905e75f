"""Tasks with a privacy block through a real server: noise in every sum, and a budget that each client keeps."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, NotFound, Operator, Policy, PolicyRefused, task_request
from client_sdk.lab.fleet import Fleet
from client_sdk.store.states import total_epsilon
from protocols.messages import Schedule, TaskRequest
from protocols.messages.privacy import Privacy
from protocols.recipes.private import Private
from tests.support.fleets import enrolled_fleet
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess
from tests.support.tasks import SmallTask

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


def enrolled(server: AggregatorProcess, operator: Operator, wanted: TaskRequest) -> Fleet:
    return enrolled_fleet(server.url, SmallTask.of(operator, wanted, USERS), ROWS)


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


@pytest.mark.parametrize(("recipe", "mechanism"), [("colr", "masked"), ("privirec-k", "masked"), ("colr", "oneshot")])
def test_a_task_ends_once_the_sums_that_it_pays_for_have_the_data_of_its_members(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str
) -> None:
    """The cohort of privirec-k is frozen. A committee keeps publishing keys for one-shot rounds until the end."""
    two = PRIVACY.model_copy(update={"rounds": 2})
    wanted = request(f"two-sums-{recipe}-{mechanism}", recipe, mechanism, two)
    with enrolled(server, operator, wanted) as fleet:
        assert [done.state for done in fleet.run()] == ["complete", "complete"]
        member = fleet.clients[0].member
        spending = member.store.spending(member.task_id)
    assert spending is not None
    assert spending.sums == 2
    assert np.array_equal(np.maximum(spending.spent, spending.reserved), spending.reserved)
    ended = operator.task(member.task_id)
    assert ended.state == "complete"
    assert "0 of 8 members may contribute once more, and a sum needs 8" in ended.warnings[0]
    assert [view.number for view in operator.rounds(member.task_id)] == [1, 2]
    found = operator.privacy(member.task_id)
    assert (found.most_sums, found.released_sums, found.spent_members) == (2, 2, USERS)
    assert total_epsilon([spending], PRIVACY.delta) == pytest.approx(found.largest_epsilon)


def test_members_and_operators_read_what_the_block_promises_and_what_is_spent(
    server: AggregatorProcess, operator: Operator
) -> None:
    wanted = request("shown", "colr", "masked")
    with enrolled(server, operator, wanted) as fleet:
        fleet.run(rounds=1)
        member = fleet.clients[0].member
    found = operator.privacy(member.task_id)
    assert found.terms == PRIVACY
    assert 0 < found.largest_epsilon < PRIVACY.epsilon
    assert found.sampled_epsilon == found.largest_epsilon  # every member is in every cohort
    assert [noise.sum_index for noise in found.sums] == [1, 2]
    assert "0 of the 8 clients" in found.against[0]
    plain = operator.create_task(wanted.model_copy(update={"name": "no-block", "privacy": None})).task_id
    with pytest.raises(NotFound, match="no privacy block"):
        operator.privacy(plain)
    invitation = operator.invite(member.task_id).invitation
    with Client(server.url, Identity.generate(), MemoryStore(), Policy(max_epsilon=8.0)) as client:
        task = client.join(invitation=invitation, certificate=TRIAL.source("member"))
        assert task.privacy() == found
