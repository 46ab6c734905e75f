"""Encrypted tasks: keys, the keyring mailbox, residues out of range, attestations, and what the server stores."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols.codec import b64decode
from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, stated_chain
from protocols.crypto.envelope import seal_snapshot
from protocols.crypto.keys import Keyring
from protocols.messages import Attestation
from protocols.sums.paillier.plan import PaillierPlan
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.api import Api, TestMember, TestTask, digest_field, signed_enrolment, slug
from tests.support.inside import aggregator_inside
from tests.support.server import AggregatorProcess
from tests.support.signing import SIGNED

ITEMS, DIM, RANK = 40, 8, 2


SERVER = {"fold_batch": 2}


def make_task(api: Api, name: str, **schedule: Any) -> tuple[TestTask, TestMember, Keyring]:
    """A CKKS task with its key holder enrolled, who takes part like any other member."""
    task = api.create_task(
        name,
        items=ITEMS,
        dim=DIM,
        clip=0.5,
        cohort=4,
        recipe_name="colr",
        recipe_parameters={"rank": RANK},
        mechanism_name="ckks",
        **schedule,
    )
    (holder,) = task.enrol(1, role="holder")
    leave_envelope(holder, holder.client_id)
    return task, holder, task.mechanism.generate_keyring(task.plan)


def enrol_with_keys(task: TestTask, holder: TestMember, count: int) -> list[TestMember]:
    members = task.enrol(count)
    for member in members:
        assert leave_envelope(holder, member.client_id).status_code == 201
    return members


def leave_envelope(holder: TestMember, client_id: str, body: bytes = b"an envelope") -> httpx.Response:
    return holder.deliver(f"keyring/{client_id}", body)


def contribute(members: list[TestMember], number: int, keyring: Keyring, value: float = 0.25) -> None:
    for member in members:
        answer = member.put(number, member.contribution(number, value, keyring))
        assert answer.status_code == 201, answer.text


def test_an_encrypted_round_end_to_end(api: Api, server: AggregatorProcess) -> None:
    task, holder, keyring = make_task(api, "encrypted", rounds=3)
    assert task.view["opened_by"] == "members"
    assert "secret key" in task.view["warnings"][0]
    invitation = api.invite(task.id, uses=3)
    waiting: list[dict[str, Any]] = []

    def wait_for_members() -> None:
        with httpx.Client(base_url=api.http.base_url, timeout=60, auth=SIGNED) as http:
            path = f"{task.path}/members?unkeyed=true&wait=20"
            waiting.extend(http.get(path, headers=holder.auth).json()["members"])

    poll = threading.Thread(target=wait_for_members)
    poll.start()
    time.sleep(0.2)
    members = []
    for _ in range(3):
        body = signed_enrolment(invitation)
        enrolment = api.http.post("/v1/enrolments", json=body).json()
        members.append(TestMember(task, enrolment["client_id"], enrolment["token"]))
    poll.join(timeout=60)
    assert waiting, "the long poll did not end when members without keys enrolled"
    assert {row["client_id"] for row in waiting} <= {member.client_id for member in members}

    # no round opens before the members have keys
    keyring_path = f"{task.path}/keyring"
    assert slug(api.http.get(keyring_path, headers=members[0].auth)) == "not-found"
    assert api.http.get(f"{task.path}/rounds/current", headers=members[0].auth).status_code == 204
    envelopes = {member.client_id: os.urandom(200) for member in members}
    got: list[bytes] = []
    poll = threading.Thread(
        target=lambda: got.append(
            httpx.get(f"{server.url}{keyring_path}?wait=20", headers=members[0].auth, timeout=60, auth=SIGNED).content
        )
    )
    poll.start()
    for member in members:
        assert leave_envelope(holder, member.client_id, envelopes[member.client_id]).status_code == 201
    poll.join(timeout=60)
    assert got == [envelopes[members[0].client_id]]
    assert leave_envelope(holder, members[0].client_id, envelopes[members[0].client_id]).status_code == 200
    assert slug(leave_envelope(holder, members[0].client_id, b"another")) == "conflict"
    assert slug(leave_envelope(holder, members[0].client_id, bytes(256 * 1024 + 1))) == "body-too-long"
    assert slug(leave_envelope(holder, "c_unknown", b"lost")) == "not-found"
    assert slug(leave_envelope(members[0], members[1].client_id, b"forged")) == "forbidden"

    assert slug(api.http.get(f"{task.path}/members", headers=members[0].auth)) == "forbidden"
    seen, after = list[str](), "0"
    while after is not None:
        listed = api.http.get(f"{task.path}/members?limit=3&after={after}", headers=holder.auth).json()
        seen, after = seen + [row["client_id"] for row in listed["members"]], listed["next"]
    assert seen == [holder.client_id, *(member.client_id for member in members)]

    everybody = [holder, *members]
    current = api.http.get(f"{task.path}/rounds/current?wait=20", headers=members[0].auth)
    assert current.json()["in_cohort"] is True
    assert current.json()["contribution_bytes"] == len(members[0].contribution(1, 0.25, keyring))

    # residues that are not below the prime never enter the sum
    bad = b"\xff" * current.json()["contribution_bytes"]
    assert slug(members[0].put(1, bad)) == "bad-contribution"

    contribute(everybody, 1, keyring)
    task.wait_round(1, "complete")
    total = task.opened(1, keyring)
    assert np.allclose(total[:-1], 1.0, atol=task.plan.predicted_error)
    assert round(float(total[-1])) == len(everybody)  # the participants that an encrypted sum counts

    # the ETag: nothing new, then the next round
    etag = {"If-None-Match": current.headers["etag"]}
    assert api.http.get(f"{task.path}/rounds/current?wait=20", headers={**members[0].auth, **etag}).status_code == 200
    task.wait_round(2, "collecting")
    fresh = api.http.get(f"{task.path}/rounds/current", headers=members[0].auth)
    same = {"If-None-Match": fresh.headers["etag"]}
    assert api.http.get(f"{task.path}/rounds/current?wait=0.1", headers={**members[0].auth, **same}).status_code == 304
    aggregate = api.http.get(f"{task.path}/rounds/1/aggregate", headers=members[0].auth)
    again = {**members[0].auth, "If-None-Match": aggregate.headers["etag"]}
    assert api.http.get(f"{task.path}/rounds/1/aggregate", headers=again).status_code == 304


def test_the_first_snapshot_of_a_round_stays_and_two_are_kept(api: Api) -> None:
    task, holder, keyring = make_task(api, "snapshots", rounds=3)
    members = enrol_with_keys(task, holder, 3)
    (stranger,) = task.enrol(1)  # a member without keys cannot make a snapshot: an invalid one would block the others

    def put_snapshot(member: TestMember, number: int, body: bytes) -> httpx.Response:
        return member.deliver(f"snapshots/{number}", body)

    latest = f"{task.path}/snapshots/latest"
    assert slug(api.http.get(latest, headers=holder.auth)) == "not-found"
    for number in (1, 2, 3):
        task.wait_round(number, "collecting")
        state = os.urandom(task.recipe.state_bytes(1))
        sealed = seal_snapshot(state, AggregateChain.first(task.id), keyring.state_key, task.id, number)
        assert slug(put_snapshot(members[0], number, sealed)) == "conflict"  # not complete yet
        contribute([holder, *members], number, keyring)
        task.wait_round(number, "complete")
        assert slug(put_snapshot(members[0], number, sealed + b"x")) == "body-too-long"
        assert slug(put_snapshot(members[0], number, sealed[:-1])) == "body-too-short"
        assert slug(put_snapshot(stranger, number, os.urandom(len(sealed)))) == "forbidden"
        assert put_snapshot(members[0], number, sealed).status_code == 201
        assert put_snapshot(members[1], number, sealed).status_code == 200
        other = seal_snapshot(state, AggregateChain.first(task.id), keyring.state_key, task.id, number)
        assert slug(put_snapshot(members[1], number, other)) == "conflict"
        found = api.http.get(latest, headers=members[2].auth).json()
        assert (found["round"], found["author"], found["bytes"]) == (number, members[0].client_id, len(sealed))
        assert api.http.get(f"{task.path}/snapshots/{number}", headers=members[2].auth).content == sealed
    assert slug(api.http.get(f"{task.path}/snapshots/1", headers=members[2].auth)) == "not-found"
    assert api.http.get(f"{task.path}/snapshots/2", headers=members[2].auth).status_code == 200
    assert slug(put_snapshot(members[0], 9, b"x")) == "not-found"


def test_invalid_enrolments_are_refused(api: Api) -> None:
    task, _, _ = make_task(api, "enrolment")
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()

    def enrol(body: dict[str, Any]) -> httpx.Response:
        return api.http.post("/v1/enrolments", json=body)

    invitation = api.invite(task.id, uses=1)
    good = signed_enrolment(invitation, identity, mailbox)
    assert slug(enrol({**good, "signature": "A" * 86})) == "forbidden"
    assert slug(enrol(signed_enrolment("hri_made-up", identity, mailbox))) == "forbidden"
    first = enrol(good)
    assert first.status_code == 201
    # the same identity again: the same client, a new token, the old one void, no use counted
    assert slug(enrol(good)) == "conflict"
    again = enrol(signed_enrolment(invitation, identity, mailbox, renewal=1))
    assert again.status_code == 200
    assert again.json()["client_id"] == first.json()["client_id"]
    stale = api.http.get(task.path, headers={"Authorization": f"Bearer {first.json()['token']}"})
    assert slug(stale) == "unauthenticated"
    assert api.http.get(task.path, headers={"Authorization": f"Bearer {again.json()['token']}"}).status_code == 200
    assert slug(enrol(signed_enrolment(invitation, identity, X25519PrivateKey.generate()))) == "conflict"
    newcomer = signed_enrolment(invitation, Ed25519PrivateKey.generate(), mailbox)
    assert slug(enrol(newcomer)) == "gone"
    second_holder = signed_enrolment(api.invite(task.id, role="holder"), Ed25519PrivateKey.generate(), mailbox)
    assert slug(enrol(second_holder)) == "conflict"


def test_the_server_keeps_no_token_and_no_key(api: Api, server: AggregatorProcess) -> None:
    """Neither logs nor data directory contain a token, an invitation, a secret key or a plain value."""
    task, holder, keyring = make_task(api, "greps")
    invitation = api.invite(task.id, uses=3)
    body = signed_enrolment(invitation)
    token = api.http.post("/v1/enrolments", json=body).json()["token"]
    api.http.get(task.path, headers={"Authorization": f"Bearer {token}"})
    api.http.post("/v1/enrolments", json={**body, "signature": "A" * 86})
    api.http.get(f"/v1/tasks?name={invitation}", headers=api.operator)
    secrets = [invitation, token, holder.token, server.operator_token, body["signature"]]
    raw = [text.encode() for text in secrets] + [keyring.secret_key[64:128], keyring.state_key]
    stored = {path: path.read_bytes() for path in server.data_dir.rglob("*") if path.is_file()}
    assert any(path.name.startswith("hushrec.db") for path in stored)
    stored[server.log_path] = server.log().encode()
    assert b'"route": "/v1/enrolments", "status": 201' in stored[server.log_path]
    for path, content in stored.items():
        for secret in raw:
            assert secret not in content, f"a secret lies in {path.name}"


def paillier_task(api: Api, name: str, **schedule: int) -> tuple[TestTask, TestMember, Keyring]:
    """A small FedMF task with Paillier sums, its enrolled holder, and the holder's keys, not yet published."""
    parameters = {"key_bits": 2048}
    task = api.create_task(
        name, items=20, dim=4, clip=0.5, mechanism_name="paillier", mechanism_parameters=parameters, **schedule
    )
    (holder,) = task.enrol(1, role="holder")
    assert isinstance(task.plan, PaillierPlan)
    return task, holder, made_up_keyring(task.plan)


