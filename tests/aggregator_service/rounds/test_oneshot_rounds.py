"""One-shot rounds end to end: exact sums, absent members, wrong sums, and members that report sealed shares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

from protocols.codec import b64decode
from protocols.crypto.keys import person_of
from protocols.messages.receipts import RoundReceipt
from protocols.sums.oneshot.committee import signed_sum, split_keys
from tests.support.api import Api, TestTask, checked, refusal, slug
from tests.support.oneshot import (
    OneshotClient,
    OneshotMember,
    Parties,
    begin_oneshot,
    committee_turn,
    enrol_clients,
    enrol_committee,
    oneshot_task,
    publish_keys,
)
from tests.support.replicas import wait_until

COHORT, COMMITTEE = 6, 5
SERVER = {"fold_batch": 2}
EVERYBODY = [2.0**place for place in range(COHORT)]


def begin(api: Api, name: str, **changes: object) -> Parties:
    return begin_oneshot(api, name, COHORT, COMMITTEE, 1, **changes)


def contribute(clients: Sequence[OneshotClient], number: int = 1, garbage_for: Collection[OneshotMember] = ()) -> None:
    """The clients of the cohort send their upload, the last of `clients` with garbage for these members."""
    asked = clients[0].task.cohort(number)
    for place, client in enumerate(clients):
        if client.client_id in asked:
            upload, committee = client.make(number, 2.0**place), client.committee(number)
            places = [committee.place(one.client_id) for one in garbage_for if client is clients[-1]]
            sealed = {place: bytes(len(upload.ticket.sealed[place])) for place in places}
            checked(client.send(number, client.resigned(number, upload, sealed=sealed).encode()), 201)


def test_a_round_with_vanished_clients_and_an_absent_member(api: Api) -> None:
    task, clients, members = begin(api, "vanished")
    (warning,) = [text for text in task.view["warnings"] if "members of the committee collude" in text]
    assert "at most 2 of the 5 members" in warning and "or 1 where members are replaced" in warning
    assert "3 members together with a server that lies" in warning
    contribute(clients[:4])
    task.expire(1)
    committee_turn(task, members, absent={"confirm": members[2:3]})
    task.assert_sum(1, EVERYBODY[:4])


def test_clients_and_members_see_only_their_own_part_and_uploads_are_refused(api: Api) -> None:
    task, clients, members = begin(api, "views")

    def seen(one: OneshotClient | OneshotMember, *names: str) -> tuple[Any, ...]:
        view = one.view(1)
        return tuple(view[name] for name in names)

    def shown(*some: OneshotClient | OneshotMember) -> list[bool]:
        """Who of these sees the committee's keys; by both ways to ask for the round it is the same."""
        found = [["committee_keys" in one.get(f"rounds/{of}").json() for one in some] for of in (1, "current")]
        assert found[0] == found[1]
        return found[0]

    asked = "in_cohort", "in_committee", "expected"
    assert (seen(members[0], *asked), seen(clients[0], *asked)) == ((False, True, False), (True, False, True))
    assert (task.round(1)["cohort"], task.now()["members"]) == (COHORT, COHORT)
    keys = split_keys(b64decode(clients[0].view(1)["committee_keys"]))
    assert [key.encode() for key in keys] == [one.keys[1] for one in sorted(members, key=lambda one: one.client_id)]
    plan = clients[0].committee(1).context.plan
    length = plan.ticket_bytes + plan.body_bytes
    assert seen(clients[0], "contribution_bytes") == (length,)
    assert clients[0].get("rounds/1/statements").status_code == 403
    assert members[0].get("rounds/1/statements").status_code == 404  # no set is proposed yet
    refused = members[0].deliver(f"rounds/1/contributions/{members[0].client_id}", b"x" * length)
    assert slug(refused) == "not-in-cohort"
    upload, strange, late = (clients[place].make(1) for place in (0, 1, 5))
    body = upload.encode()
    changed = body[:-1] + bytes([body[-1] ^ 1])
    for sent, why in (
        (strange.encode(), "bad-contribution"),
        (changed, "bad-contribution"),
        (upload.contribution, "body-too-short"),
    ):
        assert slug(clients[0].send(1, sent)) == why
    assert [clients[0].send(1, body).status_code for _ in range(2)] == [201, 200]
    assert refusal(clients[0].take(1)) == (409, "contribution-conflict")
    assert shown(*clients[:2], members[0]) == [False, True, False]
    contribute(clients[1:5])
    task.expire(1)
    task.wait_round(1, "confirming")
    assert refusal(clients[5].send(1, late.encode())) == (409, "round-closed")
    assert seen(clients[0], "expected") == (False,)
    assert shown(clients[5], members[0]) == [False, True] and "committee_keys" not in task.round(1)
    assert seen(members[0], "expected", "delivered", "answered") == (True, False, 0)
    assert members[1].get(f"rounds/1/shares/{members[0].client_id}").status_code == 403
    assert members[0].confirm(1).status_code == 201
    assert seen(members[0], "delivered", "answered", "committee") == (True, 1, COMMITTEE)
    polled = members[0].get("rounds/current").json()
    assert (polled["delivered"], polled["answered"], polled["in_committee"]) == (True, 1, True)
    assert members[1].get("rounds/current").json()["delivered"] is False
    assert shown(*members[:2]) == [False, True]


