"""Memberships: invitations expire and have a limited number of uses, operators revoke members; a member's ledger."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.tasks.joining import enrol
from protocols.crypto.sealing import SealingKey
from protocols.messages import EnrolmentRequest
from tests.support.api import (
    Api,
    TestMember,
    TestTask,
    aggregator_inside,
    contribute,
    detail,
    refusal,
    services,
    signed_enrolment,
)
from tests.support.clock import ManualClock
from tests.support.replicas import TestDatabase


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", clock=clock) as inside:
        yield inside


def new_keys() -> tuple[Ed25519PrivateKey, SealingKey]:
    return Ed25519PrivateKey.generate(), SealingKey.generate()


def test_an_invitation_counts_its_uses_and_expires(api: Api, clock: ManualClock) -> None:
    """And shows its task without a use, also to who has used it and may enrol again."""
    task, keys = api.create_task(), new_keys()
    invitation = api.invite(task.id, uses=2, expires_seconds=60)

    def preview(token: str = invitation) -> httpx.Response:
        return api.http.get("/v1/enrolments/task", headers={"Authorization": f"Bearer {token}"})

    assert [api.enrol(invitation, *keys, renewal=renewal).status_code for renewal in range(3)] == [201, 200, 200]
    assert [api.enrol(invitation).status_code for _ in range(2)] == [201, 410]  # enrolling again takes no use
    assert preview().json()["task_id"] == task.id
    assert [preview("hri_" + "0" * 40).status_code, preview("hro_" + "0" * 40).status_code] == [403, 422]
    assert refusal(api.enrol("hri_made-up")) == (403, "forbidden")
    assert refusal(api.enrol(invitation, keys[0], renewal=3)) == (409, "conflict")  # with another mailbox
    assert refusal(api.enrol(invitation, mailbox=keys[1])) == (410, "gone")
    other = api.invite(task.id, uses=5, expires_seconds=60)
    clock.advance(59.0)
    assert api.enrol(other).status_code == 201
    clock.advance(1.0)
    assert (api.enrol(other).status_code, preview().status_code) == (410, 410)


def test_a_revoked_member_cannot_return_and_what_it_has_contributed_stays(api: Api) -> None:
    task, keys = api.create_task(cohort=3, rounds=2, min_clients=2, collect_seconds=60), new_keys()
    invitation = api.invite(task.id, uses=9)
    known = api.enrol(invitation, *keys).json()
    revoked, others = TestMember(task, known["client_id"], known["token"]), task.begin(2)
    contribute([revoked], 1, 2.0)
    by_mistake = f"{api.create_task('other').path}/members/{revoked.client_id}"
    assert api.http.delete(by_mistake, headers=api.operator).status_code == 404
    assert [task.revoke(revoked)["revoked"] for _ in range(2)] == [True, True]
    assert revoked.put(1, revoked.contribution(1, 2.0)).status_code == 401
    assert "revoked" in detail(api.enrol(invitation, *keys), 403)
    assert [one["revoked"] for one in task.found("members")["members"]] == [True, False, False]
    assert (task.now()["members"], task.now()["able_members"]) == (2, [2])
    contribute(others, 1, 2.0)
    assert task.wait_round(1, "complete")["survivors"] == 3
    task.wait_round(2, "collecting")
    assert task.cohort(2) == {member.client_id for member in others}


def take_back(task: TestTask, invitation_id: str) -> httpx.Response:
    return task.api.http.delete(f"{task.path}/invitations/{invitation_id}", headers=task.api.operator)


def test_listed_invitations_do_not_show_their_tokens_and_have_pages(api: Api, clock: ManualClock) -> None:
    task = api.create_task()
    shown = [api.invite(task.id, uses=uses, expires_seconds=60.0 * uses) for uses in (1, 2, 3)]  # at one moment
    api.invite(api.create_task("other").id)
    assert [api.enrol(invitation).status_code for invitation in (shown[0], shown[2])] == [201, 201]
    clock.advance(130.0)
    shown.append(api.invite(task.id, uses=4))
    listed = task.found("invitations")["invitations"]
    assert not any(invitation in str(listed) for invitation in shown)
    by_uses = {entry["uses"]: entry for entry in listed}
    states = {uses: (entry["state"], entry["used"]) for uses, entry in by_uses.items()}
    assert states == {1: ("used up", 1), 2: ("expired", 0), 3: ("open", 1), 4: ("open", 0)}
    assert (by_uses[3]["age_seconds"], by_uses[3]["expires_seconds"]) == (130.0, 50.0)
    fields = {"invitation_id", "role", "state", "uses", "used", "age_seconds", "expires_seconds"}
    assert all(set(entry) == fields for entry in listed)
    first = task.found("invitations", limit=2)
    second = task.found("invitations", limit=2, after=first["next"])
    assert first["invitations"] + second["invitations"] == listed
    unknown = api.http.get(f"{task.path}/invitations", params={"after": "i_0123"}, headers=api.operator)
    assert (second["next"], unknown.status_code) == (None, 404)


def test_a_revoked_invitation_enrols_nobody(api: Api) -> None:
    task, other, keys = api.create_task(), api.create_task("other"), new_keys()
    invitation = api.invite(task.id, uses=5)
    assert api.enrol(invitation, *keys).status_code == 201
    (entry,) = task.found("invitations")["invitations"]
    assert take_back(other, entry["invitation_id"]).status_code == 404
    assert take_back(task, "i_nobody").status_code == 404
    for _ in range(2):  # a second call changes nothing
        answer = take_back(task, entry["invitation_id"])
        assert (answer.status_code, answer.json()["state"], answer.json()["used"]) == (200, "revoked", 1)
    refused = api.enrol(invitation)
    assert refusal(refused) == (410, "gone")
    assert "revoked" in refused.json()["detail"]
    again = api.enrol(invitation, *keys, renewal=1)  # the member that enrolled with it remains one
    assert again.status_code == 200
    assert api.http.get(task.path, headers={"Authorization": f"Bearer {again.json()['token']}"}).status_code == 200


CROWD, PLACES = 12, 4


def test_simultaneous_enrolments_do_not_exceed_the_uses(tmp_path: Path, postgres: TestDatabase) -> None:
    with aggregator_inside(tmp_path / "data", database_url=postgres.schema()) as api:
        task = api.create_task()
        counted, revoked = api.invite(task.id, uses=PLACES), api.invite(task.id, uses=CROWD)
        _, entry = task.found("invitations")["invitations"]

        def enrol(index: int) -> tuple[str, int]:
            invitation = counted if index % 2 else revoked
            answer = api.enrol(invitation)
            if index == CROWD:
                assert take_back(task, entry["invitation_id"]).status_code == 200
            return invitation, answer.status_code

        with ThreadPoolExecutor(8) as pool:
            answers = Counter(pool.map(enrol, range(2 * CROWD)))
        assert (answers[counted, 201], answers[counted, 410]) == (PLACES, CROWD - PLACES)
        assert answers[revoked, 201] + answers[revoked, 410] == CROWD
        assert api.enrol(revoked).status_code == 410
        views = [(view["state"], view["used"]) for view in task.found("invitations")["invitations"]]
        assert views == [("used up", PLACES), ("revoked", answers[revoked, 201])]
        assert task.now()["members"] == PLACES + answers[revoked, 201]


def test_servers_that_share_a_database_do_not_exceed_the_uses(tmp_path: Path, postgres: TestDatabase) -> None:
    """Each server enrols one client after another; here every enrolment has a transaction of its own, as on another."""
    with aggregator_inside(tmp_path / "data", database_url=postgres.schema()) as api:
        invitation = api.invite(api.create_task().id, uses=PLACES)
        database, now, together = services(api).database, time.time(), Barrier(CROWD)
        requests = [EnrolmentRequest.model_validate(signed_enrolment(invitation)) for _ in range(CROWD)]

        def enrol_elsewhere(request: EnrolmentRequest) -> str:
            def write(session: Session) -> str:
                try:
                    return enrol(session, request, now).enrolment.client_id
                except Problem as problem:
                    return problem.slug
                finally:
                    time.sleep(0.02)  # before the commit, so that the others begin

            together.wait()
            return database.transact(write)

        with ThreadPoolExecutor(CROWD) as pool:
            found = Counter(pool.map(enrol_elsewhere, requests))
        assert found.pop("gone") == CROWD - PLACES
        assert len(found) == PLACES


def mine(member: TestMember, query: str = "") -> dict[str, Any]:
    return dict(member.found(f"members/me/ledger{query}").json())


def test_a_client_sees_the_sums_that_contain_it_and_operators_see_every_sum(api: Api, clock: ManualClock) -> None:
    """A round that failed is in neither list."""
    task = api.create_task(cohort=3, rounds=3, data_set="ratings")
    members = task.enrol(3)
    for number, away in enumerate((0, 1, 2, 0), 1):  # so many do not contribute, and two are needed
        task.wait_round(number, "collecting")
        contribute(members[away:], number, 1.0)
        if away:
            clock.advance(601.0)
        task.wait_round(number, "complete", "failed")
    assert task.round(3)["state"] == "failed"
    assert [entry["round"] for entry in mine(members[0])["entries"]] == [1, 4]
    entries = mine(members[2])["entries"]
    seen = [(entry["round"], entry["step"], entry["survivors"]) for entry in entries]
    assert seen == [(1, 1, 3), (2, 2, 2), (4, 3, 3)]
    body = members[2].contribution(2, 1.0)
    assert entries[1]["contribution_digest"] == hashlib.sha256(body).hexdigest()
    assert entries[0]["survivors_digest"] == entries[2]["survivors_digest"] != entries[1]["survivors_digest"]
    assert (entries[0]["recipe"], entries[0]["mechanism"], entries[0]["data_set"]) == ("fedmf", "plain", "ratings")
    assert [entry["released_at"] - 1_790_000_000.0 for entry in entries] == [0.0, 601.0, 1202.0]
    for query, rounds, more in (("?limit=2", [1, 2], True), ("?after=1&limit=2", [2, 4], False)):
        page = mine(members[2], query)
        assert ([entry["round"] for entry in page["entries"]], page["more"]) == (rounds, more)
    everything = task.found("ledger")["entries"]
    assert [(entry["round"], entry["contribution_digest"]) for entry in everything] == [(1, None), (2, None), (4, None)]
    later = task.found("ledger", after=2)
    assert ([entry["round"] for entry in later["entries"]], later["more"]) == ([4], False)
