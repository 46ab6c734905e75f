"""Lookups of requests: in threads of their own, and none waits behind others for a database that does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from contextvars import ContextVar
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from aggregator_service.storage.lookups import Lookups

NAME: ContextVar[str] = ContextVar("name", default="nobody")


def with_lookups(work: Callable[[Lookups], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        with closing(Lookups()) as lookups:
            return await work(lookups)

    return asyncio.run(run())


def unanswered() -> None:
    raise OperationalError("SELECT", {}, OSError("connection refused"))


def test_a_lookup_runs_in_a_thread_with_the_context_of_its_request() -> None:
    async def work(lookups: Lookups) -> tuple[str, str]:
        NAME.set("ann")
        return await lookups.run(lambda: (NAME.get(), threading.current_thread().name))

    name, thread = with_lookups(work)
    assert (name, thread.startswith("lookup")) == ("ann", True)


def test_what_a_lookup_raises_is_its_own() -> None:
    async def work(lookups: Lookups) -> list[Any]:
        lookups_made = (lookups.run(lambda: 1 // 0), lookups.run(lambda: 2))
        return await asyncio.gather(*lookups_made, return_exceptions=True)

    failed, found = with_lookups(work)
    assert (type(failed), found) == (ZeroDivisionError, 2)


def test_those_that_wait_get_the_answer_of_one_that_the_database_did_not_answer() -> None:
    """Later ones ask again, and what the database answers clears it."""
    asked = list[str]()
    began, go_on = threading.Barrier(3), threading.Event()

    def stalled() -> None:
        began.wait()
        go_on.wait()
        unanswered()

    async def work(lookups: Lookups) -> list[Any]:
        stalling = [asyncio.ensure_future(lookups.run(stalled)) for _ in range(2)]
        await asyncio.to_thread(began.wait)
        waiting = [asyncio.ensure_future(lookups.run(lambda: asked.append("waiting"))) for _ in range(5)]
        await asyncio.sleep(0)
        go_on.set()
        found = await asyncio.gather(*stalling, *waiting, return_exceptions=True)
        await lookups.run(lambda: asked.append("later"))
        return found

    assert {type(each) for each in with_lookups(work)} == {OperationalError}
    assert asked == ["later"]


def test_closing_drops_those_that_wait() -> None:
    began, go_on = threading.Barrier(3), threading.Event()

    def stalled() -> None:
        began.wait()
        go_on.wait()

    async def run() -> list[Any]:
        lookups = Lookups()
        running = [asyncio.ensure_future(lookups.run(stalled)) for _ in range(2)]
        await asyncio.to_thread(began.wait)
        waiting = asyncio.ensure_future(lookups.run(lambda: pytest.fail("it was dropped")))
        await asyncio.sleep(0)
        closing_ = asyncio.create_task(asyncio.to_thread(lookups.close))
        await asyncio.sleep(0.05)
        go_on.set()
        await closing_
        return await asyncio.gather(*running, waiting, return_exceptions=True)

    assert [type(each) for each in asyncio.run(run())] == [type(None), type(None), asyncio.CancelledError]
