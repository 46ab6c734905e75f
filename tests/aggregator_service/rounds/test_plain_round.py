"""Plain rounds end to end, and contributions that are added while the round collects."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from protocols.recipes.base import RoundSpec
from tests.support.api import Api, serving
from tests.support.server import AggregatorProcess, Persistent, running_aggregator
from tests.support.sums import COHORT, KeyedRound

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
"""An eighth of the default batch of 32: so many slow contributions a worker are folded as soon as they are there."""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data", split_bytes=1, test_spawns_workers=1)
    yield process
    process.stop()


@pytest.fixture
def slow_api(slow: AggregatorProcess) -> Iterator[Api]:
    with closing(Api(slow.url, slow.operator_token)) as made:
        yield made


def wait_folded(round_: KeyedRound, least: int) -> None:
    end = time.monotonic() + 180
    while round_.task.round(1)["folded"] < least:
        assert time.monotonic() < end, f"{least} contributions are not folded while the round collects"
        time.sleep(0.02)
    assert round_.task.round(1)["state"] == "collecting"


@pytest.mark.parametrize("mechanism_name", ["ckks", "paillier"])
def test_a_few_slow_contributions_are_folded_while_collecting(
    slow: AggregatorProcess, slow_api: Api, mechanism_name: str
) -> None:
    slow.start()
    round_ = KeyedRound(slow_api, mechanism_name)
    round_.contribute(0, EARLY)
    wait_folded(round_, EARLY)
    round_.contribute(EARLY, COHORT - 1)
    wait_folded(round_, COHORT - EARLY)
    round_.contribute(COHORT - 1)
    round_.assert_exact()
    assert not slow.kinds().keys() & {"contributions", "partials"}


@pytest.mark.parametrize(("mechanism_name", "split_bytes"), [("plain", 1), ("ckks", 2**22)], ids=["fast", "short"])
def test_fast_or_short_contributions_wait_for_a_whole_batch(
    tmp_path: Path, mechanism_name: str, split_bytes: int
) -> None:
    """A fold of a few of them would cost more than it adds."""
    with serving(tmp_path / "data", split_bytes=split_bytes, fold_batch=32) as (slow, slow_api):
        round_ = KeyedRound(slow_api, mechanism_name)
        round_.contribute(0, 31)
        time.sleep(1.0)
        assert round_.task.round(1)["folded"] == 0
        round_.contribute(31, 32)
        wait_folded(round_, 32)


def test_the_server_dies_while_it_folds_early(slow: AggregatorProcess, slow_api: Api) -> None:
    """Killed before the commit of a fold, and after that of another: each contribution is in the sum exactly once."""
    slow.start(crash_at="fold.blob-written-before-commit")
    round_ = KeyedRound(slow_api, "ckks")
    attempt = Persistent(slow, ["fold.committed"])
    for member, body in zip(round_.members, round_.bodies, strict=True):
        answer = attempt(lambda member=member, body=body: member.put(1, body))
        assert answer.status_code in (200, 201), answer.text
    attempt(round_.assert_exact)
    assert attempt.deaths == 2
    assert not slow.kinds().keys() & {"contributions", "partials"}


@pytest.mark.parametrize("victim", ["server", "worker"])
def test_death_in_the_middle_of_an_early_fold(slow: AggregatorProcess, slow_api: Api, victim: str) -> None:
    slow.start()
    round_ = KeyedRound(slow_api, "ckks")
    round_.contribute(0, EARLY)
    wait_folded(round_, EARLY)
    worker = slow.fold_worker()
    worker.suspend()
    round_.contribute(EARLY, 3 * EARLY)  # the engine has handed out a batch of these, or is about to
    time.sleep(0.5)
    if victim == "server":
        slow.kill()
        worker.resume()  # without its server it exits; what it wrote before does not count
        slow.start()
    else:
        os.kill(worker.pid, signal.SIGKILL)
    wait_folded(round_, 2 * EARLY + 1)  # a first batch of five to seven leaves too few for another one
    round_.contribute(3 * EARLY)
    round_.assert_exact()
    assert not slow.kinds().keys() & {"contributions", "partials"}
