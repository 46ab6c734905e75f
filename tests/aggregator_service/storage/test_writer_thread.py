"""The thread that commits: calls in order, each with its end in the event loop, and none is lost at the stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from aggregator_service.storage.writer_thread import WriterThread


async def executed(writer: WriterThread, work: Callable[[], None]) -> None:
    """Return at the end of `work` in the thread; raise what it raises."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(failure: Exception | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    writer.submit(work, end)
    await future


def test_calls_are_executed_in_order_in_one_other_thread() -> None:
    writer, done = WriterThread(), list[tuple[int, str]]()

    def note(number: int) -> Callable[[], None]:
        return lambda: done.append((number, threading.current_thread().name))

    async def five() -> None:
        await asyncio.gather(*(executed(writer, note(number)) for number in range(5)))

    asyncio.run(five())
    writer.close()
    assert done == [(number, "writer") for number in range(5)]


def test_what_a_call_raises_reaches_its_own_end_only() -> None:
    writer, seen = WriterThread(), list[str]()

    def fail() -> None:
        raise LookupError("no row")

    async def twice() -> None:
        results = await asyncio.gather(
            executed(writer, fail), executed(writer, lambda: seen.append("goes on")), return_exceptions=True
        )
        assert [repr(one) for one in results] == ["LookupError('no row')", "None"]

    asyncio.run(twice())
    writer.close()
    assert seen == ["goes on"]


def test_close_waits_and_the_thread_starts_again_when_needed() -> None:
    writer, threads = WriterThread(), list[threading.Thread]()
    writer.close()  # never started
    for _ in range(2):
        asyncio.run(executed(writer, lambda: threads.append(threading.current_thread())))
        writer.close()
    assert threads[0] is not threads[1]
    assert not any(thread.is_alive() for thread in threads)


def test_calls_whose_event_loop_is_closed_are_executed_before_close_returns() -> None:
    """The database is closed after that: a commit in progress has ended."""
    writer, begun, go_on = WriterThread(), threading.Event(), threading.Event()
    done, ended = list[int](), list[Exception | None]()

    def first() -> None:
        begun.set()
        assert go_on.wait(30)
        done.append(0)

    async def leave() -> None:
        for work in (first, lambda: done.append(1)):
            writer.submit(work, ended.append)
        await asyncio.to_thread(begun.wait)

    asyncio.run(leave())
    threading.Timer(0.05, go_on.set).start()
    writer.close()
    assert (done, ended) == ([0, 1], [])
