"""Encrypted tasks: keys, the keyring mailbox, residues out of range, attestations, and what the server stores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from protocols.codec import b64decode
from protocols.crypto.aggregate_chain import AggregateChain, StatedChain, stated_chain
from protocols.crypto.envelope import seal_snapshot
from protocols.crypto.keys import Keyring
from protocols.messages import Attestation
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.api import (
    Api,
    TestMember,
    TestTask,
    checked,
    refusal,
    services,
    serving,
    signed_enrolment,
    slug,
)

SERVER = {"fold_batch": 2}


def make_task(api: Api, name: str, **schedule: Any) -> tuple[TestTask, TestMember, Keyring]:
    """A CKKS task with its key holder enrolled, who takes part like any other member."""
    recipe: dict[str, Any] = {"recipe_name": "colr", "recipe_parameters": {"rank": 2}, "items": 40, "dim": 8}
    task = api.create_task(name, mechanism_name="ckks", clip=0.5, **recipe, **schedule)
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


def contribute(members: list[TestMember], number: int, keyring: Keyring) -> None:
    for member in members:
        checked(member.put(number, member.contribution(number, 0.25, keyring)), 201)


@contextmanager
def polled(path: str, member: TestMember) -> Iterator[Future[httpx.Response]]:
    """Poll meanwhile; the answer has arrived when the block ends."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(member.get, path)
        time.sleep(0.2)
        yield answer


def test_an_encrypted_round_end_to_end(api: Api) -> None:
    task, holder, keyring = make_task(api, "encrypted", rounds=3)
    assert task.view["opened_by"] == "members"
    assert "secret key" in task.view["warnings"][0]
    with polled("members?unkeyed=true&wait=20", holder) as waiting:
        members = task.enrol(3)
    known = [member.client_id for member in members]
    assert {row["client_id"] for row in waiting.result().json()["members"]} <= set(known)

    # no round opens before the members have keys
    first = members[0]
    assert slug(first.get("keyring")) == "not-found"
    assert first.get("rounds/current").status_code == 204
    envelopes = {member.client_id: os.urandom(200) for member in members}
    with polled("keyring?wait=20", first) as got:
        for client_id, envelope in envelopes.items():
            assert leave_envelope(holder, client_id, envelope).status_code == 201
    assert got.result().content == envelopes[first.client_id]
    assert leave_envelope(holder, first.client_id, envelopes[first.client_id]).status_code == 200
    for sender, client_id, body, why in (
        (holder, first.client_id, b"another", "conflict"),
        (holder, first.client_id, bytes(256 * 1024 + 1), "body-too-long"),
        (holder, "c_unknown", b"lost", "not-found"),
        (first, members[1].client_id, b"forged", "forbidden"),
    ):
        assert slug(leave_envelope(sender, client_id, body)) == why
    assert slug(first.get("members")) == "forbidden"
    seen, after = list[str](), "0"
    while after is not None:
        listed = holder.found(f"members?limit=3&after={after}").json()
        seen, after = seen + [row["client_id"] for row in listed["members"]], listed["next"]
    assert seen == [holder.client_id, *known]

    current = first.get("rounds/current?wait=20")
    assert current.json()["in_cohort"] is True
    assert current.json()["contribution_bytes"] == len(first.contribution(1, 0.25, keyring))
    bad = b"\xff" * current.json()["contribution_bytes"]  # residues that are not below the prime never enter the sum
    assert slug(first.put(1, bad)) == "bad-contribution"
    contribute([holder, *members], 1, keyring)
    task.wait_round(1, "complete")
    total = task.opened(1, keyring)
    assert np.allclose(total[:-1], 1.0, atol=task.plan.predicted_error)
    assert round(float(total[-1])) == 4  # the participants that an encrypted sum counts

    # the ETag: nothing new, then the next round
    def again(path: str, answer: httpx.Response) -> int:
        known = {**first.auth, "If-None-Match": answer.headers["etag"]}
        return api.http.get(f"{task.path}/{path}", headers=known).status_code

    assert again("rounds/current?wait=20", current) == 200
    task.wait_round(2, "collecting")
    assert again("rounds/current?wait=0.1", first.get("rounds/current")) == 304
    assert again("rounds/1/aggregate", first.get("rounds/1/aggregate")) == 304


