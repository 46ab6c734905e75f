"""A recorded request that is sent again within its window, bytes and signature alike, changes nothing.

Time stands still here, so every signature stays fresh: what protects is that changing requests are idempotent.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from aggregator_service.storage.schema import Base
from protocols.codec import b64encode
from protocols.crypto.certificates import certify
from protocols.crypto.sealing import SealingKey
from protocols.messages import OrganiserPin
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.api import Api, TestMember, checked, services, signed_enrolment
from tests.support.callers import promised
from tests.support.masked import enrol_masked, masked_task, play

CHANGING = ("DELETE", "PATCH", "POST", "PUT")
HARMLESS = {200, 409}
"""Statuses of a replay: the same receipt, or a conflict."""


class Recorder:
    """Records clients' requests with changing methods, and sends each again after its response."""

    def __init__(self, api: Api) -> None:
        self.api, self.recorded = api, list[httpx.Request]()
        self._plain = api.http.send
        api.http.send = self._send

    def _send(self, request: Any, **how: Any) -> Any:
        answer = self._plain(request, **how)
        if "signature" in request.headers and request.method in CHANGING and answer.is_success:
            self.recorded.append(request)
            again = self.again(request)
            assert again.status_code in HARMLESS, (request.method, request.url, again.text)
        return answer

    def again(self, request: Any) -> Any:
        return self._plain(request, auth=None)

    def kinds(self) -> set[str]:
        return {f"{request.method} {request.url.path.split('/')[-2]}" for request in self.recorded}


def rows(api: Api) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, but for what the server writes by itself: counts of refused attempts, and how much it stores."""
    with services(api).database.read() as session:
        tables = [table for table in Base.metadata.sorted_tables if table.name not in ("audit", "sizes")]
        return {one.name: sorted(map(tuple, session.execute(select(one)).all()), key=repr) for one in tables}


def check(recorder: Recorder, *kinds: str) -> None:
    """After the last round: send every recorded request again, and check that no row has changed."""
    assert recorder.kinds() == set(kinds)
    before = rows(recorder.api)
    for request in recorder.recorded:
        assert recorder.again(request).status_code in HARMLESS
    assert rows(recorder.api) == before


def test_contributions_and_chunks(api: Api) -> None:
    recorder, task = Recorder(api), api.create_task(cohort=2)
    members = task.begin(2)
    assert members[0].put(1, members[0].contribution(1, 5.0)).status_code == 201
    body = members[1].contribution(1, 6.0)
    for start in range(0, len(body), 40):
        chunk, last = body[start : start + 40], start + 40 >= len(body)
        answer = members[1].piece(start, chunk, body if last else None)
        assert answer.status_code == (201 if last else 204), answer.text
    task.wait_round(1, "complete")
    assert task.opened(1).max() == pytest.approx(11.0)
    check(recorder, "PUT contributions", "PATCH contributions")


def test_every_stage_of_a_masked_round(api: Api) -> None:
    recorder, task = Recorder(api), masked_task(api, "masked", 6, rounds=1)
    play(task, enrol_masked(task, 6))
    task.wait_round(1, "complete")
    assert task.opened(1).max() == pytest.approx(63.0, abs=0.1)
    check(recorder, *(f"PUT {stage}" for stage in ("contributions", "advertise", "share", "confirm", "unmask")))


def test_refusals_and_reports_of_bad_shares(api: Api) -> None:
    """A report that is sent again is the same dispute, and no second one."""
    recorder, task = Recorder(api), masked_task(api, "reports", 6, rounds=1)
    first, second, third, *_ = clients = enrol_masked(task, 6).values()
    play(task, dict(enumerate(clients)), until="contribute")
    task.wait_round(1, "collecting")
    for client, path, body in (
        (first, "bad-shares", {"clients": [second.client_id]}),
        (third, "refusals", {"reason": "policy"}),
    ):
        checked(api.http.post(f"{task.path}/rounds/1/{path}", json=body, headers=client.auth))
    check(recorder, "PUT advertise", "PUT share", "POST 1")


def test_keys_envelopes_and_snapshots(api: Api) -> None:
    recorder = Recorder(api)
    keyed = {"key_bits": 2048}
    task = api.create_task(cohort=2, items=20, dim=4, clip=0.5, mechanism_name="paillier", mechanism_parameters=keyed)
    (holder,), members = task.enrol(1, role="holder"), task.enrol(2)
    keyring = made_up_keyring(task.plan)
    assert holder.deliver("public-key", keyring.public_key).status_code == 201
    for member in members:
        assert holder.deliver(f"keyring/{member.client_id}", os.urandom(64)).status_code == 201
    task.wait_round(1, "collecting")
    for member in members:
        assert member.put(1, member.contribution(1, 0.25, keyring)).status_code == 201
    task.wait_round(1, "complete")
    length = members[0].deliver("snapshots/1", b"x").json()["expected_bytes"]
    assert members[0].deliver("snapshots/1", os.urandom(length)).status_code == 201
    check(recorder, f"PUT {task.id}", "PUT keyring", "PUT contributions", "PUT snapshots")


def test_certificates(api: Api) -> None:
    """The first renewal, sent again after the second one, does not bring the older certificate back."""
    recorder, organiser, scope = Recorder(api), Ed25519PrivateKey.generate(), "replays"
    pin = OrganiserPin(key=b64encode(organiser.public_key().public_bytes_raw()), scope=scope)
    task, identity, mailbox = api.create_task(organiser=pin), Ed25519PrivateKey.generate(), SealingKey.generate()
    keys = identity.public_key().public_bytes_raw(), mailbox.name
    first, *later = (
        certify(organiser, scope, *keys, role="member", serial=1, not_after=1800000000 + days).encode()
        for days in range(3)
    )
    answer = api.http.post("/v1/enrolments", json=signed_enrolment(api.invite(task.id), identity, mailbox, None, first))
    member = TestMember(task, answer.json()["client_id"], answer.json()["token"])
    for certificate in later:
        assert member.deliver("members/me/certificate", certificate).status_code == 200
    check(recorder, "PUT me")


def test_a_member_that_leaves(api: Api) -> None:
    """The token is void: the same request again is nobody's."""
    (member,) = api.create_task().enrol(1)
    answer = checked(api.http.delete(f"{member.task.path}/members/me", headers=member.auth))
    before = rows(api)
    assert api.http.send(answer.request, auth=None).status_code == 401
    assert rows(api) == before


def test_enrolments(api: Api) -> None:
    """A recorded enrolment, the first or a later one, neither replaces the token nor changes anything else."""
    task, identity, mailbox = api.create_task(), Ed25519PrivateKey.generate(), SealingKey.generate()
    invitation = api.invite(task.id)
    recorded = []
    for renewal, status in ((0, 201), (1, 200), (7, 200)):
        recorded.append(signed_enrolment(invitation, identity, mailbox, renewal=renewal))
        answer = api.http.post("/v1/enrolments", json=recorded[-1])
        assert answer.status_code == status
    member, before = TestMember(task, answer.json()["client_id"], answer.json()["token"]), rows(api)
    for body in recorded:
        refused = api.http.post("/v1/enrolments", json=body)
        assert (refused.status_code, refused.json()["renewal"]) == (409, 7)
        altered = api.http.post("/v1/enrolments", json=body | {"renewal": 8})  # the signature covers the number
        assert altered.status_code == 403
    assert rows(api) == before
    assert api.http.get(task.path, headers=member.auth).status_code == 200


def test_every_changing_route_of_clients_is_replayed() -> None:
    """Every route through which an enrolled client may change something is in one of the tests above."""
    changing = {
        (method, path)
        for (method, path), callers in promised().items()
        if method in CHANGING and {"member", "holder"} & set(callers) and "nobody" not in callers
    }
    assert {path.removeprefix("/v1/tasks/{task}/") for _, path in changing} == {
        "public-key",
        "members/me",
        "members/me/certificate",
        "keyring/{client}",
        "rounds/{number}/refusals",
        "rounds/{number}/bad-shares",
        "snapshots/{number}",
        "rounds/{number}/stages/{stage}/{client}",
        "rounds/{number}/contributions/{client}",
    }
