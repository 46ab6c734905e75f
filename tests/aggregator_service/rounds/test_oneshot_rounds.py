"""One-shot rounds end to end: exact sums, absent members, wrong sums, and members that report sealed shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from sqlalchemy import update

from aggregator_service.storage.schema import RoundRow
from protocols.sums.oneshot.committee import signed_sum
from tests.support.api import Api, TestTask, slug
from tests.support.inside import retired, services
from tests.support.oneshot import (
    OneshotClient,
    OneshotMember,
    committee_turn,
    enrol_clients,
    enrol_committee,
    expire,
    oneshot_task,
    publish_keys,
)
from tests.support.server import AggregatorProcess

COHORT, COMMITTEE = 6, 5


SERVER = {"fold_batch": 2}


def begin(
    api: Api, name: str, cohort: int = COHORT, **changes: object
) -> tuple[TestTask, list[OneshotClient], list[OneshotMember]]:
    """A task whose first round collects."""
    task = oneshot_task(api, name, cohort, **changes)
    members = enrol_committee(task, COMMITTEE)
    publish_keys(members, 1, 2)
    clients = enrol_clients(task, cohort)
    task.wait_round(1, "collecting")
    return task, clients, members


def contribute(clients: Iterable[OneshotClient], number: int = 1) -> None:
    for place, client in enumerate(clients):
        answer = client.take(number, 2.0**place)
        assert answer.status_code == 201, answer.text


def test_a_round_with_vanished_clients_and_an_absent_member(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "vanished")
    (warning,) = [text for text in task.view["warnings"] if "members of the committee collude" in text]
    assert "at most 2 of the 5 members" in warning and "or 1 where members are replaced" in warning
    assert "3 members together with a server that lies" in warning
    contribute(clients[:4])
    expire(server, task, 1)
    committee_turn(server, task, members, absent={"confirm": members[2:3]})
    task.assert_sum(1, (2.0**place for place in range(4)))


def test_clients_and_members_see_only_their_own_part(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "views")
    member, client = members[0].view(1), clients[0].view(1)
    assert (member["in_cohort"], member["in_committee"], member["expected"]) == (False, True, False)
    assert (client["in_cohort"], client["in_committee"], client["expected"]) == (True, False, True)
    assert task.round(1)["cohort"] == COHORT
    assert task.now()["members"] == COHORT
    plan = clients[0].committee(1).context.plan
    assert client["contribution_bytes"] == plan.ticket_bytes + plan.body_bytes
    assert clients[0].get("rounds/1/statements").status_code == 403
    assert members[0].get("rounds/1/statements").status_code == 404  # no set is proposed yet
    refused = members[0].deliver(f"rounds/1/contributions/{members[0].client_id}", b"x" * client["contribution_bytes"])
    assert slug(refused) == "not-in-cohort"
    contribute(clients)
    task.wait_round(1, "confirming")
    assert clients[0].view(1)["expected"] is False
    proposed = members[0].view(1)
    assert (proposed["expected"], proposed["delivered"], proposed["answered"]) == (True, False, 0)
    assert members[1].get(f"rounds/1/shares/{members[0].client_id}").status_code == 403
    assert members[0].confirm(1).status_code == 201
    after = members[0].view(1)
    assert (after["delivered"], after["answered"], after["committee"]) == (True, 1, COMMITTEE)
    polled = members[0].get("rounds/current").json()
    assert (polled["delivered"], polled["answered"], polled["in_committee"]) == (True, 1, True)
    assert members[1].get("rounds/current").json()["delivered"] is False


def test_two_gone_members_stop_the_task_until_they_are_back(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "two-gone", max_failed_rounds=1)
    contribute(clients)
    committee_turn(server, task, members, absent={"unmask": members[:2]})
    failed = task.wait_round(1, "failed")
    assert "3 of 5 members of the committee answered in time, but 4 are needed" in failed["failure"]
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)
    view = task.now()
    assert view["state"] == "open"
    assert view["waiting_for"] == "the committee: 3 of 5 members have published keys for round 2"
    shown = api.http.get(f"{task.path}/committee", headers=api.operator).json()
    assert (shown["needed"], shown["threshold"], shown["next_round"]) == (5, 4, 2)
    assert [2 in member["keys"] for member in shown["members"]] == [False, False, True, True, True]
    assert api.http.get(f"{task.path}/rounds/2", headers=api.operator).status_code == 404
    publish_keys(members[:2], 2)  # they are back
    task.wait_round(2, "collecting")
    contribute(clients, 2)
    committee_turn(server, task, members, 2)
    task.assert_sum(2, (2.0**place for place in range(COHORT)))


def test_a_contribution_that_does_not_match_its_secret(server: AggregatorProcess, api: Api) -> None:
    """Nobody can see it before the sum: nothing is released."""
    task, clients, members = begin(api, "mismatch")
    contribute(clients[:-1])
    upload = clients[-1].make(1)
    other = clients[-1].make(1).contribution
    assert clients[-1].send(1, clients[-1].resigned(1, upload, contribution=other).encode()).status_code == 201
    committee_turn(server, task, members)
    failed = task.wait_round(1, "failed", "complete")
    assert failed["failure"].startswith("the masks do not come off the sum, so nothing is released")
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)


def test_a_wrong_summed_share_of_one_member_is_named_and_left_out(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "wrong-sum")
    contribute(clients)

    def summed(member: OneshotMember) -> bytes:
        body = member.summed_share(1)
        if member is not members[3]:
            return body
        committee = member.committee(1)
        share = bytes(committee.context.plan.share_bytes)
        signed = signed_sum(committee, member.confirmed[1].inspection.digest, member.client_id, share)
        return share + member.identity.sign(signed)

    committee_turn(server, task, members, summed=summed)
    task.assert_sum(1, (2.0**place for place in range(COHORT)))
    assert "the summed share of a member of the committee is wrong" in server.log()


def test_uploads_that_are_refused(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "refused")
    upload = clients[0].make(1)
    strange = clients[1].make(1).encode()
    assert slug(clients[0].send(1, strange)) == "bad-contribution"
    changed = upload.encode()[:-1] + bytes([upload.encode()[-1] ^ 1])
    assert slug(clients[0].send(1, changed)) == "bad-contribution"
    assert slug(clients[0].send(1, upload.contribution)) == "body-too-short"
    body = upload.encode()
    assert [clients[0].send(1, body).status_code for _ in range(2)] == [201, 200]
    again = clients[0].take(1)
    assert (again.status_code, slug(again)) == (409, "contribution-conflict")
    late = clients[5].make(1).encode()
    contribute(clients[1:5])
    expire(server, task, 1)
    task.wait_round(1, "confirming")
    answer = clients[5].send(1, late)
    assert (answer.status_code, slug(answer)) == (409, "round-closed")


def test_keys_of_the_committee(server: AggregatorProcess, api: Api) -> None:
    """A round waits for them; a spare member takes the place of a revoked one."""
    task = oneshot_task(api, "keys", COHORT, rounds=2)
    members, clients = enrol_committee(task, COMMITTEE + 1), enrol_clients(task, COHORT)
    publish_keys(members[:4], 1, 2)

    def waiting() -> str | None:
        return str(task.now()["waiting_for"])

    assert waiting() == "the committee: 4 of 5 members have published keys for round 1"
    member = members[4]
    assert member.publish(9).status_code == 409  # one of the next eight
    assert member.publish(1, member.key(2)).status_code == 400  # signed for another round
    assert member.publish(1, members[0].key(1)).status_code == 400  # another member's
    assert member.publish(1, member.key(1)[:-1]).status_code == 400
    assert clients[0].deliver(f"committee/{clients[0].client_id}/keys/1", member.key(1)).status_code == 403
    assert members[0].publish(1).status_code == 200
    assert api.http.delete(f"{task.path}/members/{members[0].client_id}", headers=api.operator).status_code == 200
    assert waiting() == "the committee: 3 of 5 members have published keys for round 1"
    publish_keys(members[4:], 1)
    task.wait_round(1, "collecting")
    assert [view["in_round"] for view in api.http.get(f"{task.path}/committee", headers=api.operator).json()["members"]]
    contribute(clients)
    committee_turn(server, task, members[1:])
    task.assert_sum(1, (2.0**place for place in range(COHORT)))
    assert members[1].publish(1).status_code == 200
    assert members[1].publish(9).status_code == 201
    plain = api.create_task("no-committee")
    assert api.http.get(f"{plain.path}/committee", headers=api.operator).status_code == 404
    body = {"uses": 1, "role": "committee", "expires_seconds": 600}
    answer = api.http.post(f"{plain.path}/invitations", json=body, headers=api.operator)
    assert (answer.status_code, slug(answer)) == (422, "invalid-parameters")


NO_PROCESS = cast("Any", None)


def begin_reports(
    api: Api, garbage_for: Sequence[int], **changes: Any
) -> tuple[TestTask, list[OneshotClient], list[OneshotMember]]:
    """A task that no failed round may hit, whose committee is asked to confirm the first round's six clients.

    The last client has sealed random bytes for the members at the places `garbage_for`.
    """
    task = oneshot_task(api, "reports", COHORT, max_failed_rounds=1, rounds=2, **changes)
    members = enrol_committee(task, COMMITTEE)
    publish_keys(members, 1, 2, 3)
    clients = enrol_clients(task, COHORT)
    contribute_all(task, clients, 1, {COHORT - 1: [members[place] for place in garbage_for]})
    return task, clients, members


def contribute_all(
    task: TestTask, clients: list[OneshotClient], number: int, garbage: dict[int, list[OneshotMember]] | None = None
) -> None:
    """All clients of the cohort send their upload."""
    task.wait_round(number, "collecting")
    asked = task.cohort(number)
    for index, client in enumerate(clients):
        if client.client_id not in asked:
            continue
        upload, committee = client.make(number), client.committee(number)
        places = [committee.place(one.client_id) for one in (garbage or {}).get(index, ())]
        sealed = {place: bytes(len(upload.ticket.sealed[place])) for place in places}
        assert client.send(number, client.resigned(number, upload, sealed=sealed).encode()).status_code == 201
    task.wait_round(number, "confirming")


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


def test_attack_a_member_of_the_committee_reports_good_shares(inside: Api) -> None:
    """Its word alone changes nothing: the others can open the sum, and no client leaves."""
    task, clients, members = begin_reports(inside, ())
    victims = [client.client_id for client in clients[:5]]
    proposed = members[0].view(1)["survivors_digest"]
    assert members[0].name_bad(1, ["c_00000000000000000000"]).status_code == 422
    assert members[0].name_bad(1, victims).status_code == 200
    told = members[0].name_bad(1, victims).json()
    assert (told["state"], told["received"], told["survivors_digest"]) == ("confirming", COHORT, proposed)
    committee_turn(NO_PROCESS, task, members[1:])  # nobody waits for the liar
    assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT
    assert retired(task) == set()


def test_attack_random_bytes_sealed_for_the_committee(inside: Api) -> None:
    """More members than may collude report the client: it leaves the round and the task, and both go on."""
    task, clients, members = begin_reports(inside, range(COMMITTEE))
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
    assert task.cohort(2) == {client.client_id for client in clients[:-1]}


def test_attack_a_lying_member_beside_a_client_at_fault(inside: Api) -> None:
    """The member that reported fewer clients is believed: the client at fault leaves the set, honest ones stay."""
    task, clients, members = begin_reports(inside, [0])
    assert members[1].name_bad(1, [client.client_id for client in clients[:2]]).json()["received"] == COHORT
    told = report(members[0])
    assert (told["state"], told["received"], retired(task)) == ("confirming", COHORT - 1, set())
    committee_turn(NO_PROCESS, task, [members[0], *members[2:]])
    assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT - 1
    task.wait_round(2, "collecting")
    assert task.cohort(2) == {client.client_id for client in clients[:-1]}


def test_attack_reports_after_a_confirmation(inside: Api) -> None:
    """A member signs one set in a round, so the round fails. That does not count: the next cohort is another one."""
    task, clients, members = begin_reports(inside, [0])
    assert members[2].confirm(1).status_code == 201
    assert slug(members[2].name_bad(1, [clients[0].client_id])) == "conflict"  # it has confirmed
    assert members[1].name_bad(1, [clients[0].client_id, clients[1].client_id]).status_code == 200
    told = report(members[0])
    assert (told["state"], told["aggregate_digest"]) == ("failed", None)
    assert clients[-1].client_id in told["failure"]
    assert (task.now()["state"], retired(task)) == ("open", set())
    contribute_all(task, clients, 2)
    assert task.cohort(2) == {client.client_id for client in clients[:-1]}
    committee_turn(NO_PROCESS, task, members, 2)
    assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1


def test_attack_an_absent_member_beside_a_client_at_fault(inside: Api) -> None:
    """The next round does not rely on the absent member, so it leaves out whom a member that was there reported."""
    task, clients, members = begin_reports(inside, [0])
    report(members[0])
    for member in members[2:]:
        assert member.confirm(1).status_code == 201
    pass_deadline(task)
    assert "3 of 5 members of the committee answered" in task.wait_round(1, "failed")["failure"]
    publish_keys(members[1:2], 2)  # only the absent member's keys are gone
    contribute_all(task, clients, 2, {COHORT - 1: members[:1]})
    assert task.cohort(2) == {client.client_id for client in clients[:-1]}
    here = [members[0], *members[2:]]
    assert [member.confirm(2).status_code for member in here] == [201] * 4
    pass_deadline(task, 2)
    task.wait_round(2, "unmasking")
    assert [member.unmask(2).status_code for member in here] == [201] * 4
    assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1


def test_a_cohort_of_min_clients_keeps_the_client(inside: Api) -> None:
    """Too few are left: the round fails, and counts, because the next cohort would be the same."""
    task, clients, members = begin_reports(inside, [0], min_clients=COHORT)
    assert members[1].name_bad(1, [clients[0].client_id, clients[1].client_id]).status_code == 200
    assert report(members[0])["failure"] == "5 of 6 clients contributed in time, but 6 are needed"
    assert task.now()["state"] == "failed"
