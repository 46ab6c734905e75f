"""When the engine reads a task again: soon after something was sent, and seldom where a read takes long."""

from __future__ import annotations

import asyncio

import pytest

from aggregator_service.rounds import engine
from aggregator_service.rounds.engine import Debounce


def calls(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a debounce has called after each of these pauses in seconds; before each, 100 messages are sent."""
    monkeypatch.setattr(engine, "_MIN_PAUSE", 0.1)
    called, counts = list[int](), list[int]()

    async def inside() -> None:
        def call() -> None:
            called.append(1)
            made.worked(0.0)

        made = Debounce(call)
        for pause in pauses:
            for _ in range(100):
                made.soon()
            await asyncio.sleep(pause)
            counts.append(len(called))

    asyncio.run(inside())
    return counts


def test_messages_that_arrive_together_cause_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls([0.05], monkeypatch) == [1]


def test_a_message_soon_after_a_read_is_read_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls([0.01, 2.0], monkeypatch)[-1] == 2
    assert calls([0.01, 0.0], monkeypatch) == [1, 1]


def test_a_debounce_that_was_stopped_calls_nobody() -> None:
    called = list[int]()

    async def inside() -> None:
        made = Debounce(lambda: called.append(1))
        made.soon()
        made.stop()
        await asyncio.sleep(0.1)

    asyncio.run(inside())
    assert called == []
