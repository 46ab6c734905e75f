"""The peer of bench/service.py: the same uvicorn and FastAPI without the service.

    python -m bench.service_parts.bare PORT FOLDER

Same protocol (httptools), same loop (uvloop), one process, no access log. `GET /bare` answers with a small pydantic
model, `PUT /discard` reads a body and discards it. Two more routes add the work that a service cannot avoid:
`GET /checked` verifies one signature, `PUT /durable` hashes the body, verifies one signature and commits the body to a
database in FOLDER before it answers.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import psutil
import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel

from bench.service_parts.floor import DurableStore, SignedMessage

__all__ = ["Bare", "Small", "app"]


class Small(BaseModel):
    """A model of about the size of a client's view of a round."""

    number: int = 1
    state: str = "collecting"
    seconds_left: float = 30.0
    in_cohort: bool = True
    contributed: bool = False


app = FastAPI()
signed = SignedMessage()


@app.get("/bare")
async def bare() -> Small:
    """Answer with the model's defaults."""
    return Small()


@app.put("/discard", status_code=201)
async def discard(request: Request) -> Small:
    """Read the request body, discard it, and answer with the model's defaults."""
    async for _ in request.stream():
        pass
    return Small()


@app.get("/checked")
async def checked() -> Small:
    """Verify one signature, and answer as `/bare`."""
    signed.verify()
    return Small()


@app.put("/durable", status_code=201)
async def durable(request: Request) -> Small:
    """Hash the request body, verify one signature, store the body durably, and answer as `/discard`."""
    body = await request.body()
    digest = hashlib.sha256(body).hexdigest()
    signed.verify()
    await request.app.state.store.store(body, digest)
    return Small()


class Bare:
    """The bare server in its own process. It is ready when the constructor returns.

    folder: where the server stores the bodies of `/durable`; it is removed at the end.

    Raises `SystemExit` if it does not accept connections within 60 s.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._folder = TemporaryDirectory()
        self.folder = Path(self._folder.name)
        command = [sys.executable, "-m", "bench.service_parts.bare", str(self.port), str(self.folder)]
        self._process = Popen(command, cwd=Path(__file__).parents[2], stdout=DEVNULL, stderr=DEVNULL)
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

    def cpu(self) -> float:
        """User and system time of the process so far, in seconds."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def close(self) -> None:
        """Terminate the process, wait for its end, and remove the folder."""
        with self._folder:
            self._process.terminate()
            self._process.wait(timeout=30)


if __name__ == "__main__":
    app.state.store = DurableStore(Path(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
