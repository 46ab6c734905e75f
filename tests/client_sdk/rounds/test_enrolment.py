"""Enrolling again over real HTTP: the client gets a new token, and a recorded enrolment gets nobody one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.errors import Conflict, Unauthenticated
from protocols.messages import MechanismChoice, RecipeChoice, Schedule, TaskRequest
from tests.support.server import AggregatorProcess, running_aggregator

PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("enrolment") / "data") as running:
        yield running


def test_enrolling_again_works_and_a_recorded_enrolment_does_not(server: AggregatorProcess) -> None:
    with Operator(server.url, server.operator_token) as operator:
        recipe = RecipeChoice(name="fedmf", parameters={"items": 20, "dim": 4, "clip": 0.5})
        schedule = Schedule(rounds=1, cohort_size=3, min_clients=3)
        task = operator.create_task(
            TaskRequest(name="again", recipe=recipe, mechanism=MechanismChoice(name="plain"), schedule=schedule)
        )
        invitation = operator.invite(task.task_id).invitation
    identity, tokens = Identity.generate(), list[str]()
    client_ids = set()
    for _ in range(3):  # each time on a new device, which knows nothing of the enrolments before
        with Client(server.url, identity, MemoryStore(), policy=PLAIN) as client:
            membership = client.join(invitation=invitation).membership
            tokens.append(membership.token)
            client_ids.add(membership.client_id)
    assert (len(set(tokens)), len(client_ids)) == (3, 1)
    calls = ApiCalls(server.url)
    *void, last = (calls.enrolled(membership.client_id, token, identity.signing_key) for token in tokens)
    with SyncDriver() as driver:
        for renewal in range(3):
            with pytest.raises(Conflict, match="renewal above 2"):
                driver.run(calls.enrol(identity.enrolment(invitation, None, None, renewal)))
        assert driver.run(last.task(task.task_id)).name == "again"
        for old in void:
            with pytest.raises(Unauthenticated):
                driver.run(old.task(task.task_id))
