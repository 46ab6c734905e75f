"""When the engine reads a task again: soon after what an action needs, seldom while most clients are still missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest

from aggregator_service.rounds import pacing
from aggregator_service.rounds.pacing import Pace

SOON, LATE = 0.02, 0.3


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_MIN_PAUSE", SOON)
    monkeypatch.setattr(pacing, "_MAX_PAUSE", LATE)


def run(steps: Callable[[Pace], Coroutine[Any, Any, None]]) -> list[float]:
    """The times at which a pace woke its engine, from the end of its first read on."""
    times: list[float] = []

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(lambda: times.append(loop.time()))
        await steps(pace)
        origin = pace._ended
        await asyncio.sleep(LATE + 0.2)
        pace.stop()
        times[:] = [time - origin for time in times]

    asyncio.run(inside())
    return times


def read(pace: Pace, needed: int, missing: int = 2000) -> None:
    pace.begin_read()
    pace.end_read(needed, missing)


def test_enough_for_a_fold_causes_a_read_soon() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, 3)
        for _ in range(3):
            pace.progressed(1)

    (woken,) = run(steps)
    assert SOON - 0.001 <= woken < LATE


def test_the_last_message_of_a_stage_causes_a_read_at_once() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, needed=2, missing=3)
        for _ in range(3):
            pace.delivered()

    (woken,) = run(steps)
    assert woken < SOON / 2


def test_a_last_message_that_arrives_during_a_read_causes_another_one_at_once() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, needed=1, missing=1)
        pace.begin_read()
        pace.delivered()
        pace.end_read(needed=1, missing=1)

    times = run(steps)
    assert times
    assert max(times) < SOON / 2


@pytest.mark.parametrize("missing", [0, 1])
def test_new_members_never_cause_a_read_at_once(missing: int) -> None:
    async def steps(pace: Pace) -> None:
        read(pace, needed=1, missing=missing)
        for _ in range(100):
            pace.progressed(1)

    (woken,) = run(steps)
    assert SOON - 0.001 <= woken < LATE


def test_messages_that_reads_have_seen_already_cause_few_reads_too_early() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, needed=10, missing=10)
        for missing in range(9, -1, -1):  # each read sees the message that arrives during it
            pace.begin_read()
            pace.delivered()
            pace.end_read(needed=max(1, missing), missing=missing)

    assert sum(time < SOON / 2 for time in run(steps)) == 4


def test_progress_that_allows_no_action_waits() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, 3)
        pace.progressed(1)
        pace.progressed(1)

    (woken,) = run(steps)
    assert woken >= LATE - 0.001


def test_an_unknown_number_counts_as_enough() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, 1000)
        pace.progressed(inf)

    (woken,) = run(steps)
    assert SOON - 0.001 <= woken < LATE


def test_what_is_sent_during_a_read_is_not_lost() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, 2)
        pace.begin_read()
        pace.progressed(1)
        pace.end_read(1, 2000)  # read before the last client sent its message

    assert run(steps)[-1] < LATE


def test_nobody_sends_anything() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, 2)

    assert run(steps) == []


def test_a_pace_that_was_stopped_wakes_nobody() -> None:
    async def steps(pace: Pace) -> None:
        read(pace, 2)
        pace.progressed(2)
        pace.stop()

    assert run(steps) == []