def test_two_gone_members_stop_the_task_until_they_are_back(api: Api) -> None:
    task, clients, members = begin(api, "two-gone", max_failed_rounds=1)
    publish_keys(members, 2)
    contribute(clients)
    committee_turn(task, members, absent={"unmask": members[:2]})
    failed = task.wait_round(1, "failed")
    assert "3 of 5 members of the committee answered in time, but 4 are needed" in failed["failure"]
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)
    view = task.now()
    assert view["state"] == "open"
    assert view["waiting_for"] == "the committee: 3 of 5 members have published keys for round 2"
    shown = task.found("committee")
    assert (shown["needed"], shown["threshold"], shown["next_round"]) == (5, 4, 2)
    assert [2 in member["keys"] for member in shown["members"]] == [False, False, True, True, True]
    assert api.http.get(f"{task.path}/rounds/2", headers=api.operator).status_code == 404
    publish_keys(members[:2], 2)  # they are back
    task.wait_round(2, "collecting")
    contribute(clients, 2)
    committee_turn(task, members, 2)
    task.assert_sum(2, EVERYBODY)


def test_a_contribution_that_does_not_match_its_secret(api: Api) -> None:
    """Nobody can see it before the sum: nothing is released."""
    task, clients, members = begin(api, "mismatch")
    contribute(clients[:-1])
    upload, other = (clients[-1].make(1) for _ in range(2))
    mixed = clients[-1].resigned(1, upload, contribution=other.contribution)
    assert clients[-1].send(1, mixed.encode()).status_code == 201
    committee_turn(task, members)
    failed = task.wait_round(1, "failed", "complete")
    assert failed["failure"].startswith("nothing is released, because what comes out is no sum of honest contributions")
    assert "the masks do not come off" in failed["failure"]
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)


def test_a_wrong_summed_share_of_one_member_is_named_and_left_out(api: Api, caplog: pytest.LogCaptureFixture) -> None:
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

    committee_turn(task, members, summed=summed)
    task.assert_sum(1, EVERYBODY)
    said = "the summed share of a member of the committee is wrong"
    wait_until(lambda: said in caplog.text, "the log names the member")  # it follows the commit


