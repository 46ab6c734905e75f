"""The thread that commits: calls in order, in their caller's context, and none is lost when the server stops."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from aggregator_service.storage.writer_thread import WriterThread

NAME: ContextVar[str] = ContextVar("name", default="nobody")


def test_calls_are_executed_in_order_in_one_other_thread() -> None:
    writer, done = WriterThread(), list[tuple[int, str]]()

    def note(number: int) -> None:
        done.append((number, threading.current_thread().name))

    async def five() -> None:
        await asyncio.gather(*(writer.run(note, number) for number in range(5)))

    asyncio.run(five())
    writer.close()
    assert done == [(number, "writer") for number in range(5)]


def test_a_call_has_the_context_of_its_caller() -> None:
    writer, seen = WriterThread(), list[str]()

    async def named() -> None:
        NAME.set("request")
        await writer.run(lambda _: seen.append(NAME.get()), None)

    asyncio.run(named())
    writer.close()
    assert (seen, NAME.get()) == (["request"], "nobody")


def test_what_a_call_raises_reaches_its_caller_only() -> None:
    writer = WriterThread()

    def fail(_: object) -> None:
        raise LookupError("no row")

    async def twice() -> str:
        with pytest.raises(LookupError, match="no row"):
            await writer.run(fail, None)
        await writer.run(lambda _: None, None)
        return "the thread goes on"

    assert asyncio.run(twice())
    writer.close()


def test_a_caller_that_is_cancelled_waits_for_the_end_of_its_call() -> None:
    """Otherwise the database could be closed during a commit."""
    writer, begun, go_on, ended = WriterThread(), threading.Event(), threading.Event(), list[bool]()

    def slow(_: object) -> None:
        begun.set()
        assert go_on.wait(30)
        ended.append(True)

    async def cancelled() -> None:
        call = asyncio.create_task(writer.run(slow, None))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.sleep(0.01)
        assert not call.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended == [True]

    asyncio.run(cancelled())
    writer.close()


def test_close_waits_and_the_thread_starts_again_when_needed() -> None:
    writer, threads = WriterThread(), list[threading.Thread]()
    writer.close()  # never started
    for _ in range(2):
        asyncio.run(writer.run(lambda _: threads.append(threading.current_thread()), None))
        writer.close()
    assert threads[0] is not threads[1]
    assert not any(thread.is_alive() for thread in threads)


def test_a_call_whose_event_loop_is_closed_is_executed_all_the_same() -> None:
    writer, begun, go_on, done = WriterThread(), threading.Event(), threading.Event(), list[int]()

    def first(_: object) -> None:
        begun.set()
        assert go_on.wait(30)

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        for work, argument in ((first, 0), (done.append, 1)):
            call = writer.run(work, argument)
            loop.create_task(call)
        await asyncio.to_thread(begun.wait)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    calls = asyncio.all_tasks(loop)
    loop.close()
    go_on.set()
    writer.close()
    assert done == [1]
    for call in calls:  # they belong to the closed loop and will never end
        call._log_destroy_pending = False  # type: ignore[attr-defined]
