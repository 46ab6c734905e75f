"""Bodies of vectors: streamed to a file and hashed as they arrive, of exactly the length that was announced.

Nothing here knows what the bytes mean. Of each body two steps are in memory: 512 KiB each as long as few arrive at
once, 64 KiB when hundreds do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import mmap
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_service.problems import Problem
from aggregator_service.settings import Settings

__all__ = [
    "content_digest",
    "content_length",
    "digest_header",
    "digest_in",
    "file_digest",
    "map_file",
    "receive_body",
    "receive_small_body",
    "repr_digest",
]

_LARGEST_STEP: Final = 512 * 1024
_SMALLEST_STEP: Final = 64 * 1024
_GATHERED: Final = 8 * 1024 * 1024
_PIECES: Final = 256
_WRITE: Final = 64 * 1024
_DIGITS: Final = re.compile(r"^[0-9]{1,18}$")
_SHA256: Final = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/]{43}=):\s*(?=$|,|;)")


def content_length(request: Request, *, exact: int | None = None, most: int | None = None) -> int:
    """The announced length: 411 when there is none, 413 and 400 when it is not what the resource takes."""
    text = request.headers.get("content-length", "")
    if not _DIGITS.match(text) or "transfer-encoding" in request.headers:
        raise Problem("length-required", "announce the body's length in Content-Length; chunked bodies are not taken")
    length = int(text)
    limit = exact if exact is not None else most
    if limit is not None and length > limit:
        raise Problem("body-too-long", f"the body may have {limit} bytes", expected_bytes=limit)
    if exact is not None and length < exact:
        raise Problem("body-too-short", f"the body must have exactly {exact} bytes", expected_bytes=exact)
    if length == 0:
        raise Problem("body-too-short", "the body is empty")
    return length


def content_digest(request: Request) -> str:
    """The SHA-256 (hex) of the Content-Digest header (RFC 9530): 400 bad-digest when there is none."""
    return digest_in(request.headers.get("Content-Digest", ""), "Content-Digest")


def repr_digest(request: Request) -> str:
    """The SHA-256 (hex) of the whole representation, from Repr-Digest (RFC 9530)."""
    return digest_in(request.headers.get("Repr-Digest", ""), "Repr-Digest")


def digest_in(value: str, name: str) -> str:
    """The SHA-256 (hex) in the value of the field `name`: 400 bad-digest when there is none."""
    found = _SHA256.search(value)
    if found is None:
        raise Problem("bad-digest", f"a header of the form {name}: sha-256=:<base64>: is needed")
    try:
        return base64.b64decode(found.group(1), validate=True).hex()
    except binascii.Error:
        raise Problem("bad-digest", f"the header {name} is not well-formed") from None


def digest_header(digest: str) -> str:
    """A SHA-256 (hex) as the value of Content-Digest."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"


class _Sink:
    """The new file that a body is written to, with room for `start` bytes before it, and the running digest.

    Its methods are for threads, one at a time; there is no file before the first bytes.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._start = path, start
        self._descriptor: int | None = None
        self._state = hashlib.sha256()

    def write(self, chunks: Sequence[bytes]) -> int:
        """Append; the descriptor."""
        if self._descriptor is None:
            self._descriptor = self._open()
        for chunk in chunks:
            self._state.update(chunk)
        _write_all(self._descriptor, chunks)
        return self._descriptor

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        os.lseek(descriptor, self._start, os.SEEK_SET)
        return descriptor

    def finish(self, chunks: Sequence[bytes]) -> str:
        """Write the rest, make all of it durable, and tell its SHA-256 (hex)."""
        os.fsync(self.write(chunks))
        self.close()
        return self._state.hexdigest()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _write_all(descriptor: int, chunks: Sequence[bytes]) -> None:
    # Larger writes are slower, up to eight times: Linux caches each in blocks as large as the write, and large free
    # blocks are rare.
    for chunk in chunks:
        left = memoryview(chunk)
        while left:
            left = left[os.write(descriptor, left[:_WRITE]) :]


class _Steps:
    """How much of each body is gathered before it is written: less when many arrive, so that together they stay small.

    Each body holds two steps at most: one that is being written while the next one gathers.
    """

    def __init__(self) -> None:
        self._bodies = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self._bodies += 1
        try:
            yield
        finally:
            self._bodies -= 1

    @property
    def bytes(self) -> int:
        return max(_SMALLEST_STEP, min(_LARGEST_STEP, _GATHERED // max(1, self._bodies)))


_STEPS: Final = _Steps()


class _Stream:
    """Writes a body in steps: each one in a thread while the next one arrives."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink
        self._gathered: list[bytes] = []
        self._size = 0
        self._writing: asyncio.Task[int] | None = None

    async def take(self, chunk: bytes) -> None:
        self._gathered.append(chunk)
        self._size += len(chunk)
        if len(self._gathered) > _PIECES:  # of a sender that sends it byte by byte
            self._gathered = [b"".join(self._gathered)]
        if self._size >= _STEPS.bytes:
            await self.settle()
            self._writing = asyncio.create_task(run_in_threadpool(self._sink.write, self._gathered))
            self._gathered, self._size = [], 0

    async def settle(self) -> None:
        """Wait for what is being written."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def finish(self) -> str:
        """All of it is durable: its SHA-256 (hex)."""
        await self.settle()
        return await run_in_threadpool(self._sink.finish, self._gathered)


async def receive_body(
    request: Request, settings: Settings, path: Path, length: int, digest: str, *, start: int = 0
) -> None:
    """Write the body to the new file `path`, durably, and leave room for `start` bytes before it.

    Raises a problem unless exactly `length` bytes with SHA-256 `digest` arrive, no pause being longer than
    `body_idle_seconds` and the whole not slower than `min_upload_rate`. There is no file then.
    """
    sink = _Sink(path, start)
    stream = _Stream(sink)
    try:
        with _STEPS.one_more():
            await _pour(request, settings, stream.take, length)
            found = await stream.finish()
        if not hmac.compare_digest(found, digest):
            raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
    except BaseException:
        with suppress(Exception):  # what it was that failed is told already
            await stream.settle()
        sink.close()
        path.unlink(missing_ok=True)
        raise


async def receive_small_body(request: Request, settings: Settings, length: int, digest: str) -> bytes:
    """A body of at most a few hundred KiB, in memory; the same problems as `receive_body`."""
    body = bytearray()

    async def take(chunk: bytes) -> None:
        body.extend(chunk)

    await _pour(request, settings, take, length)
    if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest):
        raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
    return bytes(body)


async def _pour(request: Request, settings: Settings, take: Callable[[bytes], Awaitable[None]], length: int) -> None:
    now, idle = asyncio.get_running_loop().time, settings.body_idle_seconds
    end = now() + idle + length / settings.min_upload_rate
    received, more = 0, True
    try:
        async with asyncio.timeout_at(end) as patience:
            while more:
                patience.reschedule(min(end, now() + idle))
                message = await request.receive()
                patience.reschedule(end)  # the disk may take its time
                if message["type"] != "http.request":
                    raise Problem("body-too-short", f"the connection closed after {received} of {length} bytes")
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                received += len(chunk)
                if received > length:
                    raise Problem("body-too-long", f"the body may have {length} bytes", expected_bytes=length)
                await take(chunk)
    except TimeoutError:
        raise Problem("upload-timeout", f"the body stopped arriving after {received} of {length} bytes") from None
    if received < length:
        raise Problem("body-too-short", f"the body ended after {received} of {length} bytes", expected_bytes=length)


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_file(path: Path) -> memoryview:
    """A file's bytes without reading them into memory; the mapping goes when nothing refers to it any more."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