def test_keys_of_the_committee(api: Api) -> None:
    """A round waits for them; a spare member takes the place of a revoked one."""
    task = oneshot_task(api, "keys", COHORT, rounds=2)
    members, clients = enrol_committee(task, COMMITTEE + 1), enrol_clients(task, COHORT)
    publish_keys(members[:4], 1, 2)
    assert task.now()["waiting_for"] == "the committee: 4 of 5 members have published keys for round 1"
    member = members[4]
    assert member.publish(9).status_code == 409  # one of the next eight
    assert member.publish(1, member.key(2)).status_code == 400  # signed for another round
    assert member.publish(1, members[0].key(1)).status_code == 400  # another member's
    assert member.publish(1, member.key(1)[:-1]).status_code == 400
    assert clients[0].deliver(f"committee/{clients[0].client_id}/keys/1", member.key(1)).status_code == 403
    assert members[0].publish(1).status_code == 200
    task.revoke(members[0])
    assert task.now()["waiting_for"] == "the committee: 3 of 5 members have published keys for round 1"
    publish_keys(members[4:], 1)
    task.wait_round(1, "collecting")
    assert [view["in_round"] for view in task.found("committee")["members"]]
    contribute(clients)
    committee_turn(task, members[1:])
    task.assert_sum(1, EVERYBODY)
    assert [members[1].publish(number).status_code for number in (1, 9)] == [200, 201]
    plain = api.create_task("no-committee")
    assert api.http.get(f"{plain.path}/committee", headers=api.operator).status_code == 404
    invited = plain.post("invitations", {"uses": 1, "role": "committee", "expires_seconds": 600})
    assert refusal(invited) == (422, "invalid-parameters")


def begin_reports(api: Api, name: str, garbage_for: Sequence[int], **changes: Any) -> Parties:
    """A task that no failed round may hit, whose committee is asked to confirm the first round's six clients.

    The last client has sealed random bytes for the members at the places `garbage_for`.
    """
    task = oneshot_task(api, name, COHORT, max_failed_rounds=1, rounds=2, **changes)
    members = enrol_committee(task, COMMITTEE)
    publish_keys(members, 1, 2)
    clients = enrol_clients(task, COHORT)
    task.wait_round(1, "collecting")
    contribute(clients, 1, [members[place] for place in garbage_for])
    task.wait_round(1, "confirming")
    return task, clients, members


def report(member: OneshotMember, number: int = 1) -> dict[str, Any]:
    """Report what does not open for an honest member; return the round as it then is."""
    found = member.inspect(number)
    assert found.bad
    return told(member, found.bad, number)


def told(member: OneshotMember, named: Collection[str], number: int = 1) -> dict[str, Any]:
    """Report these clients; return the round as it then is."""
    return dict(checked(member.name_bad(number, named)).json())


def ids(clients: Iterable[OneshotClient]) -> set[str]:
    return {client.client_id for client in clients}


def assert_goes_on_without_the_last(task: TestTask, clients: list[OneshotClient]) -> None:
    """The round completes without the last client, and the next one does not ask it."""
    assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT - 1
    task.wait_round(2, "collecting")
    assert task.cohort(2) == ids(clients[:-1])


def test_attack_a_member_of_the_committee_reports_good_shares(api: Api) -> None:
    """Its word alone changes nothing: the others can open the sum, and no client leaves."""
    task, clients, members = begin_reports(api, "good-shares", ())
    proposed = members[0].view(1)["survivors_digest"]
    assert members[0].name_bad(1, ["c_00000000000000000000"]).status_code == 422
    for _ in range(2):
        after = told(members[0], ids(clients[:5]))
    assert (after["state"], after["received"], after["survivors_digest"]) == ("confirming", COHORT, proposed)
    committee_turn(task, members[1:])  # nobody waits for the liar
    assert task.wait_round(1, "complete", "failed")["survivors"] == COHORT
    assert task.retired() == set()


