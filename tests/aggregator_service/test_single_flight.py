"""Slow results that requests share: readiness and the forecast of masked rounds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.routes import parameters
from aggregator_service.single_flight import SingleFlight
from protocols.sums.masked.parameters import choose_neighbourhood
from tests.support.inside import aggregator_inside, services


class Work:
    """Counts computations, and how many run at the same time."""

    def __init__(self) -> None:
        self.done: Counter[object] = Counter()
        self.now = self.most = 0

    def __call__(self, key: object) -> object:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.02)
        self.done[key] += 1
        self.now -= 1
        return key


def test_concurrent_requests_share_one_computation_and_others_wait() -> None:
    work = Work()

    async def ask() -> None:
        flight: SingleFlight[object] = SingleFlight(8)
        keys = [index % 3 for index in range(30)]
        assert await asyncio.gather(*(flight.get(key, lambda key=key: work(key)) for key in keys)) == keys

    asyncio.run(ask())
    assert (work.done, work.most) == ({0: 1, 1: 1, 2: 1}, 1)


def test_results_expire_and_the_least_recently_used_one_is_dropped() -> None:
    work = Work()

    async def ask() -> None:
        flight: SingleFlight[object] = SingleFlight(2)
        for key in (0, 1, 0, 2, 0, 1):
            await flight.get(key, lambda key=key: work(key))
        short: SingleFlight[object] = SingleFlight(2, seconds=0.05)
        for _ in range(2):
            await short.get("short", lambda: work("short"))
            await short.get("short", lambda: work("short"))
            await asyncio.sleep(0.06)

    asyncio.run(ask())
    assert work.done == {0: 1, 1: 2, 2: 1, "short": 2}


def test_a_failure_is_raised_and_not_kept() -> None:
    async def ask() -> None:
        flight: SingleFlight[int] = SingleFlight(2)
        with pytest.raises(ZeroDivisionError):
            await flight.get("key", lambda: 1 // 0)
        assert await flight.get("key", lambda: 1) == 1

    asyncio.run(ask())


def test_readiness_is_checked_once_a_second_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with aggregator_inside(tmp_path) as api:
        checks, ping = [], services(api).database.ping

        def slow() -> None:
            checks.append(1)
            time.sleep(0.2)
            ping()

        monkeypatch.setattr(services(api).database, "ping", slow)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: api.http.get("/readyz"), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(checks) == 1
        time.sleep(1.1)
        assert api.http.get("/readyz").status_code == 200
        assert len(checks) == 2


def test_a_forecast_is_searched_once_and_refusals_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Any] = []

    def search(*asked: Any) -> Any:
        searches.append(asked)
        return choose_neighbourhood(*asked)

    monkeypatch.setattr(parameters, "choose_neighbourhood", search)
    with aggregator_inside(tmp_path) as api:

        def ask(**asked: Any) -> int:
            return api.http.get("/v1/parameters/masked", params=asked, headers=api.operator).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda values: ask(clients=1000, values=values), range(1, 25))) == {200}
        assert len(searches) == 1
        assert [ask(clients=3, dropout=0.5) for _ in range(3)] == [422] * 3
        assert len(searches) == 2
