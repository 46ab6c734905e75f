"""One-shot rounds end to end against a real server process: exact sums, absent members, wrong sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from protocols.sums.oneshot.sealing import signed_sum
from tests.support.api import Api, TestTask
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
from tests.support.server import AggregatorProcess, running_aggregator

COHORT, COMMITTEE = 6, 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    data_dir: Path = tmp_path_factory.mktemp("aggregator") / "data"
    with running_aggregator(data_dir, fold_batch=2) as running:
        yield running


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


def assert_sum(task: TestTask, number: int, places: Iterable[int]) -> None:
    """The released sum is that of 2^place over the survivors, within the plan's error; counts are exact."""
    here = list(places)
    assert task.wait_round(number, "complete", "failed")["survivors"] == len(here)
    total = task.opened(number)
    mask = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[mask], np.full(mask.sum(), float(len(here))))
    assert np.allclose(total[~mask], sum(2.0**place for place in here), rtol=0, atol=task.plan.predicted_error)


def test_a_round_with_vanished_clients(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "vanished")
    contribute(clients[:4])
    expire(server, task, 1)
    committee_turn(server, task, members)
    assert_sum(task, 1, range(4))


@pytest.mark.parametrize(("committee", "corrupt", "withstood"), [(5, 1, 2), (5, 2, 2), (7, 3, 4)])
def test_a_task_says_how_many_members_may_collude(api: Api, committee: int, corrupt: int, withstood: int) -> None:
    task = oneshot_task(api, f"bound-{committee}-{corrupt}", 3, committee=committee, corrupt=corrupt)
    (warning,) = [text for text in task.view["warnings"] if "members of the committee collude" in text]
    assert f"at most {withstood} of the {committee} members" in warning
    assert f"or {corrupt} where members are replaced" in warning
    assert f"{withstood + 1} members together with a server that lies" in warning


def test_clients_and_members_see_only_their_own_part(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "views")
    member, client = members[0].view(1), clients[0].view(1)
    assert (member["in_cohort"], member["in_committee"], member["expected"]) == (False, True, False)
    assert (client["in_cohort"], client["in_committee"], client["expected"]) == (True, False, True)
    assert task.round(1)["cohort"] == COHORT
    assert api.http.get(task.path, headers=api.operator).json()["members"] == COHORT
    plan = clients[0].committee(1).context.plan
    assert client["contribution_bytes"] == plan.ticket_bytes + plan.body_bytes
    assert clients[0].get("rounds/1/statements").status_code == 403
    assert members[0].get("rounds/1/statements").status_code == 404  # no set is proposed yet
    refused = members[0].deliver(f"rounds/1/contributions/{members[0].client_id}", b"x" * client["contribution_bytes"])
    assert refused.json()["type"] == "urn:hushrec:problem:not-in-cohort"
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


@pytest.mark.parametrize("stage", ["confirm", "unmask"])
def test_one_member_of_five_may_be_gone(server: AggregatorProcess, api: Api, stage: str) -> None:
    task, clients, members = begin(api, f"one-gone-{stage}")
    contribute(clients)
    committee_turn(server, task, members, absent={stage: members[2:3]})
    assert_sum(task, 1, range(COHORT))


@pytest.mark.parametrize("stage", ["confirm", "unmask"])
def test_two_gone_members_stop_the_task_until_they_are_back(server: AggregatorProcess, api: Api, stage: str) -> None:
    task, clients, members = begin(api, f"two-gone-{stage}", max_failed_rounds=1)
    contribute(clients)
    committee_turn(server, task, members, absent={stage: members[:2]})
    failed = task.wait_round(1, "failed")
    assert "3 of 5 members of the committee answered in time, but 4 are needed" in failed["failure"]
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)
    view = api.http.get(task.path, headers=api.operator).json()
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
    assert_sum(task, 2, range(COHORT))


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
    assert_sum(task, 1, range(COHORT))
    assert "the summed share of a member of the committee is wrong" in server.log()


def test_uploads_that_are_refused(server: AggregatorProcess, api: Api) -> None:
    task, clients, members = begin(api, "refused")
    upload = clients[0].make(1)
    strange = clients[1].make(1).encode()
    assert clients[0].send(1, strange).json()["type"] == "urn:hushrec:problem:bad-contribution"
    changed = upload.encode()[:-1] + bytes([upload.encode()[-1] ^ 1])
    assert clients[0].send(1, changed).json()["type"] == "urn:hushrec:problem:bad-contribution"
    assert clients[0].send(1, upload.contribution).json()["type"] == "urn:hushrec:problem:body-too-short"
    body = upload.encode()
    assert [clients[0].send(1, body).status_code for _ in range(2)] == [201, 200]
    again = clients[0].take(1)
    assert (again.status_code, again.json()["type"]) == (409, "urn:hushrec:problem:contribution-conflict")
    late = clients[5].make(1).encode()
    contribute(clients[1:5])
    expire(server, task, 1)
    task.wait_round(1, "confirming")
    answer = clients[5].send(1, late)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:hushrec:problem:round-closed")


def test_keys_of_the_committee(server: AggregatorProcess, api: Api) -> None:
    """A round waits for them; a spare member takes the place of a revoked one."""
    task = oneshot_task(api, "keys", COHORT, rounds=2)
    members, clients = enrol_committee(task, COMMITTEE + 1), enrol_clients(task, COHORT)
    publish_keys(members[:4], 1, 2)

    def waiting() -> str | None:
        return str(api.http.get(task.path, headers=api.operator).json()["waiting_for"])

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
    assert_sum(task, 1, range(COHORT))
    assert members[1].publish(1).status_code == 200
    assert members[1].publish(9).status_code == 201


def test_only_tasks_with_one_shot_sums_have_a_committee(server: AggregatorProcess, api: Api) -> None:
    task = api.create_task("no-committee")
    assert api.http.get(f"{task.path}/committee", headers=api.operator).status_code == 404
    body = {"uses": 1, "role": "committee", "expires_seconds": 600}
    answer = api.http.post(f"{task.path}/invitations", json=body, headers=api.operator)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:hushrec:problem:invalid-parameters")