def test_attack_random_bytes_sealed_for_the_committee(api: Api) -> None:
    """More members than may collude report the client: it leaves the round and the task, and both go on."""
    task, clients, members = begin_reports(api, "garbage", range(COMMITTEE))
    stale = members[2].view(1)["survivors_digest"]
    for member in members[:2]:
        after = report(member)
    assert task.retired() == ids(clients[-1:])
    assert (after["state"], after["received"]) == ("confirming", COHORT - 1)
    assert after["survivors_digest"] != stale
    committee_turn(task, members)
    assert_goes_on_without_the_last(task, clients)


def test_a_client_that_was_taken_out_can_show_it(api: Api) -> None:
    """The server acknowledged its upload, and signs a set without it: here because its shares do not open."""
    task, clients, members = begin_reports(api, "receipts", range(COMMITTEE))
    assert refusal(clients[0].get("rounds/1/receipt")) == (409, "conflict")
    for member in members[:2]:
        report(member)
    committee_turn(task, members)
    assert_goes_on_without_the_last(task, clients)
    assert refusal(members[0].get("rounds/1/receipt"))[0] in (403, 404)
    found = [RoundReceipt.model_validate(client.found("rounds/1/receipt").json()) for client in clients]
    leaves = [person_of(client.identity.public_key().public_bytes_raw()).hex() for client in clients]
    assert {said.release.survivors for said in found} == {COHORT - 1}
    for said, leaf in zip(found[:-1], leaves, strict=False):
        assert [place.leaf for place in said.places] == [leaf]
    assert leaves[-1] not in [place.leaf for place in found[-1].places]
    assert found[-1].places, "its neighbours"


def test_attack_a_lying_member_beside_a_client_at_fault(api: Api) -> None:
    """The member that reported fewer clients is believed: the client at fault leaves the set, honest ones stay."""
    task, clients, members = begin_reports(api, "liar", [0])
    assert told(members[1], ids(clients[:2]))["received"] == COHORT
    after = report(members[0])
    assert (after["state"], after["received"], task.retired()) == ("confirming", COHORT - 1, set())
    committee_turn(task, [members[0], *members[2:]])
    assert_goes_on_without_the_last(task, clients)


def test_attack_reports_after_a_confirmation(api: Api) -> None:
    """A member signs one set in a round, so the round fails. That does not count: the next cohort is another one."""
    task, clients, members = begin_reports(api, "confirmed", [0])
    assert members[2].confirm(1).status_code == 201
    assert slug(members[2].name_bad(1, ids(clients[:1]))) == "conflict"  # it has confirmed
    told(members[1], ids(clients[:2]))
    after = report(members[0])
    assert (after["state"], after["aggregate_digest"]) == ("failed", None)
    assert clients[-1].client_id in after["failure"]
    assert (task.now()["state"], task.retired()) == ("open", set())
    task.wait_round(2, "collecting")
    contribute(clients, 2)
    assert task.cohort(2) == ids(clients[:-1])
    committee_turn(task, members, 2)
    assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1


def test_attack_an_absent_member_beside_a_client_at_fault(api: Api) -> None:
    """The next round does not rely on the absent member, so it leaves out whom a member that was there reported."""
    task, clients, members = begin_reports(api, "absent", [0])
    report(members[0])
    committee_turn(task, members, absent={"confirm": members[:2]})
    assert "3 of 5 members of the committee answered" in task.wait_round(1, "failed")["failure"]
    publish_keys(members[1:2], 2)  # only the absent member's keys are gone
    task.wait_round(2, "collecting")
    contribute(clients, 2, members[:1])
    assert task.cohort(2) == ids(clients[:-1])
    committee_turn(task, members, 2, absent={"confirm": members[1:2], "unmask": members[1:2]})
    assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1


def test_a_cohort_of_min_clients_keeps_the_client(api: Api) -> None:
    """Too few are left: the round fails, and counts, because the next cohort would be the same."""
    task, clients, members = begin_reports(api, "floor", [0], min_clients=COHORT)
    told(members[1], ids(clients[:2]))
    assert report(members[0])["failure"] == "5 of 6 clients contributed in time, but 6 are needed"
    assert task.now()["state"] == "failed"
