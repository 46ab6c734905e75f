"""The jobs of a server end when they are cancelled, also in the moment in which what they wait for happens.

`asyncio.wait_for` of Python 3.11 loses such a cancellation, and the server would not end.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.leadership import Leadership

STEPS = range(6)
"""Turns of the event loop between what is waited for and the cancellation; one of them is the moment."""


async def cancelled(task: asyncio.Task[Any], turns: int) -> bool:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=0.5)
    return task.done()


@pytest.mark.parametrize("turns", STEPS)
def test_a_driver_that_is_woken_and_cancelled_ends(turns: int) -> None:
    async def play() -> bool:
        engine = RoundEngine.__new__(RoundEngine)
        engine._wake, engine._recheck = {"t": asyncio.Event()}, 60.0

        async def advance(_task: str) -> float:
            return 60.0

        engine.advance = advance  # type: ignore[assignment]
        driver = asyncio.create_task(engine._drive_rounds("t"))
        await asyncio.sleep(0.01)
        engine.wake("t")
        return await cancelled(driver, turns)

    assert asyncio.run(play())


class Pending(ThreadPoolExecutor):
    """Gives the answers of the leader lock when the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[Future[Any]] = []

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]


class Follower:
    """A candidate that never leads."""

    def leads(self, wait: float = 0.0) -> bool:
        raise AssertionError(f"asked in a thread, {wait}")

    def resign(self) -> None:
        return


@pytest.mark.parametrize("turns", STEPS)
def test_a_follower_that_is_answered_and_cancelled_ends(turns: int) -> None:
    async def play() -> bool:
        thread, leadership = Pending(), Leadership(Follower(), lambda _leads: None)
        following = asyncio.create_task(leadership._run(thread, ()))
        await asyncio.sleep(0.01)
        thread.asked[-1].set_result(False)
        return await cancelled(following, turns)

    assert asyncio.run(play())
