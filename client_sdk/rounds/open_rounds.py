"""Rounds of an `arrays` task as a loop of the application: `for round in task.rounds()`, or `async for`.

The loop and the client's part in the task are one program: where a round needs the application's update, the program
pauses (`Turn`) and the loop's body runs. It pauses again with the outcome of the round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Generic, TypeVar

from client_sdk.errors import RoundLost
from client_sdk.rounds.events import RoundAbstained, RoundMissed, RoundReport
from client_sdk.training.arrays import ArraysRound
from protocols.recipes.arrays_update import Update

_ENDED = "this client's part in the task has ended"

T = TypeVar("T", bound=Generator[object, None, object] | AsyncIterator[object])


class _Open(ArraysRound, Generic[T]):
    """A round that waits for this client's update, once. turns: of this client's whole part in the task."""

    def __init__(self, asked: ArraysRound, turns: T) -> None:
        super().__init__(asked._recipe, asked._spec, asked._state)
        self._asked, self._turns = asked, turns
        self._is_over = False

    def _take(self, update: Update, weight: float | None) -> None:
        made = self._checked(update, weight)
        if self._is_over:
            raise RoundLost(f"round {self.number} is over for this client")
        self._give(made, weight)
        self._asked._give(made, weight)

    def close(self) -> None:
        """Take no update any more: the loop has gone on."""
        self._is_over = True


def _report(outcome: object) -> RoundReport:
    if isinstance(outcome, RoundReport):
        return outcome
    raise RoundLost(outcome.reason if isinstance(outcome, RoundMissed | RoundAbstained) else _ENDED)


class OpenRound(_Open[Generator[object, None, object]]):
    """A round that waits for this client's update: train on `arrays()`, then call `contribute`."""

    def contribute(self, update: Update, weight: float | None = None) -> RoundReport:  # type: ignore[override]
        """Seal and send this client's update; return the report once it is delivered.

        See `ArraysRound.contribute` for the update and its errors, after which another update may be given. Raises
        `RoundLost` if the round ended first, or was given an update already, and what `Task.take_part` raises.
        """
        self._take(update, weight)
        return _report(next(self._turns, None))


def open_rounds(turns: Generator[object, None, object]) -> Iterator[OpenRound]:
    """Yield each round that asks this client until the task ends; see `Task.rounds`. turns: of the whole part."""
    try:
        for turn in turns:
            if isinstance(turn, ArraysRound):
                asked = OpenRound(turn, turns)
                yield asked
                asked.close()
    finally:
        turns.close()


class AsyncOpenRound(_Open[AsyncIterator[object]]):
    """A round that waits for this client's update: train on `arrays()`, then await `contribute`."""

    async def contribute(self, update: Update, weight: float | None = None) -> RoundReport:  # type: ignore[override]
        """See `OpenRound.contribute`."""
        self._take(update, weight)
        return _report(await anext(self._turns, None))


async def async_open_rounds(turns: AsyncIterator[object]) -> AsyncIterator[AsyncOpenRound]:
    """Yield each round that asks this client until the task ends; see `AsyncTask.rounds`."""
    async for turn in turns:
        if isinstance(turn, ArraysRound):
            asked = AsyncOpenRound(turn, turns)
            yield asked
            asked.close()
