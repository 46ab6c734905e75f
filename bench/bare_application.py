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
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import NamedTemporaryFile, TemporaryDirectory
from types import TracebackType
from typing import Self

import uvicorn
from fastapi import FastAPI, Request

__all__ = ["Bare", "app"]

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


class Bare:
    """The bare server in its own process. It is ready when the constructor returns.

    Raises `SystemExit` if it does not accept connections within 60 s.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder = TemporaryDirectory()
        command = [sys.executable, "-m", "bench.bare_application", str(self.port), self._folder.name]
        self._process = Popen(command, cwd=Path(__file__).parents[1], stdout=DEVNULL, stderr=DEVNULL)
        for _ in range(1200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        self.close()
        raise SystemExit("the bare server did not accept connections within 60 s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Terminate the process, wait for its end, and remove the folder."""
        with self._folder:
            self._process.terminate()
            self._process.wait(timeout=30)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    app.state.folder = sys.argv[2]
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), http="h11", log_level="warning", access_log=False)
