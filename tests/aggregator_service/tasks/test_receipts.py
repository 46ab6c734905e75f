"""What the server signs: acknowledgements of uploads of every kind, and the ends of rounds, for as long as it can."""

from __future__ import annotations

import hashlib

from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols.codec import b64decode
from protocols.messages.receipts import Acknowledged, RoundReceipt
from protocols.receipts import EMPTY_ROOT, is_acknowledged, is_released
from tests.support.api import Api, TestMember, TestTask, checked, contribute, refusal, services


def key_of(task: TestTask) -> bytes:
    return b64decode(task.view["receipt_key"], 32)


def said(member: TestMember, number: int = 1) -> RoundReceipt:
    return RoundReceipt.model_validate(member.found(f"rounds/{number}/receipt").json())


def is_signed(member: TestMember, answer: dict[str, object], body: bytes) -> bool:
    facts = {"digest": hashlib.sha256(body).hexdigest(), "bytes": len(body), "signature": answer["signature"]}
    stated = Acknowledged.model_validate({"task_id": member.task.id, "round": 1, **facts})
    return is_acknowledged(key_of(member.task), member.identity.public_key().public_bytes_raw(), stated)


def test_an_upload_is_acknowledged_with_one_signature_however_often_it_is_sent(api: Api) -> None:
    """Whole, again, in pieces, and the last piece again."""
    task, members = api.begin(2, "signed")
    task.wait_round(1, "collecting")
    whole, pieces = (member.contribution(1, 1.0) for member in members)
    first = checked(members[0].put(1, whole), 201).json()
    assert is_signed(members[0], first, whole)
    assert checked(members[0].put(1, whole), 200).json() == first
    half = len(pieces) // 2
    checked(members[1].piece(0, pieces[:half]), 204)
    last = checked(members[1].piece(half, pieces[half:], pieces), 201).json()
    assert is_signed(members[1], last, pieces)
    assert not is_signed(members[0], last, pieces)
    assert checked(members[1].piece(half, pieces[half:], pieces), 200).json() == last
    task.wait_round(1, "complete")
    assert checked(members[0].put(1, whole), 200).json() == first, "also when the round is over"


def test_the_end_of_a_round_is_signed_for_its_cohort(api: Api) -> None:
    """Of a complete round, of one that failed, and of one that goes on; each task has a key of its own."""
    task, other = api.create_task("ended", cohort=3, rounds=2), api.create_task("ended-2", cohort=3)
    assert key_of(task) != key_of(other)
    members, (stranger, *_) = task.enrol(3), other.enrol(1)
    task.wait_round(1, "collecting")
    assert refusal(members[0].get("rounds/1/receipt")) == (409, "conflict")
    contribute(members, 1, 1.0)
    task.wait_round(1, "complete")
    found = [said(member) for member in members]
    (release,) = {one.release.model_dump_json() for one in found}
    stated = found[0].release
    assert is_released(key_of(task), stated)
    assert (stated.survivors, stated.aggregate_digest) == (3, task.round(1)["aggregate_digest"])
    assert stated.survivors_digest == task.found("ledger")["entries"][0]["survivors_digest"]
    assert sorted(one.places[0].index for one in found) == [0, 1, 2]
    assert stranger.get(f"../{task.id}/rounds/1/receipt").status_code in (403, 404), release
    task.wait_round(2, "collecting")
    task.post("rounds/2/abort")
    task.wait_round(2, "failed")
    failed = said(members[0], 2).release
    assert is_released(key_of(task), failed)
    assert (failed.survivors, failed.survivors_digest, failed.aggregate_digest) == (0, EMPTY_ROOT, None)


def test_what_the_server_cannot_prove_any_more_it_does_not_sign(inside: Api) -> None:
    """A set of an old version, and a task of one: their members contribute as before."""
    task = inside.create_task("old", cohort=2, rounds=3)
    members = task.enrol(2)
    task.wait_round(1, "collecting")
    contribute(members, 1, 1.0)
    task.wait_round(1, "complete")
    assert said(members[0]).release.survivors == 2
    database = services(inside).database
    with database.write() as session:
        row = session.query(RoundRow).filter_by(task_id=task.id, number=1).one()
        row.survivors_digest = "0" * 64
    assert refusal(members[0].get("rounds/1/receipt")) == (404, "not-found")
    with database.write() as session:
        session.get_one(TaskRow, task.id).receipt_seed = None
    services(inside).task_cache._tasks.clear()
    assert "receipt_key" not in task.now()
    assert refusal(members[0].get("rounds/1/receipt")) == (404, "not-found")
    task.wait_round(2, "collecting")
    answer = checked(members[0].put(2, members[0].contribution(2, 1.0)), 201).json()
    assert "signature" not in answer
