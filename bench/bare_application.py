"""The peer that bench/service.py starts, no benchmark of its own: FastAPI alone on uvicorn, reading the same bodies.

    python -m bench.bare_application PORT FOLDER

`PUT /discarded` drops a body. `PUT /stored` hashes it and writes it durably to a file in FOLDER, in a thread beside
the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import NamedTemporaryFile, TemporaryDirectory

import uvicorn
from fastapi import FastAPI, Request

from bench._report import wait_for

__all__ = ["app", "bare_server"]

_AT_ONCE = 2**18

app = FastAPI()


@app.put("/discarded", status_code=201)
async def discarded(request: Request) -> int:
    """Read the request body, discard it, and return its length."""
    return sum([len(chunk) async for chunk in request.stream()])


@app.put("/stored", status_code=201)
async def stored(request: Request) -> str:
    """Write the request body to a file, durably, and return its SHA-256."""
    digest = hashlib.sha256()
    with NamedTemporaryFile(dir=request.app.state.folder) as file:

        def take(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        def end() -> None:
            file.flush()
            os.fsync(file.fileno())

        waiting, taking = bytearray(), None
        async for chunk in request.stream():
            waiting += chunk
            if len(waiting) >= _AT_ONCE:
                if taking is not None:
                    await taking
                taking, waiting = asyncio.create_task(asyncio.to_thread(take, waiting)), bytearray()
        if taking is not None:
            await taking
        await asyncio.to_thread(take, waiting)
        await asyncio.to_thread(end)
    return digest.hexdigest()


@contextmanager
def bare_server() -> Iterator[int]:
    """The bare server in its own process, ready when the block begins; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.bare_application", str(port), folder]
        process = Popen(command, cwd=Path(__file__).parents[1], stdout=DEVNULL, stderr=DEVNULL)
        try:
            wait_for(port)
            yield port
        finally:
            process.terminate()
            process.wait(timeout=30)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    app.state.folder = sys.argv[2]
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), http="h11", log_level="warning", access_log=False)
