"""A CKKS task in public mode: the key of every round, the holder's answer to the sum, and its deadline."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.envelope import EnvelopeSender
from tests.support.api import Api
from tests.support.holder import CLIENTS, make_holder
from tests.support.inside import aggregator_inside


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("round-keys") / "data") as found:
        yield found


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).removeprefix("urn:hushrec:problem:")


def test_a_round_waits_for_its_key(api: Api) -> None:
    holder = make_holder(api, "waits")
    assert any("false ciphertexts" in text for text in holder.task.view["warnings"])
    assert holder.view()["waiting_for"] == "the key holder's public key of round 1"
    assert api.http.get(f"{holder.task.path}/rounds/1", headers=api.operator).status_code == 404
    assert slug(api.http.get(f"{holder.task.path}/rounds/1/key", headers=holder.member.auth)) == "not-found"
    holder.publish_new(1)
    view = holder.task.wait_round(1, "collecting")
    assert view["key_digest"] == holder.key_digest(1)
    assert holder.view()["waiting_for"] is None
    found = api.http.get(f"{holder.task.path}/rounds/1/key", headers=holder.members[0].auth)
    assert found.content == holder.documents[1]


def test_only_the_holders_key_of_this_round_is_stored(api: Api) -> None:
    holder = make_holder(api, "stored")
    first = holder.document(1)
    other = EnvelopeSender(Ed25519PrivateKey.generate(), bytes(32), NO_CERTIFICATE)
    assert slug(holder.publish(1, first, holder.members[0])) == "forbidden"
    assert slug(holder.publish(2, first)) == "bad-request"
    assert slug(holder.publish(1, first[:-1])) == "body-too-short"
    assert slug(holder.publish(1, holder.document(1, task_id="t_other"))) == "bad-request"
    refused = holder.publish(1, holder.document(1, sender=other))
    assert (slug(refused), "another identity" in refused.json()["detail"]) == ("bad-request", True)
    assert slug(holder.publish(3, holder.document(3))) == "conflict"
    assert holder.publish(1, first).status_code == 201
    assert holder.publish(1, first).status_code == 200
    assert slug(holder.publish(1, holder.document(1))) == "conflict"
    assert api.http.post(f"{holder.task.path}/close", headers=api.operator).status_code == 200
    assert slug(holder.publish(2, holder.document(2))) == "conflict"
    shared = make_holder(api, "no-round-keys", mode="shared")
    assert slug(shared.publish(1, first)) == "conflict"


def test_a_contribution_names_the_key_that_it_is_encrypted_with(api: Api) -> None:
    holder = make_holder(api, "named")
    holder.publish_new(1, 2)
    holder.task.wait_round(1, "collecting")
    member = holder.members[0]
    body = member.contribution(1, 0.25, holder.keyrings[1].without_secret_key())
    assert slug(member.put(1, body)) == "bad-contribution"
    assert slug(member.put(1, body, {"Round-Key": holder.key_digest(2)})) == "bad-contribution"
    assert member.put(1, body, {"Round-Key": holder.key_digest(1)}).status_code == 201
    plain = api.create_task("no-key", cohort=2)
    first, _ = plain.enrol(2)
    plain.wait_round(1, "collecting")
    assert slug(first.put(1, first.contribution(1, 1.0), {"Round-Key": "0" * 64})) == "bad-contribution"


def test_the_holders_model_completes_a_round(api: Api) -> None:
    holder = make_holder(api, "completes", rounds=2)
    holder.publish_new(1, 2)
    holder.task.wait_round(1, "collecting")
    assert slug(holder.refuse(1)) == "conflict"
    holder.contribute(1)
    waiting = holder.task.round(1)
    assert (waiting["survivors"], waiting["seconds_left"] > 500) == (CLIENTS, True)
    assert holder.view()["completed_rounds"] == 0
    assert slug(holder.put_snapshot(1, holder.members[0])) == "forbidden"
    extended = api.http.post(f"{holder.task.path}/rounds/1/extend", json={"seconds": 60}, headers=api.operator)
    assert extended.json()["seconds_left"] > 600
    assert holder.put_snapshot(1).status_code == 201
    assert holder.task.round(1)["state"] == "complete"
    assert slug(holder.refuse(1)) == "conflict"
    holder.publish_new(3)
    holder.contribute(2)
    assert slug(api.http.get(f"{holder.task.path}/rounds/1/key", headers=holder.member.auth)) == "not-found"
    assert holder.put_snapshot(2).status_code == 201
    assert (holder.view()["state"], holder.view()["completed_rounds"]) == ("complete", 2)


def test_a_refused_sum_is_deleted_and_the_task_continues_with_the_next_key(api: Api) -> None:
    holder = make_holder(api, "refused")
    holder.publish_new(1, 2)
    holder.contribute(1)
    assert slug(holder.refuse(1, member=holder.members[0])) == "forbidden"
    assert slug(holder.refuse(9)) == "not-found"
    for _ in range(2):
        assert holder.refuse(1).json()["failure"] == "the key holder refused the sum: not zero"
    failed = holder.task.round(1)
    assert (failed["state"], failed["survivors"], failed["aggregate_digest"]) == ("failed", 0, None)
    assert slug(api.http.get(f"{holder.task.path}/rounds/1/aggregate", headers=api.operator)) == "not-found"
    assert slug(holder.put_snapshot(1)) == "conflict"
    assert holder.view()["failed_rounds"] == 1
    assert holder.task.wait_round(2, "collecting")["key_digest"] == holder.key_digest(2)


def test_an_absent_holder_costs_two_rounds_and_then_the_task_waits(api: Api) -> None:
    holder = make_holder(api, "absent", collect_seconds=1.0, max_failed_rounds=1)
    holder.publish_new(1, 2)
    for number in (1, 2):
        holder.contribute(number)
        failed = holder.task.wait_round(number, "failed")
        assert failed["failure"].startswith("the key holder did not open the sum in time")
    assert (holder.view()["state"], holder.view()["failed_rounds"]) == ("open", 2)
    assert holder.view()["waiting_for"] == "the key holder's public key of round 3"
    assert slug(holder.put_snapshot(2)) == "conflict"
    holder.publish_new(3)
    holder.contribute(3)
    assert holder.put_snapshot(3).status_code == 201
