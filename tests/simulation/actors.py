"""Coroutines that replace threads and worker processes, and continue only when the driver resumes them.

Where the service gives work to a thread or a worker process, the coroutine pauses until the driver resumes it. So the
driver alone determines the order of events, and a process can die between any two of them.
"""

from __future__ import annotations

import asyncio
import base64
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

import pytest

from aggregator_service.access import principals
from aggregator_service.clock import Clock
from aggregator_service.compute.workers import FoldPool
from aggregator_service.rounds import differencing, disputes, openings
from aggregator_service.storage import blobs as blob_keys
from aggregator_service.storage.group_commit import GroupCommit
from tests.simulation.storage import Crash

__all__ = ["Actor", "InLinePool", "Crashable", "in_line", "without_threads"]

_SETTLED: Final = 20
"""Turns of the event loop after which a coroutine that neither pauses nor ends waits for another one."""
Outcome = TypeVar("Outcome")
_ACTOR: ContextVar[Actor] = ContextVar("actor")


class Crashable(Protocol):
    """The process of an actor; the actor ends with it."""

    alive: bool


class Actor:
    """A coroutine of a process that continues only when it is resumed. haste: how often, relative to other actors."""

    def __init__(self, name: str, process: Crashable, work: Coroutine[Any, Any, None], haste: float) -> None:
        self.name, self.process, self.at, self.haste = name, process, "start", haste
        self._gates: list[asyncio.Future[None]] = []  # several while parts of a fold are running
        self._task = asyncio.create_task(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        _ACTOR.set(self)
        try:
            await work
        except Crash:
            self.process.alive = False

    @property
    def done(self) -> bool:
        return self._task.done()

    async def pause(self, at: str) -> None:
        """Wait until the driver resumes the actor."""
        self.at, gate = at, asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        await gate

    async def go_on(self) -> None:
        """Resume the actor until its next pause or its end."""
        self.at = "waiting"
        if self._gates:
            self._gates.pop(0).set_result(None)
        await self._settle()
        if self.done:
            self._task.result()

    async def vanish(self) -> None:
        """Cancel the actor: its process died."""
        self._task.cancel()
        self._gates.clear()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether the driver can resume it; otherwise it waits for another actor (for a semaphore)."""
        return self.at == "start" or bool(self._gates)

    async def _settle(self) -> None:
        for _ in range(_SETTLED):
            if self.done or (self._gates and self.at != "waiting"):
                return
            await asyncio.sleep(0)
        if self._gates:
            self.at = "one of several parts"


async def in_line(work: Callable[..., Outcome], *args: Any, **named: Any) -> Outcome:
    """Return `work(...)`, called when the driver resumes the actor."""
    await _ACTOR.get().pause(getattr(work, "__name__", "work"))
    return work(*args, **named)


class InLinePool(FoldPool):
    """Runs jobs in the actor, with a pause between the result and its commit."""

    async def run(self, work: Callable[[Any], Outcome], job: Any) -> Outcome:
        """See `FoldPool.run`."""
        outcome = await in_line(work, job)
        await _ACTOR.get().pause(f"{work.__name__} done")
        return outcome


class _Seeded:
    """Replaces `secrets` and `os`: ids, tokens and seeds follow from the seed of the schedule."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose

    def token_hex(self, count: int) -> str:
        return self._choose.randbytes(count).hex()

    def token_urlsafe(self, count: int) -> str:
        return base64.urlsafe_b64encode(self._choose.randbytes(count)).decode()

    def urandom(self, count: int) -> bytes:
        return self._choose.randbytes(count)


@contextmanager
def without_threads(choose: random.Random, clock: Clock) -> Iterator[None]:
    """Inside the block, the service pauses for the driver instead of using threads, and draws from `choose`."""
    seeded = _Seeded(choose)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("aggregator_service.") and hasattr(module, "run_in_threadpool"):
                patch.setattr(module, "run_in_threadpool", in_line)
        for module in (blob_keys, principals):
            patch.setattr(module, "secrets", seeded)
        patch.setattr(GroupCommit, "_in_thread", lambda self, group: in_line(self._commit, group))
        patch.setattr(differencing, "os", seeded)
        for module in (openings, disputes):
            patch.setattr(module, "_RANDOM", choose)
        yield
