"""A real Dask cluster: a scheduler and workers in processes of their own, which tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.forked import ForkedProcess, can_fork
from tests.support.replicas import wait_until
from tests.support.server import free_port

Popen = subprocess.Popen[bytes] | ForkedProcess
_SECONDS = 120.0


class DaskProcess:
    """A module of Dask that runs: a fork of a process that has imported Dask, or a new interpreter."""

    def __init__(self, log: Path, environment: Mapping[str, str], module: str, *arguments: str) -> None:
        self._log_path = log
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "AWS_"))}
        environment = keep | dict(environment)
        with log.open("ab") as file:
            if can_fork(environment):
                self._process: Popen = ForkedProcess("dask", module, arguments, environment, file)
            else:
                command = [sys.executable, "-m", module, *arguments]
                self._process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        def there() -> bool:
            assert self._process.poll() is None, f"ended with {self._process.returncode}:\n{self.log()[-3000:]}"
            return text in self.log()

        wait_until(there, text)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=_SECONDS)

    def wait_killed(self) -> None:
        assert self._process.wait(timeout=_SECONDS) == -signal.SIGKILL


class DaskCluster:
    """A scheduler that keeps its port when it restarts, and the workers started so far."""

    def __init__(self, folder: Path, protocol: str = "tcp", environment: Mapping[str, str] | None = None) -> None:
        """environment: added to this process's own, without its HUSHREC_* and AWS_* variables."""
        self._folder, self._protocol = folder, protocol
        self._environment = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "info", **(environment or {})}
        self.port = free_port()
        self.workers: list[DaskProcess] = []
        self._scheduler: DaskProcess | None = None

    @property
    def executor(self) -> str:
        """The value of HUSHREC_EXECUTOR for this cluster."""
        return f"{'dask' if self._protocol == 'tcp' else 'dask+tls'}://127.0.0.1:{self.port}"

    @property
    def _address(self) -> str:
        return f"{self._protocol}://127.0.0.1:{self.port}"

    def start_scheduler(self) -> None:
        log = self._folder / f"scheduler-{time.monotonic_ns()}.log"
        place = ("--host", f"{self._protocol}://127.0.0.1", "--port", str(self.port), "--no-dashboard")
        self._scheduler = DaskProcess(log, self._environment, "distributed.cli.dask_scheduler", *place)
        self._scheduler.wait_for("Scheduler at:")

    def kill_scheduler(self) -> None:
        self._scheduler.kill()

    def start_worker(self, crash_at: str = "", *, wait: bool = True, **environment: str) -> DaskProcess:
        """Start a worker with one thread and no nanny, so that it is not restarted.

        crash_at: where it is killed (`aggregator_service.crash_points`).
        """
        number = len(self.workers)
        local = self._folder / f"worker-{number}"
        local.mkdir()
        worker = DaskProcess(
            self._folder / f"worker-{number}.log",
            {**self._environment, "HUSHREC_CRASH_AT": crash_at, **environment},
            "distributed.cli.dask_worker",
            self._address,
            *("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(local)),
            *("--host", "127.0.0.1", "--memory-limit", "0", "--name", f"worker-{number}"),
        )
        self.workers.append(worker)
        if wait:
            worker.wait_for("Registered to:")
        return worker

    def stop(self) -> None:
        for process in (*self.workers, *([self._scheduler] if self._scheduler else [])):
            process.kill()


@contextmanager
def running_cluster(
    folder: Path, workers: int = 2, protocol: str = "tcp", environment: Mapping[str, str] | None = None
) -> Iterator[DaskCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = DaskCluster(folder, protocol, environment)
    try:
        cluster.start_scheduler()
        started = [cluster.start_worker(wait=False) for _ in range(workers)]
        for worker in started:
            worker.wait_for("Registered to:")
        yield cluster
    finally:
        cluster.stop()
