"""Bodies of vectors: streamed to a file and hashed as they arrive, of exactly the length that was announced.

Nothing here knows what the bytes mean, and never more than 64 KiB of a body is in memory.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
    "file_digest",
    "map_file",
    "receive_body",
    "receive_small_body",
    "repr_digest",
]

_BUFFER: Final = 64 * 1024
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
    return _digest_of(request, "Content-Digest")


def repr_digest(request: Request) -> str:
    """The SHA-256 (hex) of the whole representation, from Repr-Digest (RFC 9530)."""
    return _digest_of(request, "Repr-Digest")


def _digest_of(request: Request, name: str) -> str:
    found = _SHA256.search(request.headers.get(name, ""))
    if found is None:
        raise Problem("bad-digest", f"a header of the form {name}: sha-256=:<base64>: is needed")
    try:
        return base64.b64decode(found.group(1), validate=True).hex()
    except binascii.Error:
        raise Problem("bad-digest", f"the header {name} is not well-formed") from None


def digest_header(digest: str) -> str:
    """A SHA-256 (hex) as the value of Content-Digest."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"


@dataclass
class _Sink:
    """The file that a body is written to, and the running digest."""

    path: Path
    start: int

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Only the first chunk makes the file: when a later one finds none, the upload it belongs to is over.
        create = os.O_CREAT if self.start == 0 else 0
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._file.truncate(self.start)  # what an earlier, unverified chunk may have left behind
        self._file.seek(self.start)
        self._state = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        self._state.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]

    def finish(self) -> str:
        os.fsync(self._file.fileno())
        return self._state.hexdigest()

    def close(self) -> None:
        self._file.close()


async def receive_body(
    request: Request, settings: Settings, path: Path, length: int, digest: str, *, start: int = 0
) -> None:
    """Append the body to `path` at `start`, durably.

    Raises a problem unless exactly `length` bytes with SHA-256 `digest` arrive, no pause being longer than
    `body_idle_seconds` and the whole not slower than `min_upload_rate`. The file is then cut back to `start`, or
    removed when that is 0. `FileNotFoundError` when the bytes before `start` are gone.
    """
    sink = await run_in_threadpool(_Sink, path, start)
    try:
        await _pour(request, settings, sink.write, length)
        if not hmac.compare_digest(await run_in_threadpool(sink.finish), digest):
            raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
    except BaseException:
        sink.close()
        _cut_back(path, start)
        raise
    sink.close()


def _cut_back(path: Path, start: int) -> None:
    if start == 0:
        path.unlink(missing_ok=True)
        return
    with suppress(FileNotFoundError):  # the round ended meanwhile, and took the file along
        os.truncate(path, start)


async def receive_small_body(request: Request, settings: Settings, length: int, digest: str) -> bytes:
    """A body of at most a few hundred KiB, in memory; the same problems as `receive_body`."""
    body = bytearray()
    await _pour(request, settings, body.extend, length)
    if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest):
        raise Problem("bad-digest", "the SHA-256 of the body is not the one that was announced")
    return bytes(body)


async def _pour(request: Request, settings: Settings, write: Callable[[bytes], None], length: int) -> None:
    buffer = bytearray()
    received = 0
    try:
        async with asyncio.timeout(settings.body_idle_seconds + length / settings.min_upload_rate):
            more = True
            while more:
                message = await asyncio.wait_for(request.receive(), settings.body_idle_seconds)
                if message["type"] != "http.request":
                    raise Problem("body-too-short", f"the connection closed after {received} of {length} bytes")
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                received += len(chunk)
                if received > length:
                    raise Problem("body-too-long", f"the body may have {length} bytes", expected_bytes=length)
                buffer += chunk
                if len(buffer) >= _BUFFER:
                    await run_in_threadpool(write, bytes(buffer))
                    buffer.clear()
    except TimeoutError:
        raise Problem("upload-timeout", f"the body stopped arriving after {received} of {length} bytes") from None
    if received < length:
        raise Problem("body-too-short", f"the body ended after {received} of {length} bytes", expected_bytes=length)
    await run_in_threadpool(write, bytes(buffer))


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_file(path: Path) -> memoryview:
    """A file's bytes without reading them into memory; the mapping goes when nothing refers to it any more."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
