"""Fault runs: a task whose clients run while a test injects faults, and a PostgreSQL cluster to crash."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
from sqlalchemy import make_url

from tests.chaos.swarm import Ledger, Player, swarming, until
from tests.support.api import Api, TestTask
from tests.support.needs import POSTGRES_SCRIPT, required
from tests.support.postgres import TestDatabase
from tests.support.server import AggregatorProcess

__all__ = ["Cluster", "FaultRun", "fault_run", "fold_workers", "own_cluster"]


class Cluster:
    """A cluster in `folder`. It restarts on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = self._run("start").strip()

    def schema(self) -> str:
        """Return the URL of an empty schema for one server."""
        return TestDatabase(make_url(self.url), "postgres").schema()

    def crash(self) -> None:
        """Kill all processes at once. The next start recovers what was committed."""
        self._run("stop")

    def start_again(self) -> None:
        """Start the cluster after `crash`."""
        self._run("again")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block the cluster accepts connections and answers nothing."""
        root = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        halted = [root, *root.children(recursive=True)]
        for process in halted:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(halted):
                process.resume()

    def _run(self, action: str) -> str:
        done = subprocess.run([POSTGRES_SCRIPT, action, str(self._folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """Run a cluster and remove it after the block. Its folder belongs to the user that runs it, perhaps another one."""
    required("postgres programs")
    with TemporaryDirectory(prefix="hushrec-chaos-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        cluster = Cluster(Path(folder) / "postgres")
        try:
            yield cluster
        finally:
            cluster._run("stop")


CLIENTS = 5
_LONG = 30.0
"""Seconds of a round: enough for everybody who is alive, and soon over for a client that lost its place in a crash."""


@dataclass
class FaultRun:
    """A running task."""

    server: AggregatorProcess
    api: Api
    task: TestTask
    ledger: Ledger

    def status(self, path: str) -> int:
        """Status code of a page of the server; 0 when it does not answer."""
        try:
            return self.api.http.get(path, timeout=5.0).status_code
        except httpx.TransportError:
            return 0

    def figure(self, name: str) -> float | None:
        """Value of a metric without labels; None when it does not exist."""
        answer = self.api.http.get("/metrics", headers=self.api.operator)
        lines = [line.split() for line in answer.text.splitlines() if line.startswith(f"{name} ")]
        return float(lines[0][1]) if lines else None

    def completed(self) -> int:
        """Number of sums released so far."""
        answer = self.api.http.get(self.task.path, headers=self.api.operator)
        return int(answer.json()["completed_rounds"]) if answer.status_code == 200 else -1

    def await_sums(self, more: int) -> None:
        """Wait until this many more sums are released: the clients have recovered by themselves."""
        seen: list[int] = []

        def enough_sums() -> bool:
            assert not self.ledger.errors, self.ledger.errors
            count = self.completed()
            if count >= 0:
                seen.append(count)
            return bool(seen) and seen[-1] >= seen[0] + more

        until(f"{more} more sums", enough_sums)


@contextmanager
def fault_run(server: AggregatorProcess, seed: int, items: int = 5) -> Iterator[FaultRun]:
    """Start a task and its clients; after the block, close the task and check every invariant."""
    api = Api(server.url, server.operator_token)
    task = api.create_task(
        "faults",
        items=items,
        clip=2000.0,
        cohort=CLIENTS,
        recipe_parameters={"normalise": "touched", "reveal_touched": True},  # the ledger checks the counts
        rounds=10_000,
        min_clients=4,
        collect_seconds=_LONG,
        max_failed_rounds=1000,
    )
    ledger = Ledger(task)
    running = FaultRun(server, api, task, ledger)
    enrolled = enumerate(task.enrol(CLIENTS))
    players = [Player(one, index, ledger, random.Random(seed * 100 + index)) for index, one in enrolled]
    with swarming(players, ledger):
        running.await_sums(1)
        yield running
        running.await_sums(1)
        closed = api.http.post(f"{task.path}/close", headers=api.operator)
        assert closed.status_code == 200, closed.text
    assert ledger.check(CLIENTS) >= 2
    api.close()


def fold_workers(server: AggregatorProcess) -> list[psutil.Process]:
    """The process ids of the server's workers, without the resource tracker of multiprocessing."""
    try:
        children = psutil.Process(server.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []
