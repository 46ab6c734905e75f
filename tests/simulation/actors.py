"""Coroutines that go on only when they are let, in place of threads and worker processes.

Wherever the service hands work to a thread or a worker process, the coroutine stands still until the driver lets it go
on. So the driver alone decides what happens in which order, and a process can die between any two steps.
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

from aggregator_service.access import tokens
from aggregator_service.clock import Clock
from aggregator_service.compute.process_pool import FoldPool
from aggregator_service.rounds import cohorts, differencing
from aggregator_service.storage import blobs as blob_keys
from tests.simulation.storage import Crash

__all__ = ["Actor", "InLinePool", "Mortal", "in_line", "without_threads"]

_SETTLED: Final = 20
"""Turns of the event loop after which a coroutine that neither pauses nor ends waits for another one."""
Outcome = TypeVar("Outcome")
_ACTOR: ContextVar[Actor] = ContextVar("actor")


class Mortal(Protocol):
    """What an actor belongs to, and dies with."""

    alive: bool


class Actor:
    """A coroutine of a process that goes on only when it is let. `haste`: how often, compared with others."""

    def __init__(self, name: str, process: Mortal, work: Coroutine[Any, Any, None], haste: float) -> None:
        self.name, self.process, self.at, self.haste = name, process, "start", haste
        self._gates: list[asyncio.Future[None]] = []  # several, where parts of a fold are under way
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
        """Stand still until the driver comes by."""
        self.at, gate = at, asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        await gate

    async def go_on(self) -> None:
        """Run until the next pause, or to the end."""
        self.at = "waiting"
        if self._gates:
            self._gates.pop(0).set_result(None)
        await self._settle()
        if self.done:
            self._task.result()

    async def vanish(self) -> None:
        """Its process died: nothing of it goes on."""
        self._task.cancel()
        self._gates.clear()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether it stands still until it is let; otherwise it waits for another actor (for one of few places)."""
        return self.at == "start" or bool(self._gates)

    async def _settle(self) -> None:
        for _ in range(_SETTLED):
            if self.done or (self._gates and self.at != "waiting"):
                return
            await asyncio.sleep(0)
        if self._gates:
            self.at = "one of several parts"


async def in_line(work: Callable[..., Outcome], *args: Any, **named: Any) -> Outcome:
    """`work(...)` once the driver comes by."""
    await _ACTOR.get().pause(getattr(work, "__name__", "work"))
    return work(*args, **named)


class InLinePool(FoldPool):
    """Folds in line; between an outcome and its recording anything may happen."""

    async def run(self, work: Callable[[Any], Outcome], job: Any) -> Outcome:
        """See `FoldPool.run`."""
        outcome = await in_line(work, job)
        await _ACTOR.get().pause(f"{work.__name__} done")
        return outcome


class _Seeded:
    """In place of `secrets` and `os`: ids, tokens and seeds that a schedule's seed repeats."""

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
    """Within the block, the service gives way to the driver, draws from `choose`, and has no other clock."""
    seeded = _Seeded(choose)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("aggregator_service.") and hasattr(module, "run_in_threadpool"):
                patch.setattr(module, "run_in_threadpool", in_line)
        for module in (blob_keys, tokens):
            patch.setattr(module, "secrets", seeded)
        patch.setattr(differencing, "os", seeded)
        patch.setattr(cohorts, "_RANDOM", choose)
        yield