def publish(member: TestMember, public_key: bytes) -> httpx.Response:
    return member.deliver("public-key", public_key)


def named(task: TestTask) -> bool:
    view = task.now()
    assert view["mechanism"] == task.view["mechanism"]  # the terms that clients agreed to do not change
    return bool(view["plan"]["names_public_key"])


def test_the_first_key_stays_and_no_envelope_is_accepted_before_it(api: Api) -> None:
    task, holder, keyring = paillier_task(api, "one-key")
    (member,) = task.enrol(1)
    assert not named(task)
    assert slug(publish(member, keyring.public_key)) == "forbidden"
    assert slug(publish(holder, keyring.public_key[:-1])) == "invalid-parameters"
    assert slug(publish(holder, bytes(5000))) == "body-too-long"
    assert not named(task)
    refused = leave_envelope(holder, member.client_id)
    assert (refused.status_code, slug(refused)) == (409, "conflict")
    assert publish(holder, keyring.public_key).status_code == 201
    assert publish(holder, keyring.public_key).status_code == 200
    assert named(task)
    assert isinstance(task.plan, PaillierPlan)
    other = made_up_keyring(task.plan, "another key")
    assert slug(publish(holder, other.public_key)) == "conflict"
    assert leave_envelope(holder, member.client_id).status_code == 201
    (holder,) = api.create_task("ckks-has-none", mechanism_name="ckks", clip=0.5).enrol(1, role="holder")
    assert slug(publish(holder, bytes(256))) == "conflict"


