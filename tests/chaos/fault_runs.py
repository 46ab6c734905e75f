"""Fault runs: clients that repeat what they send until it is accepted, and the check of their answers against the sums.

`Cluster` is a PostgreSQL that a test may crash.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray
from sqlalchemy import make_url

from tests.support.api import Api, TestMember, TestTask
from tests.support.needs import POSTGRES_SCRIPT, required
from tests.support.replicas import TestDatabase
from tests.support.server import AggregatorProcess

__all__ = [
    "BASE",
    "Cluster",
    "FaultRun",
    "Ledger",
    "Player",
    "fault_run",
    "fold_workers",
    "own_cluster",
    "swarming",
    "until",
]

BASE = 4.0


def value_of(index: int) -> float:
    """The value of client `index`: the digits of a sum to base 4 show how often each client is in it."""
    return BASE**index


@dataclass
class Ledger:
    """The answers to all clients of one task.

    acknowledged: round and client of each receipt. errors: what no fault explains. broken: whether a connection broke.
    """

    task: TestTask
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    broken: bool = False

    def note(self, answer: httpx.Response) -> None:
        """Record an answer."""
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            self.errors.append(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")

    def check(self, clients: int) -> int:
        """Check every invariant over all rounds of a finished task; return the number of sums."""
        api, task = self.task.api, self.task
        assert not self.errors, self.errors
        floor = task.view["schedule"]["min_clients"]
        rounds = api.http.get(f"{task.path}/rounds", params={"limit": 1000}, headers=api.operator).json()["rounds"]
        released = 0
        for row in rounds:
            number = row["number"]
            view = task.round(number)
            if view["state"] == "failed":
                assert view["failure"], f"round {number} failed without a reason"
                continue
            assert view["state"] == "complete", f"round {number} is {view['state']} although the task is over"
            survivors = self._survivors(number, clients)
            assert len(survivors) == view["survivors"] >= floor
            lost = {index for told, index in self.acknowledged if told == number} - survivors
            assert not lost, f"clients {sorted(lost)} have a receipt for round {number} and are not in its sum"
            released += 1
        return released

    def _survivors(self, number: int, clients: int) -> set[int]:
        """The clients in a sum; checks that it is exactly the sum of their contributions."""
        total = self.task.opened(number)
        mask = np.concatenate([block.integral_mask() for block in self.task.plan.layout.blocks])
        values, counts = _one_value(total[~mask]), _one_value(np.rint(total[mask]))
        digits = [values // int(BASE) ** index % int(BASE) for index in range(clients)]
        assert max(digits) <= 1, f"round {number} counts a client twice: {digits}"
        survivors = {index for index, digit in enumerate(digits) if digit}
        assert values == sum(int(value_of(index)) for index in survivors)
        assert counts == len(survivors)
        return survivors


def _one_value(values: NDArray[np.float64]) -> int:
    """The integer that all values are equal to."""
    assert np.abs(values - values[0]).max() < 1e-6, "the values of the sum differ"
    return round(float(values[0]))


_PAUSE = 0.1
_RECEIPT = (200, 201)


class Player:
    """A client in its own thread: it uploads once a round, whole or in chunks at random."""

    def __init__(self, member: TestMember, index: int, ledger: Ledger, choose: random.Random) -> None:
        self._member, self._index, self._ledger, self._choose = member, index, ledger, choose
        self._made: tuple[int, bytes] = (0, b"")
        self._done = 0
        self._seen: dict[str, Any] | None = None
        self._etag = ""

    def turn(self) -> None:
        """Read the round and execute what is due. Raises the errors of broken connections."""
        seen = self._current()
        if seen is None or seen["state"] != "collecting" or seen["number"] == self._done:
            return
        number = seen["number"]
        if self._made[0] != number:
            self._made = (number, self._member.contribution(number, value_of(self._index)))
        at_once = self._choose.random() < 0.7
        answer = self._member.put(number, self._made[1]) if at_once else self._in_pieces(number)
        self._ledger.note(answer)
        if answer.status_code in _RECEIPT:
            self._ledger.acknowledged.add((number, self._index))
            self._done = number
        elif answer.status_code not in (204, 409, 429, 503):
            self._ledger.errors.append(f"an upload was answered with {answer.status_code}: {answer.text}")

    def _current(self) -> dict[str, Any] | None:
        """Follow the current round with long polls."""
        headers = {**self._member.auth, **({"If-None-Match": self._etag} if self._etag else {})}
        path = f"{self._member.task.path}/rounds/current"
        answer = self._member.task.api.http.get(path, params={"wait": 1.5}, headers=headers)
        self._ledger.note(answer)
        if answer.status_code == 200:
            self._seen, self._etag = answer.json(), answer.headers["etag"]
        elif answer.status_code == 503:
            time.sleep(_PAUSE)
        return self._seen

    def _in_pieces(self, number: int) -> httpx.Response:
        """Send one chunk at the offset of the upload."""
        http, path, body = self._member.task.api.http, self._member.path(number), self._made[1]
        head = http.head(path, headers=self._member.auth)
        if head.status_code != 204:
            return head
        start = int(head.headers["upload-offset"])
        if head.headers["upload-complete"] == "?1":
            return head
        piece = body[start : start + self._choose.randint(1, len(body))]
        last = start + len(piece) == len(body)
        return self._member.piece(start, piece, body if last else None, number=number)


def _play(player: Player, ledger: Ledger, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            player.turn()
        except httpx.TransportError:
            ledger.broken = True
            stop.wait(_PAUSE)
        except Exception as error:
            ledger.errors.append(f"{type(error).__name__}: {error}")
            return


@contextmanager
def swarming(players: Sequence[Player], ledger: Ledger) -> Iterator[None]:
    """Run all clients inside the block."""
    stop = threading.Event()
    threads = [threading.Thread(target=_play, args=(player, ledger, stop), daemon=True) for player in players]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a client hangs"


def until(what: str, condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait for a condition, repeating requests that fail."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"timed out after {seconds:.0f} s: {what}")


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
