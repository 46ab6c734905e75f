"""A plain round end to end, against a real server process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from protocols.recipes.base import RoundSpec
from tests.support.api import Api, digest_field
from tests.support.server import AggregatorProcess, running_aggregator

PRIMES = (2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, storage: dict[str, str]) -> Iterator[AggregatorProcess]:
    data_dir: Path = tmp_path_factory.mktemp("aggregator") / "data"
    with running_aggregator(data_dir, fold_batch=3, **storage) as running:
        yield running


def test_two_rounds_sum_every_contribution_once(api: Api) -> None:
    task = api.create_task("two-rounds", cohort=8, rounds=2)
    members = task.enrol(8)
    for number in (1, 2):
        task.wait_round(number, "collecting")
        for member, prime in zip(members, PRIMES, strict=True):
            answer = member.put(number, member.contribution(number, prime))
            assert answer.status_code == 201, answer.text
        done = task.wait_round(number, "complete")
        assert done["survivors"] == 8
        total = task.opened(number)
        mask = task.plan.layout.blocks[0].integral_mask()
        assert np.allclose(total[~mask], sum(PRIMES))
        assert np.array_equal(total[mask], np.full(mask.sum(), 8.0))
    assert api.http.get(task.path, headers=api.operator).json()["state"] == "complete"
    snapshot = api.http.get(f"{task.path}/snapshots/latest", headers=members[0].auth).json()
    assert (snapshot["round"], snapshot["author"]) == (2, "server")
    body = api.http.get(f"{task.path}/snapshots/2", headers=members[0].auth).content
    state = task.recipe.decode_state(2, body)
    expected = task.recipe.initial_state(task.spec_seed)
    for number in (1, 2):
        spec: RoundSpec = task.spec(number)
        expected = task.recipe.absorb(expected, spec, task.opened(number), 8)
    assert np.array_equal(state.item_factors, expected.item_factors)


@pytest.mark.parametrize("same", [True, False])
def test_uploads_of_one_client_at_the_same_moment(api: Api, same: bool) -> None:
    """One of several simultaneous uploads is stored: the same bytes are acknowledged, others refused."""
    task = api.create_task(f"at-once-{same}".lower(), cohort=2)
    first, second = task.enrol(2)
    task.wait_round(1, "collecting")
    bodies = [first.contribution(1, 2.0 if same else 2.0 + index) for index in range(6)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: first.put(1, body), bodies))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == sorted([201, *([200 if same else 409] * 5)])
    digests = {answer.json()["digest"] for answer in answers if answer.status_code < 300}
    assert len(digests) == 1
    (winner,) = {body for body in bodies if hashlib.sha256(body).hexdigest() in digests}
    assert second.put(1, second.contribution(1, 100.0)).status_code == 201
    task.wait_round(1, "complete")
    value = 2.0 if same else 2.0 + bodies.index(winner)
    mask = task.plan.layout.blocks[0].integral_mask()
    assert np.allclose(task.opened(1)[~mask], value + 100.0)


def test_an_unfinished_upload_is_deleted_with_its_round(api: Api, server: AggregatorProcess) -> None:
    task = api.create_task("half", cohort=2)
    (member, _) = task.enrol(2)
    task.wait_round(1, "collecting")
    chunk = member.contribution(1, 2.0)[:40]
    headers = {
        **member.auth,
        "Content-Type": "application/partial-upload",
        "Content-Digest": digest_field(chunk),
        "Upload-Offset": "0",
        "Upload-Complete": "?0",
    }
    assert api.http.patch(member.path(1), content=chunk, headers=headers).status_code == 204
    (key,) = chunks = [key for key in server.blobs.keys() if key.startswith("chunks/")]  # noqa: SIM118
    assert bytes(server.blobs.view(key, hashlib.sha256(chunk).hexdigest())) == chunk
    api.http.post(f"{task.path}/close", headers=api.operator)
    assert not set(chunks) & set(server.blobs.keys())
    assert not list((server.data_dir / "uploads").iterdir())
    late = {**headers, "Upload-Offset": "40"}
    assert api.http.patch(member.path(1), content=chunk, headers=late).status_code == 409
