"""Clients that refuse a round: it does not wait for them, and operators see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_service.rounds import transactions
from tests.aggregator_service.rounds.test_keyed_task import slug
from tests.support.api import Api, TestMember
from tests.support.inside import aggregator_inside
from tests.support.masked import MaskedClient, enrol_masked, masked_task

DEFENDED = pytest.mark.parametrize("waits", [False, True], ids=["gone at once", "waited for"])


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("refusals") / "data") as found:
        yield found


def refuse(client: TestMember | MaskedClient, reason: str) -> None:
    path = f"{client.task.path}/rounds/1/refusals"
    answer = client.task.api.http.post(path, json={"reason": reason}, headers=client.auth)
    assert answer.status_code == 200, answer.text


@DEFENDED
def test_a_masked_stage_does_not_wait_for_a_client_that_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Its deadline is an hour away."""
    if waits:
        monkeypatch.setattr(transactions, "refused_now", lambda *_: 0)
    task = masked_task(api, f"refusals-{int(waits)}", cohort=5, mode="curious")
    clients = enrol_masked(task, 5)
    task.wait_round(1, "advertising")
    for client in clients.values():
        assert client.take(1, "advertise").status_code == 201
    task.wait_round(1, "sharing")
    refuse(clients[0], "roster")
    stayed = [clients[index] for index in range(1, 5)]
    for client in stayed:
        assert client.take(1, "share").status_code == 201
    if waits:
        with pytest.raises(AssertionError, match="did not become"):
            task.wait_round(1, "collecting", seconds=1.0)
        return
    task.wait_round(1, "collecting")
    assert task.round(1)["refusals"] == {"roster": 1}
    refuse(clients[1], "sharers")
    for client in stayed[1:]:
        assert client.take(1, "contribute").status_code == 201
    assert task.wait_round(1, "failed")["failure"] is not None  # 3 of 4: too few for `min_clients`, at once


def test_a_round_does_not_wait_for_a_client_that_refused(api: Api, tmp_path: Path) -> None:
    task = api.create_task("plain-refusals", cohort=3, collect_seconds=600)
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    refuse(members[0], "policy")
    refuse(members[0], "policy")
    for member in members[1:]:
        assert member.put(1, member.contribution(1, 2.0)).status_code == 201
    view = task.wait_round(1, "complete")
    assert (view["survivors"], view["refusals"]) == (2, {"policy": 1})
    late = members[0].put(1, members[0].contribution(1, 2.0))
    assert slug(late) == "round-closed"
