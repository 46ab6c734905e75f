"""Memberships: invitations expire and have a limited number of uses, also at once; operators revoke members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.clock import ManualClock
from tests.support.api import Api, TestMember, digest_field, signed_enrolment
from tests.support.inside import aggregator_inside
from tests.support.postgres import TestDatabase
from tests.support.server import running_aggregator


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def api(tmp_path: Path, clock: ManualClock) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data", clock=clock) as inside:
        yield inside


def enrol(api: Api, invitation: str, identity: Ed25519PrivateKey | None = None) -> int:
    body = signed_enrolment(invitation, identity or Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    return api.http.post("/v1/enrolments", json=body).status_code


def test_an_invitation_counts_its_uses(api: Api) -> None:
    task = api.create_task()
    invitation = api.invite(task.id, uses=2)
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    bodies = [signed_enrolment(invitation, identity, mailbox, renewal=renewal) for renewal in range(3)]
    assert [api.http.post("/v1/enrolments", json=body).status_code for body in bodies] == [201, 200, 200]
    assert [enrol(api, invitation) for _ in range(2)] == [201, 410]  # enrolling again takes no use


def test_an_invitation_expires(api: Api, clock: ManualClock) -> None:
    invitation = api.invite(api.create_task().id, uses=5, expires_seconds=60)
    clock.advance(59.0)
    assert enrol(api, invitation) == 201
    clock.advance(1.0)
    assert enrol(api, invitation) == 410


def preview(api: Api, invitation: str) -> httpx.Response:
    return api.http.get("/v1/enrolments/task", headers={"Authorization": f"Bearer {invitation}"})


def test_an_invitation_shows_its_task_without_a_use(api: Api, clock: ManualClock) -> None:
    task = api.create_task()
    invitation = api.invite(task.id, uses=1, expires_seconds=60)
    assert preview(api, invitation).json()["task_id"] == task.id
    assert enrol(api, invitation) == 201
    assert preview(api, invitation).status_code == 200  # whoever used it may enrol again
    assert preview(api, "hri_" + "0" * 40).status_code == 403
    assert preview(api, "hro_" + "0" * 40).status_code == 422
    clock.advance(60.0)
    assert preview(api, invitation).status_code == 410


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
    view = api.http.get(task.path, headers=api.operator).json()
    assert (view["members"], view["able_members"]) == (0, [0])
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    cohort = api.http.get(f"{task.path}/rounds/1/cohort", headers=api.operator).json()["clients"]
    assert sorted(cohort) == sorted(member.client_id for member in members)
    listed = api.http.get(f"{task.path}/members", headers=api.operator).json()["members"]
    assert [one["revoked"] for one in listed] == [True, False, False, False]


def test_the_contribution_of_a_revoked_member_stays_and_it_is_not_asked_again(api: Api, clock: ManualClock) -> None:
    task = api.create_task(cohort=3, rounds=2, min_clients=2, collect_seconds=60)
    members = task.enrol(3)
    task.wait_round(1, "collecting")
    for member in members:
        assert member.put(1, member.contribution(1, 2.0)).status_code == 201
        if member is members[0]:
            revoke(api, member)
            assert member.put(1, member.contribution(1, 2.0)).status_code == 401
    assert task.wait_round(1, "complete")["survivors"] == 3
    task.wait_round(2, "collecting")
    cohort = api.http.get(f"{task.path}/rounds/2/cohort", headers=api.operator).json()["clients"]
    assert sorted(cohort) == sorted(member.client_id for member in members[1:])


def test_the_envelope_of_a_revoked_member_is_deleted_and_no_other_accepted(api: Api, tmp_path: Path) -> None:
    task = api.create_task(cohort=2, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    (holder,), (member,) = task.enrol(1, role="holder"), task.enrol(1)

    def leave() -> int:
        path, body = f"{task.path}/keyring/{member.client_id}", b"sealed" * 20_000  # a blob, not a row
        headers = {**holder.auth, "Content-Digest": digest_field(body)}
        return api.http.put(path, content=body, headers=headers).status_code

    envelopes = tmp_path / "data" / "blobs" / "envelopes"
    assert leave() == 201
    assert len([path for path in envelopes.rglob("*") if path.is_file()]) == 1
    revoke(api, member)
    assert not [path for path in envelopes.rglob("*") if path.is_file()]
    assert leave() == 404
    waiting = api.http.get(f"{task.path}/members?unkeyed=true", headers=holder.auth).json()["members"]
    assert waiting == []


def test_members_of_other_tasks_cannot_be_revoked_by_mistake(api: Api) -> None:
    one, other = api.create_task("one"), api.create_task("other")
    (member,) = one.enrol(1)
    path = f"{other.path}/members/{member.client_id}"
    assert api.http.delete(path, headers=api.operator).status_code == 404
    assert api.http.get(one.path, headers=member.auth).status_code == 200


def invitations(api: Api, task_id: str, **query: object) -> dict[str, Any]:
    answer = api.http.get(f"/v1/tasks/{task_id}/invitations", params=query, headers=api.operator)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def take_back(api: Api, task_id: str, invitation_id: str) -> httpx.Response:
    return api.http.delete(f"/v1/tasks/{task_id}/invitations/{invitation_id}", headers=api.operator)


def test_listed_invitations_do_not_show_their_tokens(api: Api, clock: ManualClock) -> None:
    task = api.create_task()
    shown = [api.invite(task.id, uses=uses, expires_seconds=60.0 * uses) for uses in (1, 2, 3)]
    api.invite(api.create_task("other").id)
    assert [enrol(api, invitation) for invitation in (shown[0], shown[2])] == [201, 201]
    clock.advance(130.0)
    answer = api.http.get(f"{task.path}/invitations", headers=api.operator)
    assert not any(invitation in answer.text for invitation in shown)
    listed = answer.json()["invitations"]
    by_uses = {entry["uses"]: entry for entry in listed}
    assert {uses: (entry["state"], entry["used"]) for uses, entry in by_uses.items()} == {
        1: ("used up", 1),
        2: ("expired", 0),
        3: ("open", 1),
    }
    assert (by_uses[3]["age_seconds"], by_uses[3]["expires_seconds"]) == (130.0, 50.0)
    fields = {"invitation_id", "role", "state", "uses", "used", "age_seconds", "expires_seconds"}
    assert all(set(entry) == fields for entry in listed)


def test_invitations_have_pages(api: Api, clock: ManualClock) -> None:
    task = api.create_task()
    for uses in range(1, 6):
        api.invite(task.id, uses=uses)
        clock.advance(0.0 if uses % 2 else 1.0)  # some are of the same moment
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = invitations(api, task.id, limit=2, **after)
        seen += [entry["invitation_id"] for entry in page["invitations"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == [entry["invitation_id"] for entry in invitations(api, task.id)["invitations"]]
    assert len(set(seen)) == 5
    unknown = api.http.get(f"{task.path}/invitations", params={"after": "i_0123"}, headers=api.operator)
    assert unknown.status_code == 404


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
        json=signed_enrolment(invitation, Ed25519PrivateKey.generate(), X25519PrivateKey.generate()),
    )
    assert (refused.status_code, refused.json()["type"]) == (410, "urn:hushrec:problem:gone")
    assert "revoked" in refused.json()["detail"]
    renewed = signed_enrolment(invitation, identity, mailbox, renewal=1)
    again = api.http.post("/v1/enrolments", json=renewed)  # the member that enrolled with it remains one
    assert again.status_code == 200
    auth = {"Authorization": f"Bearer {again.json()['token']}"}
    assert api.http.get(task.path, headers=auth).status_code == 200


CROWD, PLACES = 24, 7


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    postgres: TestDatabase = request.getfixturevalue("postgres")
    return {"database_url": postgres.schema()}


def test_simultaneous_enrolments_do_not_exceed_the_uses(tmp_path: Path, storage: dict[str, str]) -> None:
    with (
        running_aggregator(tmp_path / "data", **storage) as server,
        closing(Api(server.url, server.operator_token)) as api,
    ):
        task = api.create_task()
        counted, revoked = api.invite(task.id, uses=PLACES), api.invite(task.id, uses=CROWD)
        _, entry = api.http.get(f"{task.path}/invitations", headers=api.operator).json()["invitations"]

        def enrol(index: int) -> tuple[str, int]:
            invitation = counted if index % 2 else revoked
            body = signed_enrolment(invitation, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
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
        assert api.http.get(task.path, headers=api.operator).json()["members"] == PLACES + answers[revoked, 201]
