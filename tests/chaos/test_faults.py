"""Server, workers, database and blob store are killed, stopped, paused, unmounted or full while devices upload.

One server on PostgreSQL, and the devices of one task: after each fault more sums are released, without help.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.chaos.devices import CountedTask, counted_task
from tests.support.api import serving
from tests.support.needs import NEEDS, required
from tests.support.replicas import Cluster, own_cluster, wait_until
from tests.support.server import AggregatorProcess

pytestmark = pytest.mark.timeout(900)
SCHEDULE = {"rounds": 10_000, "min_clients": 3, "collect_seconds": 30.0, "max_failed_rounds": 1000}


@dataclass
class Run:
    """A running task, and what it stores where: the blobs are in the folder `blobs` of `disk`."""

    server: AggregatorProcess
    task: CountedTask
    cluster: Cluster
    disk: Path

    def status(self, path: str) -> int:
        """Status code of a page of the server; 0 when it does not answer."""
        try:
            return self.task.api.http.get(path, headers=self.task.api.operator, timeout=5.0).status_code
        except httpx.TransportError:
            return 0

    def figure(self, name: str) -> float:
        """Value of a metric without labels; 0 when it does not exist."""
        answer = self.task.api.http.get("/metrics", headers=self.task.api.operator)
        return next((float(line.split()[1]) for line in answer.text.splitlines() if line.startswith(f"{name} ")), 0.0)

    def statuses(self) -> set[int]:
        """The status codes of all answers that are logged: of requests that write, or that failed."""
        records = (json.loads(line) for line in self.server.log().splitlines() if line.startswith("{"))
        return {int(record["status"]) for record in records if "status" in record}

    def await_sum(self) -> None:
        """Wait until the server is ready, and one more sum is released: the devices have recovered."""
        wait_until(lambda: self.status("/readyz") == 200, "/readyz to report that it is ready")
        before = self.task.completed()
        wait_until(lambda: self.task.completed() > before, "one more sum")

    def await_unready(self) -> None:
        wait_until(lambda: self.status("/readyz") == 503, "/readyz to report the fault")
        assert self.status("/healthz") == 200


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start a task and its devices; after all faults, close the task and check every invariant."""
    folder = tmp_path_factory.mktemp("faults")
    disk = folder / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        cluster = stack.enter_context(own_cluster())
        if NEEDS["mount"].find():
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", disk], check=True)
        settings = {"database_url": cluster.schema(), "blobs": f"dir:{disk / 'blobs'}", "fold_batch": 2}
        server, api = stack.enter_context(serving(folder / "data", test_spawns_workers=1, **settings))
        task = stack.enter_context(counted_task(api, folder, "plain", 4, {}, **SCHEDULE))
        for device in task.devices:
            device.start()
        made = Run(server, task, cluster, disk)
        made.await_sum()
        yield made
        made.await_sum()
        task.close()
        task.check_ended("closed")
        assert {status for status in made.statuses() if status >= 500} <= {503}


def server_killed(run: Run) -> None:
    choose = random.Random(20)
    for _ in range(2):
        time.sleep(choose.uniform(0.05, 0.6))  # the seed determines the moment
        run.server.kill()
        assert run.status("/readyz") == 0
        run.server.start()


def fold_worker_killed(run: Run) -> None:
    """During its job; no connection breaks."""
    worker, before = run.server.fold_worker(), run.server.pid
    worker.suspend()
    wait_until(lambda: run.figure("hushrec_engine_jobs") > 0, "a job")
    assert run.status("/readyz") == 200
    worker.kill()
    run.await_sum()
    assert run.server.pid == before and run.server.running


def database_crashes(run: Run) -> None:
    run.cluster.crash()
    try:
        run.await_unready()
        assert run.figure("hushrec_database_up") == 0
        wait_until(lambda: 503 in run.statuses(), "a device to be answered 503")
    finally:
        run.cluster.start_again()
    run.await_sum()
    assert run.figure("hushrec_database_up") == 1


def database_hangs(run: Run) -> None:
    with run.cluster.paused():
        wait_until(lambda: run.status("/readyz") != 200, "a request that hangs")
        assert run.status("/healthz") == 200


def blobs_unmounted(run: Run) -> None:
    """Requests for blobs are answered with 503; a sum that needs blobs waits.

    The server was killed a moment ago, and no device needs the first aggregate any more: it is not in memory.
    """
    first = next(number for number in range(1, 1000) if run.task.round(number)["state"] == "complete")
    (run.disk / "blobs").rename(run.disk / "away")
    try:
        run.await_unready()
        assert run.status(f"{run.task.path}/rounds/{first}/aggregate") == 503
    finally:
        (run.disk / "away").rename(run.disk / "blobs")


def blob_disk_full(run: Run) -> None:
    required("mount")
    with (run.disk / "rubbish").open("wb", buffering=0) as rubbish, suppress(OSError):
        while True:
            rubbish.write(bytes(4096))
    try:
        run.await_unready()
    finally:
        (run.disk / "rubbish").unlink()


@pytest.mark.parametrize(
    "fault", [fold_worker_killed, database_crashes, database_hangs, server_killed, blobs_unmounted, blob_disk_full]
)
def test_devices_recover_by_themselves(run: Run, fault: Callable[[Run], None]) -> None:
    fault(run)
    run.await_sum()
