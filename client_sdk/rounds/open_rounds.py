"""Rounds of an `arrays` task as a loop of the application: `for round in task.rounds()`.

The client's part in the task runs in a thread. The thread and the loop take turns: the thread waits while the
application trains, and the loop waits for a round, or for its contribution to be delivered. So the application's code
and the SDK's never run at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread

from client_sdk.errors import RoundLost
from client_sdk.rounds.events import Event, Progress, RoundMissed, RoundReport
from client_sdk.rounds.member import Stop
from client_sdk.training.arrays import ArraysRound, Trainer
from protocols.recipes.arrays.update import Contribution, Update

__all__ = [
    "AsyncOpenRound",
    "AsyncRun",
    "OpenRound",
    "Run",
    "async_open_rounds",
    "open_rounds",
]


Run = Callable[[Trainer, Progress, Stop], list[RoundReport]]
"""Takes part in a task until it ends: calls a trainer for each round and a callback for each event."""
_Given = tuple[Contribution, float | None]


class OpenRound(ArraysRound):
    """A round that waits for this client's update: train on `arrays()`, then call `contribute`."""

    def __init__(self, asked: ArraysRound, turns: _Turns) -> None:
        super().__init__(asked._recipe, asked.number, asked._state)
        self._turns = turns

    def contribute(self, update: Update, weight: float | None = None) -> RoundReport:  # type: ignore[override]
        """Seal and send this client's update; return the report once it is delivered.

        See `ArraysRound.contribute` for the update and its errors, after which another update may be given. Raises
        `RoundLost` if the round ended first, or was given an update already, and what `Participant.take_part` raises.
        """
        made = self._checked(update, weight)
        self._give(made, weight)
        return self._turns.deliver(self, (made, weight))


class _Ended:
    """The client's part in the task has ended: with an error, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Turns:
    """The two sides of a loop. Methods of the thread: `train`, `tell` and `serve`. The others are the loop's."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._to_loop: SimpleQueue[OpenRound | RoundReport | RoundMissed | _Ended] = SimpleQueue()
        self._to_thread: SimpleQueue[_Given | None] = SimpleQueue()
        self._stopped = False
        self._asked: int | None = None  # the round that the loop was given and that has no outcome yet
        self._open: OpenRound | None = None
        self._owes_turn = False

    # --- the thread ----------------------------------------------------------------------------------------------

    def serve(self, run: Run) -> None:
        try:
            run(self.train, self.tell, lambda: self._stopped)
        except BaseException as error:  # raised again in the loop
            self._to_loop.put(_Ended(error))
        else:
            self._to_loop.put(_Ended(None))

    def train(self, asked: ArraysRound) -> None:
        """Let the loop train; without an update of the loop, none is given."""
        if self._stopped:
            return
        self._asked = asked.number
        self._to_loop.put(OpenRound(asked, self))
        given = self._to_thread.get()
        if given is not None:
            asked._give(*given)

    def tell(self, event: Event) -> None:
        """Pass an event on; after the outcome of the loop's round, wait until the loop asks for the next one."""
        if self._progress:
            self._progress(event)
        if isinstance(event, RoundReport | RoundMissed) and event.round == self._asked:
            self._asked = None
            self._to_loop.put(event)
            if not self._stopped:
                self._to_thread.get()

    # --- the loop ------------------------------------------------------------------------------------------------

    def next_round(self) -> OpenRound | None:
        """Return the next round that asks this client, None when the task has ended."""
        if self._open is not None:  # the application went on without contributing
            self._to_thread.put(None)
            if isinstance(self._outcome(), _Ended):
                return None
        if self._owes_turn:
            self._owes_turn = False
            self._to_thread.put(None)
        found = self._to_loop.get()
        if isinstance(found, OpenRound):
            self._open = found
            return found
        if isinstance(found, _Ended) and found.error is not None:
            raise found.error
        return None

    def deliver(self, round_: OpenRound, given: _Given) -> RoundReport:
        if round_ is not self._open:
            raise RoundLost(f"round {round_.number} is over for this client")
        self._to_thread.put(given)
        outcome = self._outcome()
        if isinstance(outcome, RoundReport):
            return outcome
        if isinstance(outcome, RoundMissed):
            raise RoundLost(outcome.reason)
        raise RoundLost("this client's part in the task has ended")

    def _outcome(self) -> RoundReport | RoundMissed | _Ended:
        found = self._to_loop.get()
        self._open = None
        if isinstance(found, OpenRound):
            raise RuntimeError("a round opened before the one before had an outcome")
        if isinstance(found, _Ended):
            if found.error is not None:
                raise found.error
            self._to_loop.put(found)  # the loop reads it again, and ends
        else:
            self._owes_turn = True
        return found

    def stop(self) -> None:
        """Let the thread end: at once if it waits for the loop, otherwise after its current poll."""
        self._stopped = True
        for _ in range(2):
            self._to_thread.put(None)


@contextmanager
def _turns(run: Run, progress: Progress | None) -> Iterator[_Turns]:
    turns = _Turns(progress)
    thread = Thread(target=turns.serve, args=(run,), name="hushrec rounds", daemon=True)
    thread.start()
    try:
        yield turns
    finally:
        turns.stop()
        thread.join()


def open_rounds(run: Run, progress: Progress | None) -> Iterator[OpenRound]:
    """Yield each round that asks this client until the task ends; see `Participant.rounds`."""
    with _turns(run, progress) as turns:
        while (found := turns.next_round()) is not None:
            yield found


# --- rounds of an `arrays` task as a loop on an event loop: `async for round in task.rounds()` -----------------------

AsyncRun = Callable[[Trainer, Progress, ThreadPoolExecutor], Awaitable[list[RoundReport]]]
"""Takes part in a task until it ends: calls a trainer, in a thread, for each round and a callback for each event."""


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
