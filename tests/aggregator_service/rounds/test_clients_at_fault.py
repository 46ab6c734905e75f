"""Members that make a masked round fail are named and retired, and cannot end the task."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select

from aggregator_service.rounds import advance
from aggregator_service.rounds.masked_stages import fail_stage
from aggregator_service.storage.schema import ClientRow
from protocols.sums.masked import client
from protocols.sums.masked.shamir import SHARE_BYTES
from tests.support.api import Api, TestTask
from tests.support.inside import aggregator_inside, services
from tests.support.masked import MaskedClient, enrol_masked, masked_task, play

COHORT = 9
DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
NO_PROCESS = cast("Any", None)


class Dealer(MaskedClient):
    """Commits to one seed and shares another."""

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        if step == "advertise":
            assert isinstance(self.state, client.Advertised)
            object.__setattr__(self.state, "seed", bytes(32))
        return body


class Holder(MaskedClient):
    """Sends wrong shares of everybody's secrets."""

    def make(self, number: int, step: Any, value: float = 1.0) -> bytes:
        body = super().make(number, step, value)
        return (
            b"".join(bytes([n % 7 + 1] * 32 + [0]) for n in range(len(body) // SHARE_BYTES))
            if step == "unmask"
            else body
        )


def faulty(clients: dict[int, MaskedClient], kind: type[MaskedClient], *places: int) -> dict[int, MaskedClient]:
    return {index: kind(**vars(one)) if index in places else one for index, one in clients.items()}


def retired(api: Api, task: TestTask) -> set[str]:
    with services(api).database.read() as session:
        query = select(ClientRow.id).where(ClientRow.task_id == task.id, ClientRow.retired_in.is_not(None))
        return set(session.scalars(query))


@DEFENDED
@pytest.mark.parametrize(("kind", "places"), [(Dealer, (2,)), (Holder, (1, 4, 5, 7))])
def test_attack_failing_every_round(
    defended: bool,
    kind: type[MaskedClient],
    places: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without the defence the members at fault stay and no sum is opened; with it, the others complete the next one."""
    if not defended:
        monkeypatch.setattr(
            advance,
            "fail_at_fault",
            lambda session, task, round_, error, now: fail_stage(session, task, round_, "", now),
        )
    with caplog.at_level(logging.WARNING), aggregator_inside(tmp_path / "data") as api:
        task = masked_task(api, "faulty", COHORT, min_clients=4, max_failed_rounds=1, rounds=2)
        clients = faulty(enrol_masked(task, COHORT), kind, *places)
        play(NO_PROCESS, task, clients)
        failed = task.wait_round(1, "failed")
        at_fault = {clients[place].client_id for place in places}
        state = api.http.get(task.path, headers=api.operator).json()["state"]
        if not defended:
            assert retired(api, task) == set()
            play(NO_PROCESS, task, clients, 2)
            task.wait_round(2, "failed")
            return
        assert state == "open"
        assert retired(api, task) == at_fault
        assert all(one in failed["failure"] for one in at_fault)
        assert caplog.text.count("client at fault, retired") == len(places)
        honest = {index: one for index, one in clients.items() if index not in places}
        play(NO_PROCESS, task, honest, 2)
        assert task.wait_round(2, "complete", "failed")["survivors"] == len(honest)
