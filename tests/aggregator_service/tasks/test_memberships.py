"""Memberships: invitations expire and have a limited number of uses, operators revoke members; a member's ledger."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.clock import ManualClock
from tests.support.api import Api, TestMember, TestTask, serving, signed_enrolment
from tests.support.inside import aggregator_inside
from tests.support.replicas import TestDatabase


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", clock=clock) as inside:
        yield inside


def enrol(api: Api, invitation: str, identity: Ed25519PrivateKey | None = None) -> int:
    body = signed_enrolment(invitation, identity or Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    return api.http.post("/v1/enrolments", json=body).status_code


def test_an_invitation_counts_its_uses_and_expires(api: Api, clock: ManualClock) -> None:
    """And shows its task without a use, also to who has used it and may enrol again."""
    task = api.create_task()
    invitation = api.invite(task.id, uses=2, expires_seconds=60)

    def preview(token: str = invitation) -> httpx.Response:
        return api.http.get("/v1/enrolments/task", headers={"Authorization": f"Bearer {token}"})

    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    bodies = [signed_enrolment(invitation, identity, mailbox, renewal=renewal) for renewal in range(3)]
    assert [api.http.post("/v1/enrolments", json=body).status_code for body in bodies] == [201, 200, 200]
    assert [enrol(api, invitation) for _ in range(2)] == [201, 410]  # enrolling again takes no use
    assert preview().json()["task_id"] == task.id
    assert [preview("hri_" + "0" * 40).status_code, preview("hro_" + "0" * 40).status_code] == [403, 422]
    other = api.invite(task.id, uses=5, expires_seconds=60)
    clock.advance(59.0)
    assert enrol(api, other) == 201
    clock.advance(1.0)
    assert (enrol(api, other), preview().status_code) == (410, 410)


def revoke(api: Api, member: TestMember) -> dict[str, object]:
    answer = api.http.delete(f"{member.task.path}/members/{member.client_id}", headers=api.operator)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_revoked_member_cannot_return(api: Api) -> None:
    task = api.create_task(cohort=3, rounds=2)
    invitation = api.invite(task.id, uses=9)
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    body = signed_enrolment(invitation, identity, mailbox)
    known = api.http.post("/v1/enrolments", json=body).json()
    revoked_member = TestMember(task, known["client_id"], known["token"])
    assert revoke(api, revoked_member)["revoked"] is True
    assert revoke(api, revoked_member)["revoked"] is True
    assert api.http.get(task.path, headers=revoked_member.auth).status_code == 401
    again = api.http.post("/v1/enrolments", json=body)
    assert (again.status_code, "revoked" in again.json()["detail"]) == (403, True)
    view = task.now()
    assert (view["members"], view["able_members"]) == (0, [0])
    members = task.begin(3)
    cohort = task.cohort(1)
    assert sorted(cohort) == sorted(member.client_id for member in members)
    listed = api.http.get(f"{task.path}/members", headers=api.operator).json()["members"]
    assert [one["revoked"] for one in listed] == [True, False, False, False]


def test_the_contribution_of_a_revoked_member_stays_and_it_is_not_asked_again(api: Api, clock: ManualClock) -> None:
    task = api.create_task(cohort=3, rounds=2, min_clients=2, collect_seconds=60)
    members = task.begin(3)
    by_mistake = f"{api.create_task('other').path}/members/{members[0].client_id}"
    assert api.http.delete(by_mistake, headers=api.operator).status_code == 404
    for member in members:
        assert member.put(1, member.contribution(1, 2.0)).status_code == 201
        if member is members[0]:
            revoke(api, member)
            assert member.put(1, member.contribution(1, 2.0)).status_code == 401
    assert task.wait_round(1, "complete")["survivors"] == 3
    task.wait_round(2, "collecting")
    cohort = task.cohort(2)
    assert sorted(cohort) == sorted(member.client_id for member in members[1:])


def invitations(api: Api, task_id: str, **query: object) -> dict[str, Any]:
    answer = api.http.get(f"/v1/tasks/{task_id}/invitations", params=query, headers=api.operator)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def take_back(api: Api, task_id: str, invitation_id: str) -> httpx.Response:
    return api.http.delete(f"/v1/tasks/{task_id}/invitations/{invitation_id}", headers=api.operator)


def test_listed_invitations_do_not_show_their_tokens_and_have_pages(api: Api, clock: ManualClock) -> None:
    task = api.create_task()
    shown = [api.invite(task.id, uses=uses, expires_seconds=60.0 * uses) for uses in (1, 2, 3)]  # at one moment
    api.invite(api.create_task("other").id)
    assert [enrol(api, invitation) for invitation in (shown[0], shown[2])] == [201, 201]
    clock.advance(130.0)
    shown.append(api.invite(task.id, uses=4))
    answer = api.http.get(f"{task.path}/invitations", headers=api.operator)
    assert not any(invitation in answer.text for invitation in shown)
    listed = answer.json()["invitations"]
    by_uses = {entry["uses"]: entry for entry in listed}
    assert {uses: (entry["state"], entry["used"]) for uses, entry in by_uses.items()} == {
        1: ("used up", 1),
        2: ("expired", 0),
        3: ("open", 1),
        4: ("open", 0),
    }
    assert (by_uses[3]["age_seconds"], by_uses[3]["expires_seconds"]) == (130.0, 50.0)
    fields = {"invitation_id", "role", "state", "uses", "used", "age_seconds", "expires_seconds"}
    assert all(set(entry) == fields for entry in listed)
    first = invitations(api, task.id, limit=2)
    second = invitations(api, task.id, limit=2, after=first["next"])
    assert first["invitations"] + second["invitations"] == listed
    unknown = api.http.get(f"{task.path}/invitations", params={"after": "i_0123"}, headers=api.operator)
    assert (second["next"], unknown.status_code) == (None, 404)


def test_a_revoked_invitation_enrols_nobody(api: Api) -> None:
    task, other = api.create_task(), api.create_task("other")
    invitation = api.invite(task.id, uses=5)
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    body = signed_enrolment(invitation, identity, mailbox)
    assert api.http.post("/v1/enrolments", json=body).status_code == 201
    (entry,) = invitations(api, task.id)["invitations"]
    assert take_back(api, other.id, entry["invitation_id"]).status_code == 404
    assert take_back(api, task.id, "i_nobody").status_code == 404
    for _ in range(2):  # a second call changes nothing
        answer = take_back(api, task.id, entry["invitation_id"])
        assert (answer.status_code, answer.json()["state"], answer.json()["used"]) == (200, "revoked", 1)
    refused = api.http.post(
        "/v1/enrolments",
        json=signed_enrolment(invitation),
    )
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:hushrec:problem:gone")
    assert "revoked" in refused.json()["detail"]
    renewed = signed_enrolment(invitation, identity, mailbox, renewal=1)
    again = api.http.post("/v1/enrolments", json=renewed)  # the member that enrolled with it remains one
    assert again.status_code == 200
    auth = {"Authorization": f"Bearer {again.json()['token']}"}
    assert api.http.get(task.path, headers=auth).status_code == 200


CROWD, PLACES = 12, 4


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    postgres: TestDatabase = request.getfixturevalue("postgres")
    return {"database_url": postgres.schema()}


def test_simultaneous_enrolments_do_not_exceed_the_uses(tmp_path: Path, storage: dict[str, str]) -> None:
    with serving(tmp_path / "data", **storage) as (server, api):
        task = api.create_task()
        counted, revoked = api.invite(task.id, uses=PLACES), api.invite(task.id, uses=CROWD)
        _, entry = api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"]

        def enrol(index: int) -> tuple[str, int]:
            invitation = counted if index % 2 else revoked
            body = signed_enrolment(invitation)
            answer = httpx.post(f"{server.url}/v1/enrolments", json=body, timeout=60)
            if index == CROWD:
                path = f"{task.path}/invitations/{entry['invitation_id']}"
                assert api.http.delete(path, headers=api.operator).status_code == 200
            return invitation, answer.status_code

        with ThreadPoolExecutor(8) as pool:
            answers = Counter(pool.map(enrol, range(2 * CROWD)))
        assert answers[counted, 201] == PLACES
        assert answers[counted, 410] == CROWD - PLACES
        assert answers[revoked, 201] + answers[revoked, 410] == CROWD
        assert answers[revoked, 201] < CROWD
        views = api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"]
        assert [(view["state"], view["used"]) for view in views] == [
            ("used up", PLACES),
            ("revoked", answers[revoked, 201]),
        ]
        assert task.now()["members"] == PLACES + answers[revoked, 201]


def play(task: TestTask, members: list[TestMember], rounds: int, away: dict[int, int] | None = None) -> None:
    """All members but number `away[round]` contribute."""
    for number in range(1, rounds + 1):
        task.wait_round(number, "collecting")
        for place, member in enumerate(members):
            if (away or {}).get(number) != place:
                assert member.put(number, member.contribution(number, 1.0)).status_code == 201
        if number in (away or {}):
            clock: ManualClock = task.api.http.app.state.services.clock  # type: ignore[attr-defined]
            clock.advance(601.0)
        task.wait_round(number, "complete", "failed")


def mine(member: TestMember, **query: int) -> dict[str, Any]:
    answer = member.task.api.http.get(f"{member.task.path}/members/me/ledger", headers=member.auth, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_client_sees_the_sums_that_contain_it(api: Api) -> None:
    task = api.create_task(cohort=3, rounds=3)
    members = task.enrol(3)
    play(task, members, 3, away={2: 0})
    assert [entry["round"] for entry in mine(members[0])["entries"]] == [1, 3]
    entries = mine(members[1])["entries"]
    assert [(entry["round"], entry["step"], entry["survivors"]) for entry in entries] == [
        (1, 1, 3),
        (2, 2, 2),
        (3, 3, 3),
    ]
    body = members[1].contribution(2, 1.0)
    assert entries[1]["contribution_digest"] == hashlib.sha256(body).hexdigest()
    assert entries[0]["survivors_digest"] == entries[2]["survivors_digest"] != entries[1]["survivors_digest"]
    assert (entries[0]["recipe"], entries[0]["mechanism"], entries[0]["data_set"]) == ("fedmf", "plain", None)
    assert [entry["released_at"] for entry in entries] == [1_790_000_000.0, 1_790_000_601.0, 1_790_000_601.0]
    for query, rounds, more in (({"limit": 2}, [1, 2], True), ({"after": 1, "limit": 2}, [2, 3], False)):
        page = mine(members[1], **query)
        assert ([entry["round"] for entry in page["entries"]], page["more"]) == (rounds, more)
    everything = api.http.get(f"{task.path}/ledger", headers=api.operator, params={"after": 2}).json()
    assert ([entry["round"] for entry in everything["entries"]], everything["more"]) == ([3], False)


def test_operators_see_every_sum_and_no_failed_round(api: Api) -> None:
    task = api.create_task(cohort=2, rounds=2, data_set="ratings")
    members = task.enrol(2)
    play(task, members, 3, away={2: 0})  # below the floor: fails
    assert task.round(2)["state"] == "failed"
    answer = api.http.get(f"{task.path}/ledger", headers=api.operator).json()
    assert [(entry["round"], entry["step"], entry["data_set"]) for entry in answer["entries"]] == [
        (1, 1, "ratings"),
        (3, 2, "ratings"),
    ]
    assert all(entry["contribution_digest"] is None for entry in answer["entries"])
    # It contributed to round 2, too, which failed.
    assert [entry["round"] for entry in mine(members[1])["entries"]] == [1, 3]
