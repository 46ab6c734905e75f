"""Members of the committee report sealed shares in one-shot rounds: no liar retires a client, and the task goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from sqlalchemy import select, update

from aggregator_service.storage.schema import ClientRow, RoundRow
from tests.support.api import Api, TestTask
from tests.support.inside import aggregator_inside, services
from tests.support.oneshot import (
    OneshotClient,
    OneshotMember,
    committee_turn,
    enrol_clients,
    enrol_committee,
    oneshot_task,
    publish_keys,
)

NO_PROCESS = cast("Any", None)
COHORT, COMMITTEE = 6, 5
CONFLICT = "urn:hushrec:problem:conflict"


def begin(
    api: Api, garbage_for: Sequence[int], **changes: Any
) -> tuple[TestTask, list[OneshotClient], list[OneshotMember]]:
    """A task that no failed round may hit, whose committee is asked to confirm the first round's six clients.

    The last client has sealed random bytes for the members at the places `garbage_for`.
    """
    task = oneshot_task(api, "reports", COHORT, max_failed_rounds=1, rounds=2, **changes)
    members = enrol_committee(task, COMMITTEE)
    publish_keys(members, 1, 2, 3)
    clients = enrol_clients(task, COHORT)
    contribute(task, clients, 1, {COHORT - 1: [members[place] for place in garbage_for]})
    return task, clients, members


def contribute(
    task: TestTask, clients: list[OneshotClient], number: int, garbage: dict[int, list[OneshotMember]] | None = None
) -> None:
    """All clients of the cohort send their upload."""
    task.wait_round(number, "collecting")
    asked = cohort(task, number)
    for index, client in enumerate(clients):
        if client.client_id not in asked:
            continue
        upload, committee = client.make(number), client.committee(number)
        places = [committee.place(one.client_id) for one in (garbage or {}).get(index, ())]
        sealed = {place: bytes(len(upload.ticket.sealed[place])) for place in places}
        assert client.send(number, client.resigned(number, upload, sealed=sealed).encode()).status_code == 201
    task.wait_round(number, "confirming")


def cohort(task: TestTask, number: int) -> set[str]:
    answer = task.api.http.get(f"{task.path}/rounds/{number}/cohort", headers=task.api.operator)
    return set(answer.json()["clients"])


def retired(task: TestTask) -> set[str]:
    with services(task.api).database.read() as session:
        query = select(ClientRow.id).where(ClientRow.task_id == task.id, ClientRow.retired_in.is_not(None))
        return set(session.scalars(query))


def report(member: OneshotMember, number: int = 1) -> dict[str, Any]:
    """Report what does not open for an honest member; return the round as it then is."""
    found = member.inspect(number)
    assert found.bad
    answer = member.name_bad(number, found.bad)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def pass_deadline(task: TestTask, number: int = 1) -> None:
    """Let the deadline of a round's current stage be over."""
    ended = update(RoundRow).where(RoundRow.task_id == task.id, RoundRow.number == number).values(deadline=0.0)
    with services(task.api).database.write() as session:
        session.execute(ended)


def test_attack_a_member_of_the_committee_reports_good_shares(tmp_path: Path) -> None:
    """Its word alone changes nothing: the others can open the sum, and no client leaves."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, ())
        victims = [client.client_id for client in clients[:5]]
        proposed = members[0].view(1)["survivors_digest"]
        told = members[0].name_bad(1, victims).json()
        assert (told["state"], told["received"], told["survivors_digest"]) == ("confirming", COHORT, proposed)
        committee_turn(NO_PROCESS, task, members[1:])  # nobody waits for the liar
        assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT
        assert retired(task) == set()


def test_attack_random_bytes_sealed_for_the_committee(tmp_path: Path) -> None:
    """More members than may collude report the client: it leaves the round and the task, and both go on."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, range(COMMITTEE))
        attacker = clients[-1].client_id
        stale = members[2].view(1)["survivors_digest"]
        for member in members[:2]:
            told = report(member)
        assert retired(task) == {attacker}
        assert (told["state"], told["received"]) == ("confirming", COHORT - 1)
        assert told["survivors_digest"] != stale
        committee_turn(NO_PROCESS, task, members)
        assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT - 1
        task.wait_round(2, "collecting")
        assert cohort(task, 2) == {client.client_id for client in clients[:-1]}


