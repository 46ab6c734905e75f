"""What contributions to an encrypted task state about the aggregates before, and how others get to see it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from protocols.codec import b64decode
from protocols.crypto.aggregate_chain import StatedChain, stated_chain
from protocols.messages import Attestation
from tests.aggregator_service.rounds.test_keyed_task import contribute, leave_envelope, make_task, slug
from tests.support.api import Api, TestMember, TestTask, digest_field
from tests.support.inside import aggregator_inside


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("attestations") / "data") as found:
        yield found


def with_keys(holder: TestMember, members: list[TestMember]) -> list[TestMember]:
    for member in members:
        assert leave_envelope(holder, member.client_id, os.urandom(64)).status_code == 201
    return members


def page(api: Api, task: TestTask, number: int, query: str = "", auth: dict[str, str] | None = None) -> Any:
    return api.http.get(f"{task.path}/rounds/{number}/attestations{query}", headers=auth or api.operator)


def test_contributions_state_the_aggregates_that_the_server_released(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    task, holder, keyring = make_task(api, "stated", rounds=2)
    members = with_keys(holder, task.enrol(3))
    task.wait_round(1, "collecting")
    body = members[0].contribution(1, 0.25, keyring)
    other = members[0].put(1, body, {"Aggregate-Chain": os.urandom(32).hex()})
    assert (other.status_code, slug(other)) == (409, "aggregate-mismatch")
    assert any("absorbed other aggregates" in record.getMessage() for record in caplog.records)
    escaped = api.http.put(
        members[0].path(1).replace("c_", "c%5F"),
        content=body,
        headers={**members[0].auth, "Content-Digest": digest_field(body), **task.chain(1)},
    )
    assert slug(escaped) == "bad-contribution"
    assert members[0].put(1, body).status_code == 201
    assert members[0].put(1, body).status_code == 200
    plain = api.create_task("stated-plain", cohort=2)
    (member, _) = plain.enrol(2)
    plain.wait_round(1, "collecting")
    assert slug(member.put(1, member.contribution(1, 1.0), {"Aggregate-Chain": "0" * 64})) == "bad-contribution"
    unstated = {**members[1].auth, "Content-Digest": digest_field(body)}
    assert slug(api.http.put(members[1].path(1), content=body, headers=unstated)) == "bad-contribution"


def test_attestations_of_a_completed_round(api: Api) -> None:
    """Each verifies under its client's key, for this round alone; those of the newest two completed rounds are kept."""
    task, holder, keyring = make_task(api, "attested", rounds=4)
    members = [holder, *with_keys(holder, task.enrol(3))]
    for number in (1, 2, 3):
        task.wait_round(number, "collecting")
        assert slug(page(api, task, number)) == "not-found"
        contribute(members, number, keyring)
        task.wait_round(number, "complete")
        found = page(api, task, number, auth=members[1].auth).json()
        assert found["more"] is False
        attestations = [Attestation.model_validate(one) for one in found["attestations"]]
        assert [one.client_id for one in attestations] == sorted(member.client_id for member in members)
        for one in attestations:
            parts = {name: getattr(one, name) for name in ("client_id", "method", "authority", "fields")}
            stated = StatedChain(**parts, signature_input=one.signature_input, signature=one.signature)
            chain, _ = stated_chain(stated, b64decode(one.identity_key, 32), task.id, number)
            assert chain.hex() == task.chain(number)["Aggregate-Chain"]
    first = page(api, task, 3, "?limit=1").json()
    rest = page(api, task, 3, f"?after={first['attestations'][0]['client_id']}").json()
    assert (first["more"], len(first["attestations"]), len(rest["attestations"])) == (True, 1, 3)
    assert [len(page(api, task, number).json()["attestations"]) for number in (1, 2, 3)] == [0, 4, 4]
