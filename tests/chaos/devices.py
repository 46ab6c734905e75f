"""Devices: processes that take part in `arrays` tasks, each with a known value; and what every sum must hold."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_sdk import DirectoryStore, Identity, Operator, Schedule, task_request
from client_sdk.store.client_store import ClientStore
from tests.chaos.counted_client import BASE, SERVING, SHAPE, opened_client
from tests.support.api import Api, TestTask
from tests.support.forked import ForkedProcess
from tests.support.tasks import TRIAL, SmallTask


@dataclass
class Device:
    """A client's folder and its process, which is started again after it was killed."""

    folder: Path
    index: int
    arguments: list[str]
    process: ForkedProcess | None = None
    waking: float = 0.0
    """When it is started or resumed, by `time.monotonic`; 0 while it runs."""
    kills: int = 0

    def start(self) -> None:
        self.waking = 0.0
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            return
        with self._log_path.open("ab") as log:
            self.process = ForkedProcess("device", "tests.chaos.counted_client", self.arguments, os.environ, log)

    def disturb(self, choose: random.Random) -> None:
        self.waking = time.monotonic() + choose.uniform(0.1, 2.0)
        if choose.random() < 0.5:
            self.process.send_signal(signal.SIGSTOP)
        else:
            self.end()
            self.kills += 1

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def is_running(self) -> bool:
        """Whether it takes part; a device whose task is complete has ended."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        return f"{self._log_path}: {self._log_path.read_text()}"

    @property
    def _log_path(self) -> Path:
        return self.folder / f"log-{self.index}"


class CountedTask(TestTask):
    """A task whose members have joined and have not started; the first one of a CKKS task holds the keys."""

    def __init__(self, api: Api, view: dict[str, Any], devices: Sequence[Device]) -> None:
        super().__init__(api, view)
        self.devices, self._url = devices, str(api.http.base_url)

    def completed(self) -> int:
        return int(self.now()["completed_rounds"])

    def check_ended(self, state: str) -> None:
        """Check that the task has ended, that its devices end, and all its sums.

        Each sum is exactly that of the clients in whose ledgers it is, each counted once; no ledger lacks a sum for
        which its client has a receipt (`OwnLedger.warnings`); a round that failed has a reason.
        """
        logs = "\n".join(device.log() for device in self.devices)
        assert self.now()["state"] == state, logs
        named: dict[int, set[int]] = {}
        for device in self.devices:
            assert device.process.wait(60) == 0, device.log()
            if device.index == SERVING:
                continue
            with opened_client(self._url, device.folder) as client:
                own = client.ledger(self.id)
            assert list(own.warnings) == [], device.log()
            for entry in own.entries:
                named.setdefault(entry.round, set()).add(device.index)
        rounds = {row["number"]: row for row in self.found("rounds", limit=1000)["rounds"]}
        assert all(row["state"] == "complete" or row["failure"] for row in rounds.values())
        assert named.keys() == {number for number, row in rounds.items() if row["state"] == "complete"}
        floor, keyring = self.view["schedule"]["min_clients"], None
        if self.view["opened_by"] == "members":
            holder = self.devices[0].folder
            store = DirectoryStore(holder / "store")
            keyring = ClientStore(store, Identity.load(holder / "me.key").fingerprint, self._url).keyring(self.id)
        for number, indices in named.items():
            total = self.opened(number, keyring)[: int(np.prod(SHAPE))]
            assert np.abs(total - sum(BASE**index for index in indices)).max() < 0.4, (number, indices, total)
            assert rounds[number]["survivors"] == len(indices) >= floor


@contextmanager
def counted_task(
    api: Api, folder: Path, mechanism: str, count: int, parameters: dict[str, Any], **schedule: Any
) -> Iterator[CountedTask]:
    """Create a task for `count` devices, which end with the block."""
    url, devices = str(api.http.base_url), list[Device]()
    plan = Schedule(cohort_size=count, start_clients=count, **schedule)
    recipe = {"shapes": {"w": list(SHAPE)}, "clip": 2000.0}
    with Operator(url, api.operator["Authorization"].removeprefix("Bearer ")) as operator:
        wanted = task_request(mechanism, "arrays", mechanism, plan, recipe, parameters, organiser=TRIAL.pin)
        task = SmallTask.of(operator, wanted, count)
        for index in range(count):
            own = folder / f"{mechanism}-{index}"
            with opened_client(url, own) as client:
                member = task.join(client, index)
                if member.membership.role == "holder":
                    member.create_keyring()
            devices.append(Device(own, index, [url, task.task_id, str(own), str(index)]))
    if task.holder_invitation is not None:
        own = devices[0].folder
        devices.append(Device(own, SERVING, [url, task.task_id, str(own), str(SERVING)]))
    view = api.found(f"/v1/tasks/{task.task_id}")
    try:
        yield CountedTask(api, view, devices)
    finally:
        for device in devices:
            device.end()
