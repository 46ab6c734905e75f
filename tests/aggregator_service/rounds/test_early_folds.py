"""Contributions that take long to add are added while the round collects, also when servers and workers die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.api import Api
from tests.support.persistence import Persistent
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.sums import COHORT, KeyedRound

EARLY = 4
"""An eighth of the default batch of 32: so many slow contributions a worker are folded as soon as they are there."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data", split_bytes=1, test_spawns_workers=1)
    yield process
    process.stop()


def wait_folded(round_: KeyedRound, least: int) -> None:
    end = time.monotonic() + 180
    while round_.task.round(1)["folded"] < least:
        assert time.monotonic() < end, f"{least} contributions are not folded while the round collects"
        time.sleep(0.02)
    assert round_.task.round(1)["state"] == "collecting"


def leftovers(server: AggregatorProcess) -> set[str]:
    return {key.partition("/")[0] for key in server.blobs.keys()} & {"contributions", "partials"}  # noqa: SIM118


def worker_of(server: AggregatorProcess) -> psutil.Process:
    (worker,) = [child for child in psutil.Process(server.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    return worker


@pytest.mark.parametrize("mechanism_name", ["ckks", "paillier"])
def test_a_few_slow_contributions_are_folded_while_collecting(
    server: AggregatorProcess, api: Api, mechanism_name: str
) -> None:
    server.start()
    round_ = KeyedRound(api, mechanism_name)
    round_.contribute(0, EARLY)
    wait_folded(round_, EARLY)
    round_.contribute(EARLY, COHORT - 1)
    wait_folded(round_, COHORT - EARLY)
    round_.contribute(COHORT - 1)
    round_.assert_exact()
    assert leftovers(server) == set()


@pytest.mark.parametrize(("mechanism_name", "split_bytes"), [("plain", 1), ("ckks", 2**22)], ids=["fast", "short"])
def test_fast_or_short_contributions_wait_for_a_whole_batch(
    tmp_path: Path, mechanism_name: str, split_bytes: int
) -> None:
    """A fold of a few of them would cost more than it adds."""
    with (
        running_aggregator(tmp_path / "data", split_bytes=split_bytes, fold_batch=32) as server,
        closing(Api(server.url, server.operator_token)) as api,
    ):
        round_ = KeyedRound(api, mechanism_name)
        round_.contribute(0, 31)
        time.sleep(1.0)
        assert round_.task.round(1)["folded"] == 0
        round_.contribute(31, 32)
        wait_folded(round_, 32)


def test_the_server_dies_while_it_folds_early(server: AggregatorProcess, api: Api) -> None:
    """Killed before the commit of a fold, and after that of another: each contribution is in the sum exactly once."""
    server.start(crash_at="fold.blob-written-before-commit")
    round_ = KeyedRound(api, "ckks")
    attempt = Persistent(server, ["fold.committed"])
    for member, body in zip(round_.members, round_.bodies, strict=True):
        answer = attempt(lambda member=member, body=body: member.put(1, body))
        assert answer.status_code in (200, 201), answer.text
    attempt(round_.assert_exact)
    assert attempt.deaths == 2
    assert leftovers(server) == set()


@pytest.mark.parametrize("victim", ["server", "worker"])
def test_death_in_the_middle_of_an_early_fold(server: AggregatorProcess, api: Api, victim: str) -> None:
    server.start()
    round_ = KeyedRound(api, "ckks")
    round_.contribute(0, EARLY)
    wait_folded(round_, EARLY)
    worker = worker_of(server)
    worker.suspend()
    round_.contribute(EARLY, 3 * EARLY)  # the engine has handed out a batch of these, or is about to
    time.sleep(0.5)
    if victim == "server":
        server.kill()
        worker.resume()  # without its server it exits; what it wrote before does not count
        server.start()
    else:
        os.kill(worker.pid, signal.SIGKILL)
    wait_folded(round_, 2 * EARLY + 1)  # a first batch of five to seven leaves too few for another one
    round_.contribute(3 * EARLY)
    round_.assert_exact()
    assert leftovers(server) == set()
