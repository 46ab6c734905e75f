"""Receive request bodies: vectors into files, small messages into memory.

A body is hashed while it arrives and has exactly the announced length. Bodies of up to 8 MiB are held in memory as a
whole while few arrive at once; with hundreds at once, 128 KiB of each are in memory (`buffer_pool`).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_service.http.short_cycle import whole_body
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.uploads.body_reader import BodyReader, open_body, stopped, too_long, too_short
from aggregator_service.uploads.received_body import ReceivedBody, check_digest

__all__ = ["receive_body", "receive_small_body", "stream_body"]


@asynccontextmanager
async def stream_body(
    services: Services, request: Request, path: Path, length: int, digest: str, *, start: int = 0
) -> AsyncIterator[ReceivedBody]:
    """Receive a body of `length` bytes; inside the block it can be verified, and persisted in the new file `path`.

    start: bytes to leave free at the beginning of the file. digest: the announced SHA-256 (hex).

    Raises `Problem` body-too-short or body-too-long for another length, and upload-timeout when a pause is longer than
    the setting `body_idle_seconds` or the whole is slower than `min_upload_rate`. No file is left when it raises, or
    when the block does.
    """
    body = ReceivedBody(path, start, digest)
    try:
        with services.buffers.lend(length) as buffers:
            try:
                async with open_body(request, services.settings, length) as reader:
                    await _read_all(reader, buffers, body)
                yield body
            finally:
                body.close()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


async def receive_body(services: Services, request: Request, path: Path, length: int, digest: str) -> None:
    """Write a body to the new file `path` and sync it. Arguments and errors as in `stream_body`, and bad-digest."""
    async with stream_body(services, request, path, length, digest) as body:
        await run_in_threadpool(body.persist)


async def receive_small_body(services: Services, request: Request, length: int, digest: str) -> bytes:
    """Return a body of at most a few hundred KiB. Raises the same problems as `receive_body`.

    Most have been received with the headers (`http.short_cycle`) or arrive in a single ASGI message.
    """
    body: bytes | bytearray | None = whole_body(request)
    if body is None:
        body = await _read_messages(request, services.settings, length)
    if len(body) < length:
        raise too_short(len(body), length)
    if len(body) > length:
        raise too_long(length)
    check_digest(hashlib.sha256(body).hexdigest(), digest)
    return bytes(body)


async def _read_messages(request: Request, settings: Settings, length: int) -> bytearray:
    """Return the ASGI messages of a body, up to the first one with which it is longer than `length`.

    Raises `Problem` upload-timeout as `open_body` does.
    """
    body = bytearray()
    try:
        await _read_in_time(request, settings, length, body)
    except TimeoutError:
        raise stopped(len(body), length) from None
    return body


async def _read_in_time(request: Request, settings: Settings, length: int, body: bytearray) -> None:
    idle, now = settings.body_idle_seconds, asyncio.get_running_loop().time
    last = now() + idle + length / settings.min_upload_rate
    async with asyncio.timeout(idle) as pause:
        while len(body) <= length:
            message = await request.receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                return
            pause.reschedule(min(last, now() + idle))


async def _read_all(reader: BodyReader, buffers: Sequence[memoryview], body: ReceivedBody) -> None:
    """Read a body through the buffers: one is written in a thread while the other one fills. The last stays unwritten.

    No thread uses a buffer any more when this returns or raises.
    """
    writing: asyncio.Task[None] | None = None
    try:
        for turn in itertools.count():
            view = buffers[turn % len(buffers)][: reader.length - reader.received]
            await reader.read_into(view)
            if writing is not None:
                await writing
            if reader.received == reader.length:
                body.end_with(view)
                return
            writing = asyncio.create_task(run_in_threadpool(body.append, view))
    finally:
        if writing is not None:
            await asyncio.gather(writing, return_exceptions=True)
