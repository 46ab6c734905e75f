"""Bodies of vectors: streamed to a file and hashed as they arrive, of exactly the length that was announced.

Nothing here knows what the bytes mean. A body of a few MB is in memory as a whole as long as few arrive at once; when
hundreds do, 128 KiB of each are.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import mmap
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.uploads.body_reader import Incoming, incoming
from aggregator_service.uploads.buffer_pool import Buffers
from aggregator_service.uploads.uncached_file import NewFile

__all__ = [
    "Received",
    "file_digest",
    "map_file",
    "receive_body",
    "receive_small_body",
    "received",
]

_BUFFERS: Final = Buffers()


class Received:
    """A body that is here, and not yet durable. Its methods are for threads, one at a time."""

    def __init__(self, path: Path, start: int, digest: str) -> None:
        self._path, self._start, self._digest = path, start, digest
        self._state = hashlib.sha256()
        self._file: NewFile | None = None
        self._last = memoryview(b"")
        self._verified = False

    def verified(self) -> memoryview:
        """All of its bytes, in a buffer that is good within the block, or mapped from the file.

        `Problem` bad-digest unless they are those that were announced.
        """
        self._verify()
        if self._file is None:
            return self._last
        self._write_last()
        return map_file(self._path)[self._start :]

    def keep(self) -> None:
        """Make all of it durable; `Problem` bad-digest unless it is what was announced."""
        self._verify()
        self._write_last().sync()
        self.close()

    def append(self, view: memoryview) -> None:
        """Bytes that are not the last ones: hashed and written. There is no file before the first of them."""
        self._state.update(view)
        self._opened().append(view)

    def end_with(self, view: memoryview) -> None:
        """The last bytes, which are hashed and written later."""
        self._last = view

    def close(self) -> None:
        """Nothing is written any more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _verify(self) -> None:
        if self._verified:
            return
        self._state.update(self._last)
        if not hmac.compare_digest(self._state.hexdigest(), self._digest):
            raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
        self._verified = True

    def _write_last(self) -> NewFile:
        file, last = self._opened(), self._last
        self._last = memoryview(b"")
        file.append(last)
        return file

    def _opened(self) -> NewFile:
        if self._file is None:
            self._file = NewFile(self._path, self._start)
        return self._file


@asynccontextmanager
async def received(
    request: Request, settings: Settings, path: Path, length: int, digest: str, *, start: int = 0
) -> AsyncIterator[Received]:
    """A body, to be looked at and kept within the block: in the new file `path` then, behind `start` bytes of room.

    Raises a problem unless exactly `length` bytes arrive, no pause being longer than `body_idle_seconds` and the whole
    not slower than `min_upload_rate`. There is no file then, and none when the block raises.
    """
    body = Received(path, start, digest)
    try:
        with _BUFFERS.lend(length) as buffers:
            async with incoming(request, settings, length) as arriving:
                await _write_all_but_the_last(arriving, buffers, body)
            yield body
    except BaseException:
        body.close()
        path.unlink(missing_ok=True)
        raise


async def receive_body(request: Request, settings: Settings, path: Path, length: int, digest: str) -> None:
    """Write a body with SHA-256 `digest` to the new file `path`, durably; see `received`."""
    async with received(request, settings, path, length, digest) as body:
        await run_in_threadpool(body.keep)


async def _write_all_but_the_last(arriving: Incoming, buffers: Sequence[memoryview], body: Received) -> None:
    """Each buffer is written in a thread while the other one fills; the last one is left to be written."""
    writing: asyncio.Task[None] | None = None
    try:
        for turn in itertools.count():
            view = buffers[turn % len(buffers)][: arriving.length - arriving.received]
            await arriving.read_into(view)
            if writing is not None:
                await writing
            if arriving.received == arriving.length:
                body.end_with(view)
                return
            writing = asyncio.create_task(run_in_threadpool(body.append, view))
    finally:
        if writing is not None:  # the buffer is somebody else's afterwards
            await asyncio.gather(writing, return_exceptions=True)


async def receive_small_body(request: Request, settings: Settings, length: int, digest: str) -> bytes:
    """A body of at most a few hundred KiB, in memory; the same problems as `receive_body`."""
    taken = bytearray(length)
    async with incoming(request, settings, length) as body:
        await body.read_into(memoryview(taken))
    if not hmac.compare_digest(hashlib.sha256(taken).hexdigest(), digest):
        raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
    return bytes(taken)


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_file(path: Path) -> memoryview:
    """A file's bytes without reading them into memory; the mapping goes when nothing refers to it any more."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
