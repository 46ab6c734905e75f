"""Plain rounds end to end, and contributions that are added while the round collects."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from protocols.recipes.base import RoundSpec
from tests.support.api import Api, serving
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.sums import KeyedRound

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
        task.assert_sum(number, PRIMES)
    assert task.now()["state"] == "complete"
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
    first, second = task.begin(2)
    bodies = [first.contribution(1, 2.0 if same else 2.0 + index) for index in range(6)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: first.put(1, body), bodies))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == sorted([201, *([200 if same else 409] * 5)])
    digests = {answer.json()["digest"] for answer in answers if answer.status_code < 300}
    assert len(digests) == 1
    (winner,) = {body for body in bodies if hashlib.sha256(body).hexdigest() in digests}
    assert second.put(1, second.contribution(1, 100.0)).status_code == 201
    task.assert_sum(1, [2.0 if same else 2.0 + bodies.index(winner), 100.0])


EARLY = 4
"""An eighth of a batch of 32: so many slow contributions a worker are folded as soon as they are there."""


def wait_folded(round_: KeyedRound, least: int) -> None:
    wait_until(lambda: round_.task.round(1)["folded"] >= least, f"{least} contributions are folded while collecting")
    assert round_.task.round(1)["state"] == "collecting"


@pytest.mark.parametrize(("mechanism_name", "early"), [("ckks", True), ("plain", False)], ids=["slow", "fast"])
def test_a_few_contributions_are_folded_while_collecting_where_each_takes_long(
    tmp_path: Path, mechanism_name: str, early: bool
) -> None:
    """A fold of a few fast ones would cost more than it adds: they wait for a whole batch."""
    with serving(tmp_path / "data", split_bytes=1, fold_batch=32) as (server, api):
        round_ = KeyedRound(api, mechanism_name)
        round_.contribute(0, EARLY if early else 31)
        if early:
            wait_folded(round_, EARLY)
        else:
            time.sleep(1.0)
            assert round_.task.round(1)["folded"] == 0
        round_.contribute(EARLY if early else 31)
        round_.assert_exact()
        assert not server.kinds().keys() & {"contributions", "partials"}