def test_a_client_with_one_bad_share_stays_in_the_sum(tmp_path: Path) -> None:
    """Four members of five open it; the reporter is not waited for, and the keys that it published stay."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, [0])
        told = report(members[0])
        assert (told["state"], told["received"]) == ("confirming", COHORT)
        committee_turn(NO_PROCESS, task, members[1:])
        assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT
        task.wait_round(2, "collecting")
        assert (retired(task), cohort(task, 2)) == (set(), {client.client_id for client in clients})


def test_attack_a_lying_member_beside_a_client_at_fault(tmp_path: Path) -> None:
    """The member that reported fewer clients is believed: the client at fault leaves the set, honest ones stay."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, [0])
        assert members[1].name_bad(1, [client.client_id for client in clients[:2]]).json()["received"] == COHORT
        told = report(members[0])
        assert (told["state"], told["received"], retired(task)) == ("confirming", COHORT - 1, set())
        committee_turn(NO_PROCESS, task, [members[0], *members[2:]])
        assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT - 1
        task.wait_round(2, "collecting")
        assert cohort(task, 2) == {client.client_id for client in clients[:-1]}


def test_attack_reports_after_a_confirmation(tmp_path: Path) -> None:
    """A member signs one set in a round, so the round fails. That does not count: the next cohort is another one."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, [0])
        assert members[2].confirm(1).status_code == 201
        assert members[2].name_bad(1, [clients[0].client_id]).json()["type"] == CONFLICT  # it has confirmed
        assert members[1].name_bad(1, [clients[0].client_id, clients[1].client_id]).status_code == 200
        told = report(members[0])
        assert (told["state"], told["aggregate_digest"]) == ("failed", None)
        assert clients[-1].client_id in told["failure"]
        state = api.http.get(task.path, headers=api.operator).json()["state"]
        assert (state, retired(task)) == ("open", set())
        contribute(task, clients, 2)
        assert cohort(task, 2) == {client.client_id for client in clients[:-1]}
        committee_turn(NO_PROCESS, task, members, 2)
        assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1


def test_attack_an_absent_member_beside_a_client_at_fault(tmp_path: Path) -> None:
    """The next round does not rely on the absent member, so it leaves out whom a member that was there reported."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, [0])
        report(members[0])
        for member in members[2:]:
            assert member.confirm(1).status_code == 201
        pass_deadline(task)
        assert "3 of 5 members of the committee answered" in task.wait_round(1, "failed")["failure"]
        publish_keys(members[1:2], 2)  # only the absent member's keys are gone
        contribute(task, clients, 2, {COHORT - 1: members[:1]})
        assert cohort(task, 2) == {client.client_id for client in clients[:-1]}
        here = [members[0], *members[2:]]
        assert [member.confirm(2).status_code for member in here] == [201] * 4
        pass_deadline(task, 2)
        task.wait_round(2, "unmasking")
        assert [member.unmask(2).status_code for member in here] == [201] * 4
        assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1


def test_a_cohort_of_min_clients_keeps_the_client(tmp_path: Path) -> None:
    """Too few are left: the round fails, and counts, because the next cohort would be the same."""
    with aggregator_inside(tmp_path / "data") as api:
        task, clients, members = begin(api, [0], min_clients=COHORT)
        assert members[1].name_bad(1, [clients[0].client_id, clients[1].client_id]).status_code == 200
        assert report(members[0])["failure"] == "5 of 6 clients contributed in time, but 6 are needed"
        assert api.http.get(task.path, headers=api.operator).json()["state"] == "failed"


def test_who_may_be_reported(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        _task, clients, members = begin(api, ())
        assert members[0].name_bad(1, ["c_00000000000000000000"]).status_code == 422
        assert [members[0].name_bad(1, [clients[0].client_id]).status_code for _ in range(2)] == [200, 200]
