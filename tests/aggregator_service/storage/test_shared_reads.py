"""Look-ups of many requests share a query, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing

import pytest

from aggregator_service.storage.shared_reads import SharedReads


class Table:
    """Finds even numbers, each with its half; the first query waits until the test lets it go."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.may_go = threading.Event()
        self.failure: Exception | None = None

    def read(self, keys: Sequence[int]) -> Mapping[int, int]:
        self.asked.append(list(keys))
        assert self.may_go.wait(30.0)
        if self.failure is not None:
            raise self.failure
        return {key: key // 2 for key in keys if key % 2 == 0}


def test_look_ups_that_arrive_during_a_query_share_the_next_one() -> None:
    table = Table()

    async def scenario() -> None:
        with closing(SharedReads(table.read)) as reads:
            first = asyncio.create_task(reads.get(2))
            while not table.asked:
                await asyncio.sleep(0.001)
            others = [asyncio.create_task(reads.get(key)) for key in (4, 5, 4, 2)]
            await asyncio.sleep(0)
            others[0].cancel()  # its client has gone; another one asks for the same key
            table.may_go.set()
            assert await first == 1
            assert await asyncio.gather(*others[1:]) == [None, 2, 1]
            assert table.asked == [[2], [4, 5, 2]], "what is asked after a query began is not answered by it"
            assert await asyncio.gather(*map(reads.get, range(100))) == [
                None if key % 2 else key // 2 for key in range(100)
            ]
            assert [len(keys) for keys in table.asked[2:]] == [64, 36]

    asyncio.run(scenario())


def test_a_query_that_fails_fails_for_those_that_share_it_and_for_nobody_else() -> None:
    table = Table()
    table.may_go.set()
    table.failure = OSError("the database is away")

    async def scenario() -> None:
        with closing(SharedReads(table.read)) as reads:
            failed = await asyncio.gather(*map(reads.get, (2, 4)), return_exceptions=True)
            assert failed == [table.failure] * 2
            table.failure = None
            assert await reads.get(4) == 2

    asyncio.run(scenario())


def test_a_server_that_stops_leaves_nobody_waiting() -> None:
    table = Table()

    async def scenario() -> None:
        with closing(SharedReads(table.read)) as reads:
            waiting = asyncio.create_task(reads.get(2))
            while not table.asked:
                await asyncio.sleep(0.001)
            (reading,) = asyncio.all_tasks() - {waiting, asyncio.current_task()}
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            table.may_go.set()

    asyncio.run(scenario())
