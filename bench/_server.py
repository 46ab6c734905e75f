"""A real `hushrec-server` process for the benchmarks, and a monitor of its memory and processor time."""

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

OPERATOR_TOKEN = "hro_benchmark-on-the-loopback-address"  # noqa: S105 - a server that lives for one benchmark on the loopback address


class Server:
    """One server process on a free port with its data in `root`. It is ready when the constructor returns.

    settings: further environment variables of the server. Raises `SystemExit` if the server is not ready in 30 s.
    """

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
        raise SystemExit("hushrec-server was not ready after 600 attempts; start it by hand to see its log")

    def close(self) -> None:
        """Terminate the process and wait for its end."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass
class Watch:
    """Context manager that samples a process and its children every 20 ms.

    total, api, workers: peak resident memory in bytes of all processes, of the API process, and of its workers. Shared
    pages count in each process, so the total is an upper bound. cpu_seconds: user and system time of all processes
    while the context was open, set on exit.
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
            api, workers = self._measure(server), 0
            for child in server.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    workers += self._measure(child)
            self.api, self.workers = max(self.api, api), max(self.workers, workers)
            self.total = max(self.total, api + workers)
            if self._stop.wait(0.02):
                return

    def _measure(self, process: psutil.Process) -> int:
        """Resident memory of a process in bytes; also records its processor time."""
        times = process.cpu_times()
        spent = times.user + times.system
        self._spent[process.pid] = (self._spent.get(process.pid, (spent, spent))[0], spent)
        return int(process.memory_info().rss)
