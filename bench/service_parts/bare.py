"""The peer of bench/service.py: the same uvicorn and FastAPI without the service.

    python -m bench.service_parts.bare PORT

Same protocol (httptools), same loop (uvloop), one process, no access log. `GET /bare` answers with a small pydantic
model, `PUT /discard` reads a body and discards it.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from types import TracebackType
from typing import Self

import psutil
import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel

__all__ = ["Bare", "Small", "app"]


class Small(BaseModel):
    """A model of about the size of a client's view of a round."""

    number: int = 1
    state: str = "collecting"
    seconds_left: float = 30.0
    in_cohort: bool = True
    contributed: bool = False


app = FastAPI()


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


class Bare:
    """The bare server in its own process. It is ready when the constructor returns.

    Raises `SystemExit` if it does not accept connections within 60 s.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "bench.service_parts.bare", str(self.port)]
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
        """Terminate the process and wait for its end."""
        self._process.terminate()
        self._process.wait(timeout=30)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
