"""Membership certificates at the server: who may enrol, what a revocation ends, and what a roster leaves out."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.tasks.joining import holds_certificate, renew_certificate, store_revocations
from protocols.codec import b64encode
from protocols.crypto.certificates import MOST_REVOKED, CertifiedRole, certify, revoke
from protocols.crypto.sealing import SealingKey
from protocols.messages import OrganiserPin
from protocols.sums.oneshot.committee import make_committee_key
from tests.support.api import (
    Api,
    TestMember,
    TestTask,
    aggregator_inside,
    checked,
    detail,
    services,
    signed_enrolment,
)
from tests.support.clock import ManualClock
from tests.support.oneshot import OneshotMember, oneshot_task
from tests.support.replicas import TestDatabase, wait_until
from tests.support.world import an_operator

SCOPE = "movies"
ORGANISER, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PIN = OrganiserPin(key=b64encode(ORGANISER.public_key().public_bytes_raw()), scope=SCOPE)


class Person:
    def __init__(self) -> None:
        self.identity, self.mailbox = Ed25519PrivateKey.generate(), SealingKey.generate()
        self.serial = secrets.randbits(64)

    def certificate(
        self,
        organiser: Ed25519PrivateKey = ORGANISER,
        scope: str = SCOPE,
        role: CertifiedRole = "member",
        seconds: float = 600.0,
    ) -> bytes:
        keys = self.identity.public_key().public_bytes_raw(), self.mailbox.name
        until = int(time.time() + seconds)
        return certify(organiser, scope, *keys, role=role, serial=self.serial, not_after=until).encode()

    def enrol(self, task: TestTask, certificate: bytes | None, renewal: int = 0) -> httpx.Response:
        return task.api.enrol(task.api.invite(task.id), self.identity, self.mailbox, None, certificate, renewal)

    def member(self, task: TestTask) -> TestMember:
        made = checked(self.enrol(task, self.certificate()), 201).json()
        return TestMember(task, made["client_id"], made["token"])


def test_only_certified_clients_enrol(api: Api) -> None:
    """One enrolled client with a false certificate would end every masked round: it is refused at the door."""
    task = api.create_task("certified-enrolment", organiser=PIN)
    assert task.view["organiser"] == {"key": PIN.key, "scope": SCOPE}
    ann, eve = Person(), Person()
    assert ann.enrol(task, ann.certificate()).status_code == 201
    for certificate, why in (
        (None, "needs a membership certificate"),
        (eve.certificate(STRANGER), "not signed by the organiser"),
        (eve.certificate(scope="songs"), "not signed by the organiser"),
        (ann.certificate(), "not signed by the organiser"),
        (eve.certificate(seconds=-5), "expired"),
        (eve.certificate(role="holder"), "for the role holder, not member"),
    ):
        assert why in detail(eve.enrol(task, certificate), 403)
    assert task.now()["members"] == 1
    body = signed_enrolment(api.invite(task.id), eve.identity, eve.mailbox, None, eve.certificate())
    changed = {**body, "certificate": b64encode(eve.certificate(seconds=900))}
    assert "signature" in detail(api.http.post("/v1/enrolments", json=changed), 403)


def test_a_certificate_is_renewed_and_only_by_a_good_one(api: Api) -> None:
    task, ann, eve = api.create_task("certified-renewal", organiser=PIN), Person(), Person()
    member = ann.member(task)
    path = f"{task.path}/members/me/certificate"
    assert api.put(path, ann.certificate(seconds=900), member.auth).status_code == 200
    assert "expired" in detail(api.put(path, ann.certificate(seconds=-5), member.auth), 403)
    assert "expires later" in detail(api.put(path, ann.certificate(seconds=300), member.auth), 409)
    assert "not signed" in detail(api.put(path, eve.certificate(), member.auth), 403)
    assert api.put(path, bytes(80), member.auth).status_code == 400
    assert api.put(path, ann.certificate()).status_code == 403
    plain = api.create_task("no-organiser")
    (other,) = plain.enrol(1)
    assert "no organiser" in detail(api.put(f"{plain.path}/members/me/certificate", bytes(81), other.auth), 409)


def test_attack_one_subject_enrols_with_two_identities_or_roles(api: Api) -> None:
    """An organiser of its own making may sign several certificates for one person; the serial stands for the person."""
    task, ann, other, eve = api.create_task("certified-subjects", organiser=PIN), Person(), Person(), Person()
    member = ann.member(task)
    other.serial = ann.serial
    assert "one identity and one role" in detail(other.enrol(task, other.certificate()), 403)
    assert "has no key holder" in detail(task.post("invitations", {"role": "holder", "uses": 1}), 422)
    ann.serial = eve.serial  # the same identity as another subject
    path = f"{task.path}/members/me/certificate"
    assert "another subject" in detail(api.put(path, ann.certificate(seconds=900), member.auth), 403)
    for certificate, why in ((ann.certificate(), "another subject"), (ann.certificate(role="holder"), "not member")):
        assert why in detail(ann.enrol(task, certificate, renewal=1), 403)
    assert eve.enrol(task, eve.certificate()).status_code == 201


@pytest.mark.parametrize("what", ["revocations", "certificate"])
def test_of_two_that_are_stored_at_once_the_newer_stays(tmp_path: Path, postgres: TestDatabase, what: str) -> None:
    """A revocation list, or a certificate: the older one waits, and then finds the newer one."""
    url, ann = postgres.schema(), Person()
    with aggregator_inside(tmp_path / "data", database_url=url) as api, ThreadPoolExecutor(1) as pool:
        task = api.create_task("certified-at-once", organiser=PIN)
        member, now = ann.member(task), int(time.time())
        certificates = [ann.certificate(seconds=seconds) for seconds in (700, 1000)]
        lists = [revoke(ORGANISER, SCOPE, [], now + later).encode() for later in (0, 1)]

        def store(session: Session, newer: bool) -> None:
            if what == "certificate":
                renew_certificate(session, task.id, member.client_id, certificates[newer], now)
            else:
                store_revocations(session, session.get_one(TaskRow, task.id), lists[newer], an_operator(now))

        database = services(api).database
        with database.write() as session:
            store(session, newer=True)
            session.flush()
            older = pool.submit(database.transact, partial(store, newer=False))
            wait_until(lambda: blocked(database), "the older one waits for a lock")
        with pytest.raises(Problem) as refused:
            older.result(timeout=30)
        assert refused.value.slug == "conflict"
        with database.read() as session:
            row, client = session.get_one(TaskRow, task.id), session.get_one(ClientRow, member.client_id)
            assert (client.certificate if what == "certificate" else row.revocations) in (certificates[1], lists[1])


def blocked(database: Database) -> bool:
    """Whether a session of the PostgreSQL server waits for a lock of another one."""
    with database.read() as session:
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')"
        return bool(session.execute(text(waiting)).scalar_one())


def test_a_revocation_list_ends_memberships(api: Api) -> None:
    task, ann, bob = api.create_task("certified-revocation", organiser=PIN), Person(), Person()
    out, stays = ann.member(task), bob.member(task)
    path, now = f"{task.path}/revocations", int(time.time())
    assert api.http.get(path, headers=stays.auth).status_code == 404
    listed = revoke(ORGANISER, SCOPE, [ann.serial], now)
    assert api.put(path, listed.encode(), stays.auth).status_code == 403
    assert api.put(path, listed.encode()).status_code == 200
    assert api.http.get(path, headers=stays.auth).content == listed.encode()
    assert api.http.get(task.path, headers=out.auth).status_code == 401
    assert api.http.get(task.path, headers=stays.auth).status_code == 200
    assert "revoked" in detail(ann.enrol(task, ann.certificate()), 403)
    again = Person()
    again.serial = ann.serial
    assert "revoked by the organiser" in detail(again.enrol(task, again.certificate()), 403)


def test_only_the_organiser_s_newest_list_is_stored(api: Api) -> None:
    task, now = api.create_task("certified-lists", organiser=PIN), int(time.time())
    path = f"{task.path}/revocations"
    newer, older = revoke(ORGANISER, SCOPE, [1, 2], now), revoke(ORGANISER, SCOPE, [1], now - 60)
    assert api.put(path, newer.encode()).status_code == 200
    assert "newer" in detail(api.put(path, older.encode()), 409)
    forged = revoke(STRANGER, SCOPE, [], now + 60)
    assert "not signed" in detail(api.put(path, forged.encode()), 403)
    assert api.put(path, b"no list").status_code == 400
    longest = revoke(ORGANISER, SCOPE, range(MOST_REVOKED), now + 1).encode()
    assert api.put(path, longest).status_code == 200
    assert api.put(path, longest + bytes(8)).status_code == 413
    plain = api.create_task("lists-without-organiser")
    assert "no organiser" in detail(api.put(f"{plain.path}/revocations", newer.encode()), 409)


def test_a_roster_takes_certificates_that_hold_now() -> None:
    ann = Person()
    task = TaskRow(organiser_key=ORGANISER.public_key().public_bytes_raw(), organiser_scope=SCOPE)
    client = ClientRow(
        identity_key=ann.identity.public_key().public_bytes_raw(),
        mailbox_key=ann.mailbox.name,
        certificate=ann.certificate(),
        role="member",
    )
    assert [holds_certificate(task, client, time.time() + later) for later in (0, 599, 601)] == [True, True, False]
    task.revocations = revoke(ORGANISER, SCOPE, [ann.serial], 1).encode()
    assert not holds_certificate(task, client, time.time())
    assert holds_certificate(TaskRow(), ClientRow(), time.time())


def test_the_preview_of_an_invitation_does_not_count_keys_of_members_whose_certificates_have_expired(
    tmp_path: Path,
) -> None:
    clock = ManualClock(time.time())
    with aggregator_inside(tmp_path / "data", clock=clock) as api:
        task = oneshot_task(api, "expired-committee", 6, organiser=PIN)
        for _ in range(5):
            person, invitation = Person(), api.invite(task.id, role="committee")
            certificate = person.certificate(role="committee")
            made = checked(api.enrol(invitation, person.identity, person.mailbox, None, certificate), 201).json()
            client_id, mailbox = made["client_id"], person.mailbox.name
            _, key = make_committee_key(person.identity, task.id, 1, client_id, mailbox, certificate)
            assert OneshotMember(task, client_id, made["token"], mailbox).publish(1, key.encode()).status_code == 201
        invited = {"Authorization": f"Bearer {api.invite(task.id, expires_seconds=3600.0)}"}

        def waits_for() -> str | None:
            return checked(api.http.get("/v1/enrolments/task", headers=invited)).json()["waiting_for"]

        assert "committee" not in str(waits_for())
        clock.advance(900)  # a certificate holds for 600, from when it was made
        assert waits_for() == task.now()["waiting_for"]
        assert waits_for() == "the committee: 0 of 5 members have published keys for round 1"