def test_the_first_snapshot_of_a_round_stays_and_two_are_kept(api: Api) -> None:
    task, holder, keyring = make_task(api, "snapshots", rounds=3)
    members = enrol_with_keys(task, holder, 3)
    (stranger,) = task.enrol(1)  # a member without keys cannot make a snapshot: an invalid one would block the others

    def put(member: TestMember, number: int, body: bytes) -> str | int:
        answer = member.deliver(f"snapshots/{number}", body)
        return answer.status_code if answer.is_success else slug(answer)

    assert slug(holder.get("snapshots/latest")) == "not-found"
    for number in (1, 2, 3):
        task.wait_round(number, "collecting")
        state = os.urandom(task.recipe.state_bytes(1))
        sealed = seal_snapshot(state, AggregateChain.first(task.id), keyring.state_key, task.id, number)
        assert put(members[0], number, sealed) == "conflict"  # not complete yet
        contribute([holder, *members], number, keyring)
        task.wait_round(number, "complete")
        other = seal_snapshot(state, AggregateChain.first(task.id), keyring.state_key, task.id, number)
        for member, body, expected in (
            (members[0], sealed + b"x", "body-too-long"),
            (members[0], sealed[:-1], "body-too-short"),
            (stranger, os.urandom(len(sealed)), "forbidden"),
            (members[0], sealed, 201),
            (members[1], sealed, 200),
            (members[1], other, "conflict"),
        ):
            assert put(member, number, body) == expected
        found = members[2].found("snapshots/latest").json()
        assert (found["round"], found["author"], found["bytes"]) == (number, members[0].client_id, len(sealed))
        assert members[2].found(f"snapshots/{number}").content == sealed
    assert slug(members[2].get("snapshots/1")) == "not-found"
    assert members[2].get("snapshots/2").status_code == 200
    assert put(members[0], 9, b"x") == "not-found"


def test_a_snapshot_that_would_be_deleted_at_once_is_refused_and_uploads_of_a_member_are_limited(api: Api) -> None:
    """Two are kept, so one that is two rounds older than the newest would not stay."""
    task, holder, keyring = make_task(api, "old-snapshots", rounds=3)
    members = enrol_with_keys(task, holder, 3)
    for number in (1, 2, 3):
        task.wait_round(number, "collecting")
        contribute([holder, *members], number, keyring)
        task.wait_round(number, "complete")
    state = os.urandom(task.recipe.state_bytes(1))
    sealed = {n: seal_snapshot(state, AggregateChain.first(task.id), keyring.state_key, task.id, n) for n in (1, 2, 3)}
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(services(api).uploads.counted(members[0].client_id))
        assert refusal(members[0].deliver("snapshots/3", sealed[3])) == (429, "too-many-requests")
    assert members[0].deliver("snapshots/3", sealed[3]).status_code == 201
    assert refusal(members[0].deliver("snapshots/1", sealed[1])) == (409, "conflict")
    assert members[0].deliver("snapshots/2", sealed[2]).status_code == 201
    assert [members[1].get(f"snapshots/{n}").status_code for n in (1, 2, 3)] == [404, 200, 200]


def test_the_server_keeps_no_token_and_no_key(tmp_path: Path) -> None:
    """Neither logs nor data directory contain a token, an invitation, a secret key or a plain value."""
    with serving(tmp_path / "data") as (server, api):
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
    how = {"mechanism_name": "paillier", "mechanism_parameters": {"key_bits": 2048}}
    task = api.create_task(name, items=20, dim=4, clip=0.5, **how, **schedule)
    (holder,) = task.enrol(1, role="holder")
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
    assert slug(api.enrol(api.invite(task.id, role="holder"))) == "conflict"  # there is one already
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
    assert slug(publish(holder, made_up_keyring(task.plan, "another key").public_key)) == "conflict"
    assert leave_envelope(holder, member.client_id).status_code == 201
    (holder,) = api.create_task("ckks-has-none", mechanism_name="ckks", clip=0.5).enrol(1, role="holder")
    assert slug(publish(holder, bytes(256))) == "conflict"


def test_a_contribution_under_another_key_is_refused_on_arrival(api: Api) -> None:
    """It does not enter the sum and does not block the contributions of others."""
    task, holder, keyring = paillier_task(api, "poison", cohort=3)
    publish(holder, keyring.public_key)
    members = enrol_with_keys(task, holder, 3)
    task.wait_round(1, "collecting")
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


def test_contributions_state_the_aggregates_that_the_server_released(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    task, holder, keyring = make_task(api, "stated", rounds=2)
    members = enrol_with_keys(task, holder, 3)
    task.wait_round(1, "collecting")
    body = members[0].contribution(1, 0.25, keyring)
    other = members[0].put(1, body, {"Aggregate-Chain": os.urandom(32).hex()})
    assert (other.status_code, slug(other)) == (409, "aggregate-mismatch")
    assert "absorbed other aggregates" in caplog.text
    escaped = api.put(members[0].path(1).replace("c_", "c%5F"), body, members[0].auth | task.chain(1))
    assert slug(escaped) == "bad-contribution"
    assert members[0].put(1, body).status_code == 201
    assert members[0].put(1, body).status_code == 200
    (member, _) = api.create_task("stated-plain", cohort=2).begin(2)
    assert slug(member.put(1, member.contribution(1, 1.0), {"Aggregate-Chain": "0" * 64})) == "bad-contribution"
    assert slug(members[1].deliver(f"rounds/1/contributions/{members[1].client_id}", body)) == "bad-contribution"


def test_attestations_of_a_completed_round(api: Api) -> None:
    """Each verifies under its client's key, for this round alone; those of the newest two completed rounds are kept."""
    task, holder, keyring = make_task(api, "attested", rounds=4)
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
