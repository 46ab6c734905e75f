"""Devices are killed, paused and started again at random, and so is the server: every released sum is exact."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from client_sdk import DirectoryStore, Identity, Operator, Schedule, task_request
from client_sdk.store.client_store import ClientStore
from protocols.crypto.keys import Keyring
from tests.chaos.counted_client import BASE, CLIP, SERVING, SHAPE, opened_client
from tests.chaos.fault_runs import until
from tests.support.api import Api, TestTask
from tests.support.forked import ForkedProcess
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import TRIAL

pytestmark = pytest.mark.timeout(300)
SEED = 40
STEPS = 20
"""Disturbances: every tenth is a kill -9 of the server, every tenth a pause of it, the others are a device's."""
ROUNDS = 3
DEVICES = {"masked": 6, "ckks": 4}
PARAMETERS = {"masked": {"corrupt": 0.0, "dropout": 0.33}, "ckks": {}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data") as running:
        yield running


@dataclass
class Device:
    """A client's folder and its process, which is started again after it was killed."""

    folder: Path
    index: int
    arguments: list[str]
    process: ForkedProcess | None = None
    waking: float = 0.0
    """When it is started or resumed, by `time.monotonic`; 0 while it runs."""
    kills: int = field(default=0)

    def start(self) -> None:
        """Start the process, or resume it."""
        self.waking = 0.0
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            return
        with self.log_path.open("ab") as log:
            self.process = ForkedProcess("server", "tests.chaos.counted_client", self.arguments, os.environ, log)

    def disturb(self, choose: random.Random) -> None:
        """Kill or pause the process; it comes back within two seconds."""
        assert self.process is not None
        self.waking = time.monotonic() + choose.uniform(0.1, 2.0)
        if choose.random() < 0.5:
            self.process.send_signal(signal.SIGSTOP)
            return
        self.process.kill()
        self.process.wait(30)
        self.process = None
        self.kills += 1

    def end(self) -> None:
        """End the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def is_running(self) -> bool:
        """Whether it takes part; a device whose task is complete has ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def task_id(self) -> str:
        return self.arguments[1]

    def log(self) -> str:
        return f"{self.log_path}: {self.log_path.read_text()}"

    @property
    def log_path(self) -> Path:
        return self.folder / f"log-{self.index}"


@contextmanager
def devices_of(api: Api, operator: Operator, mechanism: str, place: Path) -> Iterator[tuple[TestTask, list[Device]]]:
    """A task and its members, who have joined and have not started; the first one of a CKKS task holds the keys."""
    count = DEVICES[mechanism]
    schedule = Schedule(
        rounds=ROUNDS, cohort_size=count, start_clients=count, min_clients=3, collect_seconds=6.0, stage_seconds=6.0,
        max_failed_rounds=1000,
    )  # fmt: skip
    request = task_request(
        mechanism, "arrays", mechanism, schedule, {"shapes": {"w": SHAPE}, "clip": CLIP}, PARAMETERS[mechanism],
        organiser=TRIAL.pin,
    )  # fmt: skip
    task_id = operator.create_task(request).task_id
    devices = []
    for index in range(count):
        role = "holder" if mechanism == "ckks" and index == 0 else "member"
        folder = place / f"{mechanism}-{index}"
        with opened_client(str(api.http.base_url), folder) as client:
            task = client.join(
                invitation=operator.invite(task_id, role=role).invitation, certificate=TRIAL.source(role)
            )
            if role == "holder":
                task.create_keyring()
        devices.append(Device(folder, index, [str(api.http.base_url), task_id, str(folder), str(index)]))
    if mechanism == "ckks":
        folder = devices[0].folder
        devices.append(Device(folder, SERVING, [str(api.http.base_url), task_id, str(folder), str(SERVING)]))
    view = api.http.get(f"/v1/tasks/{task_id}", headers=api.operator).json()
    try:
        yield TestTask(api, view), devices
    finally:
        for device in devices:
            device.end()


def disturbed(server: AggregatorProcess, devices: list[Device], choose: random.Random) -> None:
    """Disturb devices, at most two of a task at a time, and now and then the server."""
    for step in range(1, STEPS + 1):
        end = time.monotonic() + choose.uniform(0.05, 0.6)
        while time.monotonic() < end:
            time.sleep(0.02)
            for device in devices:
                if device.waking and device.waking < time.monotonic():
                    device.start()
        if step % 10 == 0:
            server.kill()
            server.start()
        elif step % 10 == 5:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(choose.uniform(0.2, 0.8))
            os.kill(server.pid, signal.SIGCONT)
        else:
            victim = choose.choice(devices)
            others = [device for device in devices if device.task_id == victim.task_id and device.waking]
            if victim not in others and len(others) < 2 and victim.is_running():
                victim.disturb(choose)
    for device in devices:
        if device.waking:
            device.start()


def state_of(task: TestTask) -> str:
    answer = task.api.http.get(task.path, headers=task.api.operator, timeout=5.0)
    return str(answer.json()["state"]) if answer.status_code == 200 else ""


def stored_keyring(folder: Path, url: str, task_id: str) -> Keyring:
    """The keys of a CKKS task, of a client who has them."""
    who = Identity.load(folder / "me.key").fingerprint
    keyring = ClientStore(DirectoryStore(folder / "store"), who, url).keyring(task_id)
    assert keyring is not None
    return keyring


def check_sums(task: TestTask, devices: list[Device], url: str) -> None:
    """Every released sum is that of the clients whose ledgers name it, each counted once."""
    keyring = None
    if task.view["opened_by"] == "members":
        keyring = stored_keyring(devices[0].folder, url, task.id)
    named: dict[int, set[int]] = {}
    for device in (device for device in devices if device.index != SERVING):
        with opened_client(url, device.folder) as client:
            own = client.ledger(task.id)
            assert list(own.warnings) == [], device.log()
            for entry in own.entries:
                named.setdefault(entry.round, set()).add(device.index)
    assert len(named) == ROUNDS
    for number, indices in named.items():
        total = task.opened(number, keyring)[: int(np.prod(SHAPE))]
        expected = sum(BASE**index for index in indices)
        assert np.abs(total - expected).max() < 0.4, (number, indices, total)
        assert task.round(number)["survivors"] == len(indices) >= 3


def test_devices_and_server_killed_and_paused_at_any_moment(server: AggregatorProcess, tmp_path: Path) -> None:
    choose = random.Random(SEED)
    with ExitStack() as stack:
        api = Api(server.url, server.operator_token)
        stack.callback(api.close)
        operator = stack.enter_context(Operator(server.url, server.operator_token))
        made = [stack.enter_context(devices_of(api, operator, kind, tmp_path)) for kind in DEVICES]
        everybody = [device for _, devices in made for device in devices]
        for device in everybody:
            device.start()
        disturbed(server, everybody, choose)
        assert sum(device.kills for device in everybody) > 3
        for task, devices in made:
            until("the task to end", lambda task=task: state_of(task) not in ("", "open"), 120.0)
            assert state_of(task) == "complete", "\n".join(device.log() for device in devices)
        for device in everybody:
            assert device.process is not None
            assert device.process.wait(60) == 0, device.log()
        for task, devices in made:
            check_sums(task, devices, server.url)
