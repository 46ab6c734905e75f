"""A Paillier task: the holder publishes its public key once, and contributions under other keys are refused."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from protocols.crypto.keyring import Keyring
from protocols.sums.paillier.plan import PaillierPlan
from tests.protocols.sums.paillier.cases import made_up_keyring
from tests.support.api import Api, TestMember, TestTask, digest_field
from tests.support.server import running_aggregator


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_aggregator(tmp_path_factory.mktemp("paillier") / "data", fold_batch=2) as running:
        client = Api(running.url, running.operator_token)
        yield client
        client.close()


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
    headers = {**member.auth, "Content-Digest": digest_field(public_key)}
    return member.task.api.http.put(f"{member.task.path}/public-key", content=public_key, headers=headers)


def leave_envelope(holder: TestMember, client_id: str) -> httpx.Response:
    body = b"an envelope that nobody opens here"
    headers = {**holder.auth, "Content-Digest": digest_field(body)}
    return holder.task.api.http.put(f"{holder.task.path}/keyring/{client_id}", content=body, headers=headers)


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).removeprefix("urn:hushrec:problem:")


def named(api: Api, task: TestTask) -> bool:
    view = api.http.get(task.path, headers=api.operator).json()
    assert view["mechanism"] == task.view["mechanism"]  # the terms that clients agreed to do not change
    return bool(view["plan"]["names_public_key"])


def test_the_first_key_stays(api: Api) -> None:
    task, holder, keyring = paillier_task(api, "one-key")
    (member,) = task.enrol(1)
    assert not named(api, task)
    assert slug(publish(member, keyring.public_key)) == "forbidden"
    assert slug(publish(holder, keyring.public_key[:-1])) == "invalid-parameters"
    assert slug(publish(holder, bytes(5000))) == "body-too-long"
    assert not named(api, task)
    assert publish(holder, keyring.public_key).status_code == 201
    assert publish(holder, keyring.public_key).status_code == 200
    assert named(api, task)
    assert isinstance(task.plan, PaillierPlan)
    other = made_up_keyring(task.plan, "another key")
    assert slug(publish(holder, other.public_key)) == "conflict"


def test_no_envelope_is_accepted_before_the_key(api: Api) -> None:
    task, holder, keyring = paillier_task(api, "key-first")
    (member,) = task.enrol(1)
    refused = leave_envelope(holder, member.client_id)
    assert (refused.status_code, slug(refused)) == (409, "conflict")
    publish(holder, keyring.public_key)
    assert leave_envelope(holder, member.client_id).status_code == 201


def test_a_contribution_under_another_key_is_refused_on_arrival(api: Api) -> None:
    """It does not enter the sum and does not block the contributions of others."""
    task, holder, keyring = paillier_task(api, "poison", cohort=3)
    publish(holder, keyring.public_key)
    members = task.enrol(3)
    for member in members:
        assert leave_envelope(holder, member.client_id).status_code == 201
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


def test_other_mechanisms_have_no_public_key(api: Api) -> None:
    task = api.create_task("ckks-has-none", mechanism_name="ckks", clip=0.5)
    (holder,) = task.enrol(1, role="holder")
    assert slug(publish(holder, bytes(256))) == "conflict"
