"""A real `hushrec-server` for the benchmarks, and what it takes: resident memory and processor seconds."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, Popen
from sys import executable
from types import TracebackType
from typing import Self

import httpx
import psutil

__all__ = ["OPERATOR_TOKEN", "Server", "Watch"]

OPERATOR_TOKEN = "hro_benchmark"  # noqa: S105 - a server that lives for one benchmark on the loopback address


class Server:
    """One server process on a free port, its data in `root`; ready when the constructor returns."""

    def __init__(self, root: Path, **settings: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        own = {"HUSHREC_DATA_DIR": str(root), "HUSHREC_PORT": str(port), "HUSHREC_OPERATOR_TOKEN": OPERATOR_TOKEN}
        command = [executable, "-m", "aggregator_service.cli", "serve"]
        self._process = Popen(command, env={**os.environ, **own, **settings}, stdout=DEVNULL, stderr=DEVNULL)
        self.pid = self._process.pid
        self._wait_ready()

    def _wait_ready(self) -> None:
        for _ in range(600):
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            time.sleep(0.05)
        self.close()
        raise SystemExit("the server did not start")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass
class Watch:
    """Samples a process and its children every 20 ms until it is left.

    Peaks of resident memory in bytes: of both together, of the API process, of its workers; pages that they share
    count in each, so the total is an upper bound. cpu_seconds: user and system, of all of them, while watched.
    """

    pid: int
    total: int = 0
    api: int = 0
    workers: int = 0
    cpu_seconds: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _spent: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_seconds = sum(last - first for first, last in self._spent.values())

    def _sample(self) -> None:
        server = psutil.Process(self.pid)
        while True:
            api, workers = self._look(server), 0
            for child in server.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    workers += self._look(child)
            self.api, self.workers = max(self.api, api), max(self.workers, workers)
            self.total = max(self.total, api + workers)
            if self._stop.wait(0.02):
                return

    def _look(self, process: psutil.Process) -> int:
        """Resident bytes; notes the processor time."""
        times = process.cpu_times()
        spent = times.user + times.system
        self._spent[process.pid] = (self._spent.get(process.pid, (spent, spent))[0], spent)
        return int(process.memory_info().rss)