def test_a_contribution_under_another_key_is_refused_on_arrival(api: Api) -> None:
    """It does not enter the sum and does not block the contributions of others."""
    task, holder, keyring = paillier_task(api, "poison", cohort=3)
    publish(holder, keyring.public_key)
    members = enrol_with_keys(task, holder, 3)
    task.wait_round(1, "collecting")
    assert isinstance(task.plan, PaillierPlan)
    rogue = made_up_keyring(task.plan, "another key")
    answer = members[0].put(1, members[0].contribution(1, 0.25, rogue))
    assert (answer.status_code, slug(answer)) == (400, "bad-contribution")
    for member in members:
        assert member.put(1, member.contribution(1, 0.25, keyring)).status_code == 201
    task.wait_round(1, "complete")
    total = task.opened(1, keyring)
    counts = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert total[counts].tolist() == [3.0] * int(counts.sum())
    assert total[~counts].tolist() == [0.75] * int((~counts).sum())


@pytest.fixture(scope="module")
def inside_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("attestations") / "data") as found:
        yield found


def test_contributions_state_the_aggregates_that_the_server_released(
    inside_api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    task, holder, keyring = make_task(inside_api, "stated", rounds=2)
    members = enrol_with_keys(task, holder, 3)
    task.wait_round(1, "collecting")
    body = members[0].contribution(1, 0.25, keyring)
    other = members[0].put(1, body, {"Aggregate-Chain": os.urandom(32).hex()})
    assert (other.status_code, slug(other)) == (409, "aggregate-mismatch")
    assert any("absorbed other aggregates" in record.getMessage() for record in caplog.records)
    escaped = inside_api.http.put(
        members[0].path(1).replace("c_", "c%5F"),
        content=body,
        headers={**members[0].auth, "Content-Digest": digest_field(body), **task.chain(1)},
    )
    assert slug(escaped) == "bad-contribution"
    assert members[0].put(1, body).status_code == 201
    assert members[0].put(1, body).status_code == 200
    plain = inside_api.create_task("stated-plain", cohort=2)
    (member, _) = plain.begin(2)
    assert slug(member.put(1, member.contribution(1, 1.0), {"Aggregate-Chain": "0" * 64})) == "bad-contribution"
    unstated = {**members[1].auth, "Content-Digest": digest_field(body)}
    assert slug(inside_api.http.put(members[1].path(1), content=body, headers=unstated)) == "bad-contribution"


def test_attestations_of_a_completed_round(inside_api: Api) -> None:
    """Each verifies under its client's key, for this round alone; those of the newest two completed rounds are kept."""
    task, holder, keyring = make_task(inside_api, "attested", rounds=4)
    members = [holder, *enrol_with_keys(task, holder, 3)]

    def page(number: int, query: str = "") -> httpx.Response:
        return members[1].get(f"rounds/{number}/attestations{query}")

    for number in (1, 2, 3):
        task.wait_round(number, "collecting")
        assert slug(page(number)) == "not-found"
        contribute(members, number, keyring)
        task.wait_round(number, "complete")
        found = page(number).json()
        assert found["more"] is False
        attestations = [Attestation.model_validate(one) for one in found["attestations"]]
        assert [one.client_id for one in attestations] == sorted(member.client_id for member in members)
        for one in attestations:
            parts = {name: getattr(one, name) for name in ("client_id", "method", "authority", "fields")}
            stated = StatedChain(**parts, signature_input=one.signature_input, signature=one.signature)
            chain, _ = stated_chain(stated, b64decode(one.identity_key, 32), task.id, number)
            assert chain.hex() == task.chain(number)["Aggregate-Chain"]
    first = page(3, "?limit=1").json()
    rest = page(3, f"?after={first['attestations'][0]['client_id']}").json()
    assert (first["more"], len(first["attestations"]), len(rest["attestations"])) == (True, 1, 3)
    assert [len(page(number).json()["attestations"]) for number in (1, 2, 3)] == [0, 4, 4]
