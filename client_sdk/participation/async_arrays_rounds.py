"""Rounds of an `arrays` task as a loop on an event loop: `async for round in task.rounds()`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from client_sdk.errors import RoundLost
from client_sdk.participation.events import Event, Progress, RoundMissed, RoundReport
from client_sdk.training.arrays import ArraysRound, Trainer
from protocols.recipes.arrays.update import Contribution, Update

__all__ = ["AsyncOpenRound", "AsyncRun", "async_open_rounds"]

AsyncRun = Callable[[Trainer, Progress, ThreadPoolExecutor], Awaitable[list[RoundReport]]]
"""Takes part in a task until it ends: calls a trainer, in a thread, for each round and a callback for each event."""
_Given = tuple[Contribution, float | None]


class AsyncOpenRound(ArraysRound):
    """A round that waits for this client's update: train on `arrays()`, then await `contribute`."""

    def __init__(self, asked: ArraysRound, given: Future[_Given | None]) -> None:
        super().__init__(asked._recipe, asked.number, asked._state)
        self._given = given
        self._outcome: asyncio.Future[RoundReport | RoundMissed] = asyncio.get_running_loop().create_future()

    async def contribute(self, update: Update, weight: float | None = None) -> RoundReport:  # type: ignore[override]
        """See `OpenRound.contribute`."""
        made = self._checked(update, weight)
        if self._given.done():
            raise RoundLost(f"round {self.number} is over for this client")
        self._give(made, weight)
        self._given.set_result((made, weight))
        outcome = await self._outcome
        if isinstance(outcome, RoundMissed):
            raise RoundLost(outcome.reason)
        return outcome

    def end(self, outcome: RoundReport | RoundMissed) -> None:
        """Set what became of the round."""
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def decline(self) -> None:
        """Give no update, unless one was given."""
        if not self._given.done():
            self._given.set_result(None)


async def async_open_rounds(run: AsyncRun, progress: Progress | None) -> AsyncIterator[AsyncOpenRound]:
    """Yield each round that asks this client until the task ends; see `AsyncParticipant.rounds`."""
    loop, found = asyncio.get_running_loop(), asyncio.Queue[AsyncOpenRound | None]()
    current: AsyncOpenRound | None = None

    def ask(asked: ArraysRound, given: Future[_Given | None]) -> None:
        nonlocal current
        current = AsyncOpenRound(asked, given)
        found.put_nowait(current)

    def train(asked: ArraysRound) -> None:  # in a thread of its own
        given: Future[_Given | None] = Future()
        loop.call_soon_threadsafe(ask, asked, given)
        made = given.result()
        if made is not None:
            asked._give(*made)

    def tell(event: Event) -> None:  # on the event loop
        if progress:
            progress(event)
        if isinstance(event, RoundReport | RoundMissed) and current is not None and event.round == current.number:
            current.end(event)

    async def until_the_end(threads: ThreadPoolExecutor) -> None:
        reason = "this client's part in the task has ended"
        try:
            await run(train, tell, threads)
        except Exception as error:
            reason = str(error)
            raise
        finally:
            found.put_nowait(None)
            if current is not None:
                current.end(RoundMissed(current.number, reason))

    threads = ThreadPoolExecutor(1, "hushrec rounds")
    part = asyncio.create_task(until_the_end(threads))
    try:
        while (asked := await found.get()) is not None:
            yield asked
            asked.decline()
        await part
    finally:
        if current is not None:
            current.decline()
        part.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await part
        threads.shutdown(wait=False)
