"""Packs: many bodies of one round in one blob, so that they share a sync, an object, and a deletion.

Bodies that arrive while others are written wait, and are then checked and written together, in one thread: each caller
gets its place only when its bytes are durable. A row names the blob, where its body starts, and its length. A pack
holds bodies of one round and is written by one process: what an interrupted write left in it, no row names. The pack is
deleted with the contributions of its round.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Final, TypeVar

from aggregator_service.storage.blobs import BlobStore, Pack, new_key

T = TypeVar("T")
_FULL: Final = 32 * 1024 * 1024
"""A pack of so many bytes takes no more: it has at most 64 MiB, but for one body that is longer."""
_AT_ONCE: Final = 32 * 1024 * 1024
"""Bytes of bodies that are written together; of one that is longer, all."""
_OPEN_SECONDS: Final = 3600.0
"""A pack takes bodies for so long. `storage.stores` keeps blobs that no row names for longer."""
_MOST_OPEN: Final = 16
_LOOK_SECONDS: Final = 60.0
"""Between two looks at the open packs: the space of one that was deleted is free once it is closed."""


@dataclass(frozen=True)
class Place:
    """Where a body is: in the blob `key` from byte `start` on."""

    key: str
    start: int


@dataclass(eq=False)
class _Body:
    """A body that waits to be read and written."""

    round: tuple[str, int]
    """Task id and number."""
    length: int
    read: Callable[[], memoryview]
    future: asyncio.Future[Place]
    context: Context

    def answer(self, outcome: Place | BaseException) -> None:
        """Resume the caller, unless its request was cancelled."""
        if self.future.done():
            return
        if isinstance(outcome, Place):
            self.future.set_result(outcome)
        elif isinstance(outcome, asyncio.CancelledError):
            self.future.cancel()
        else:
            self.future.set_exception(outcome)


@dataclass
class _Open:
    key: str
    pack: Pack
    since: float
    size: int = 0


class Packs:
    """Writes bodies to packs of `blobs`, in a thread of its own. Use it in one event loop.

    monotonic: returns the time in seconds.
    """

    def __init__(self, blobs: BlobStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._blobs, self._monotonic = blobs, monotonic
        self._waiting: list[_Body] = []
        self._enough = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._open: dict[tuple[str, int], _Open] = {}
        self._look: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packs")

    async def append(self, task_id: str, number: int, length: int, read: Callable[[], memoryview]) -> Place:
        """Store the body of a contribution or message to round `number` durably; return where it is.

        read: checks and returns the body, which does not change any more; called in the thread that writes. length:
        bytes that it should have. Raises what `read` raises, and `BlobsUnavailableError`.
        """
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Body((task_id, number), length, read, future, copy_context()))
        if sum(waiting.length for waiting in self._waiting) >= _AT_ONCE:
            self._enough.set()
        if self._writing is None:
            self._begin()
        return await future

    def close(self) -> None:
        """Wait for what is being written, and close all packs."""
        if self._look is not None:
            self._look.cancel()
        self._thread.shutdown()
        for opened in self._open.values():
            opened.pack.close()
        self._open.clear()

    def _begin(self) -> None:
        """Start a task that writes a group; its spans belong to the request that has waited longest."""
        context = self._waiting[0].context.copy()
        self._writing = asyncio.get_running_loop().create_task(self._write_waiting(), context=context)

    async def _write_waiting(self) -> None:
        if self._blobs.gather_seconds:  # each write makes an object: wait for more bodies
            await self._gather(self._blobs.gather_seconds)
        group = self._take()
        try:
            written = await self._in_thread(group)
        except BaseException as error:
            written = [error] * len(group)
        for one, outcome in zip(group, written, strict=True):
            one.answer(outcome)
        self._writing = None
        if self._waiting:
            self._begin()
        self._look_later()

    def _look_later(self) -> None:
        if self._open and self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_now)

    def _look_now(self) -> None:
        looking = asyncio.get_running_loop().run_in_executor(self._thread, self._close_old)
        looking.add_done_callback(self._looked)

    def _looked(self, _: object) -> None:
        self._look = None
        self._look_later()

    async def _gather(self, seconds: float) -> None:
        self._enough = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._enough.wait()
        except TimeoutError:
            return

    def _take(self) -> list[_Body]:
        """Return the bodies to be written next: the oldest, up to `_AT_ONCE` bytes."""
        size = count = 0
        while count < len(self._waiting) and (not count or size + self._waiting[count].length <= _AT_ONCE):
            size += self._waiting[count].length
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _in_thread(self, group: list[_Body]) -> list[Place | BaseException]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, group)

    def _write(self, group: list[_Body]) -> list[Place | BaseException]:
        """Read and write a group; return for each body where it is, or why it is not stored."""
        found: dict[_Body, Place | BaseException] = {}
        of_round = defaultdict[tuple[str, int], dict[_Body, memoryview]](dict)
        for one in group:
            try:
                of_round[one.round][one] = one.context.run(one.read)
            except Exception as error:
                found[one] = error.with_traceback(None)  # which would keep this frame, with all bodies, in a cycle
        for round_, bodies in of_round.items():
            try:
                opened = self._pack_of(round_)
                starts = [opened.size]
                for body in bodies.values():
                    starts.append(starts[-1] + len(body))
                opened.pack.append(list(bodies.values()))
            except Exception as error:
                self._close(round_)  # it may end with a part of a body
                found.update((one, error.with_traceback(None)) for one in bodies)
                continue
            opened.size = starts[-1]
            found.update((one, Place(opened.key, start)) for one, start in zip(bodies, starts, strict=False))
            if opened.size >= _FULL or not opened.pack.takes_more:
                self._close(round_)
        return [found[one] for one in group]

    def _pack_of(self, round_: tuple[str, int]) -> _Open:
        """Return the open pack of a round, or a new one. Packs that took no body for longest are closed."""
        self._close_old()
        if round_ in self._open:
            opened = self._open.pop(round_)
        else:
            key = new_key("contributions", *round_)
            opened = _Open(key, self._blobs.new_pack(key), self._monotonic())
        self._open[round_] = opened  # the newest is last
        for other in list(self._open)[:-_MOST_OPEN]:
            self._close(other)
        return opened

    def _close_old(self) -> None:
        """Close packs that were deleted, or opened long ago."""
        for round_, opened in list(self._open.items()):
            if not opened.pack.takes_more or self._monotonic() - opened.since > _OPEN_SECONDS:
                self._close(round_)

    def _close(self, round_: tuple[str, int]) -> None:
        if round_ in self._open:
            self._open.pop(round_).pack.close()


_OF_ONE_WRITE: Final = 8 * 1024 * 1024
"""Bytes that are in memory while a round's handouts are written."""


def write_packs(
    blobs: BlobStore, task_id: str, number: int, bodies: Iterable[tuple[T, bytes]]
) -> Iterator[tuple[T, bytes, Place]]:
    """Write bodies that belong to a round, each with what it is of; yield both, and where it is durable then."""
    left, more = iter(bodies), True
    while more:
        group, size = list[tuple[T, bytes]](), 0
        while size < _OF_ONE_WRITE and (more := (one := next(left, None)) is not None):
            group.append(one)
            size += len(one[1])
        if group:
            key = new_key("handouts", task_id, number)
            pack, start = blobs.new_pack(key), 0
            with closing(pack):
                pack.append([memoryview(body) for _, body in group])
            for of, body in group:
                yield of, body, Place(key, start)
                start += len(body)
