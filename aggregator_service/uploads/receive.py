"""Receive request bodies: vectors into files, small messages into memory; and store a received file as a blob.

A body must have exactly the announced length and digest. Bodies of files are hashed, tagged and written in a thread, in
parts of at least 512 KiB, while the next part arrives: a body of any length takes about 1 MiB of memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_service.crash_points import crash_point
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore, BodyTagger, map_file
from aggregator_service.storage.database import Database
from aggregator_service.storage.stores import insert_named

Result = TypeVar("Result")
_PART: Final = 512 * 1024
"""Bytes of a part: shorter ones cost more to hand to a thread than to write (`bench/service.py`, large.ours_mb_s)."""
_MOST_CHUNKS: Final = 256
"""Chunks of a part, however short they are: each takes some memory of its own."""


class ReceivedBody:
    """A body that is hashed, tagged and written to the new file `path` as it arrives.

    A short one stays in memory until `persist`. path: the file to create. start: bytes to leave free at its beginning.
    digest: the announced SHA-256 (hex). rest: its last chunks, which `verified` and `persist` append. The methods
    block: call them in a thread, one at a time.
    """

    def __init__(self, path: Path, start: int, digest: str) -> None:
        self._path, self._start, self._digest = path, start, digest
        self._hash, self._tagger = hashlib.sha256(), BodyTagger()
        self._tag: bytes | None = None
        self._short: bytes | None = None
        self._descriptor: int | None = None
        self._lock = threading.Lock()  # a request that ends may close the file while a part is being written
        self._closed = False
        self.rest: Sequence[bytes] = ()

    def append(self, chunks: Sequence[bytes]) -> None:
        """Hash, tag and write the next chunks of the body, uncopied. Raises `OSError` when the disk fails."""
        self._count(chunks)
        self._write(chunks)

    def _count(self, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            self._hash.update(chunk)
            self._tagger.update(chunk)

    def _write(self, chunks: Sequence[bytes]) -> None:
        with self._lock:
            if self._closed:
                return
            descriptor, length = self._file(), sum(map(len, chunks))
            written = os.writev(descriptor, chunks)
            while written < length:  # the disk is almost full
                written += os.write(descriptor, memoryview(b"".join(chunks))[written:])

    def verified(self) -> memoryview:
        """Return all bytes of the body, which stay valid until the body is closed.

        Raises `Problem` bad-digest if the digest is wrong.
        """
        self._verify()
        return map_file(self._path)[self._start :] if self._short is None else memoryview(self._short)

    def persist(self) -> None:
        """Write the file to disk. Raises `Problem` bad-digest if the digest is wrong, `OSError` when the disk fails."""
        self._verify()
        if self._short is not None:
            self._write([self._short])
            self._short = None
        os.fsync(self._file())

    @property
    def tag(self) -> bytes:
        """The tag of the body (`BodyTagger`). Raises `RuntimeError` before `verified` or `persist`."""
        if self._tag is None:
            raise RuntimeError("the body is not verified yet")
        return self._tag

    def close(self) -> None:
        """Close the file, which stays; wait for what is being written."""
        with self._lock:
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _verify(self) -> None:
        if self._tag is None:
            self._count(self.rest)
            if self._descriptor is None:
                self._short = b"".join(self.rest)
            else:
                self._write(self.rest)
            _check_digest(self._hash.hexdigest(), self._digest)
            self._tag = self._tagger.finish()

    def _file(self) -> int:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
            os.lseek(self._descriptor, self._start, os.SEEK_SET)
        return self._descriptor


@asynccontextmanager
async def stream_body(
    settings: Settings, request: Request, path: Path, length: int, digest: str, *, start: int = 0
) -> AsyncIterator[ReceivedBody]:
    """Receive a body of `length` bytes into the new file `path`; inside the block it can be verified and persisted.

    start: bytes to leave free at the beginning of the file. digest: the announced SHA-256 (hex).

    Raises `Problem` body-too-short or body-too-long for another length, and upload-timeout when a pause is longer than
    the setting `body_idle_seconds` or the whole is slower than `min_upload_rate`. The file is deleted at the end of the
    block, unless `store_file` moved it into the blob store.
    """
    body = ReceivedBody(path, start, digest)
    try:
        try:
            part: list[bytes] = []
            size = 0
            writing: asyncio.Task[None] | None = None  # the part before this one
            async for chunk in _chunks(request, settings, length):
                part.append(chunk)
                size += len(chunk)
                if size >= _PART or len(part) >= _MOST_CHUNKS:
                    if writing is not None:
                        await writing
                    writing = asyncio.create_task(run_in_threadpool(body.append, part))
                    part, size = [], 0
            if writing is not None:
                await writing
            body.rest = part
            yield body
        finally:
            body.close()
    finally:
        path.unlink(missing_ok=True)


async def receive_small_body(settings: Settings, request: Request, length: int, digest: str) -> bytes:
    """Return a body of at most a few hundred KiB. Raises the same problems as `stream_body`, and bad-digest."""
    body = bytearray()
    async for chunk in _chunks(request, settings, length):
        body += chunk
    _check_digest(hashlib.sha256(body).hexdigest(), digest)
    return bytes(body)


async def _chunks(request: Request, settings: Settings, length: int) -> AsyncIterator[bytes]:
    """Yield a body of exactly `length` bytes as it arrives. Raises `Problem` as `stream_body` does."""
    received, more = 0, True
    idle, now = settings.tuning.body_idle_seconds, asyncio.get_running_loop().time
    last = now() + idle + length / settings.tuning.min_upload_rate
    try:
        while more:
            async with asyncio.timeout_at(min(last, now() + idle)):
                message = await request.receive()
            if message["type"] != "http.request":
                break  # the client has closed its connection
            chunk, more = message.get("body", b""), message.get("more_body", False)
            received += len(chunk)
            if received > length:
                raise Problem("body-too-long", f"the body may have {length} bytes", expected_bytes=length)
            yield chunk
    except TimeoutError:
        detail = f"the body stopped arriving after {received} of {length} bytes"
        raise Problem("upload-timeout", detail) from None
    if received < length:
        detail = f"the body ended after {received} of {length} bytes"
        raise Problem("body-too-short", detail, expected_bytes=length)


def _check_digest(actual: str, announced: str) -> None:
    """Raise `Problem` bad-digest unless two SHA-256 digests (hex) are equal; compares in constant time."""
    if not hmac.compare_digest(actual, announced):
        raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")


def store_file(
    database: Database,
    blobs: BlobStore,
    path: Path,
    key: str,
    insert: Callable[[Session], Result],
    is_named: Callable[[Session], bool],
) -> Result:
    """Move a received file into the blob store under `key`, and insert the row that names it; see `insert_named`.

    Call it in the block of `stream_body`, which deletes the file if the store does not take it.
    """
    blobs.adopt(path, key)
    crash_point("upload.stored-before-row")
    return insert_named(database, blobs, [key], insert, is_named)
