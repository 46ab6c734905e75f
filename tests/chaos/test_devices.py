"""Devices are killed, paused and started again at random, and so is the server: every released sum is exact."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.devices import CountedTask, counted_task
from tests.support.api import serving
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess

pytestmark = pytest.mark.timeout(300)
SEED = 40
STEPS = 20
"""Disturbances: every tenth is a kill -9 of the server, every tenth a pause of it, the others are a device's."""
TASKS: dict[str, tuple[int, dict[str, Any]]] = {"masked": (6, {"corrupt": 0.0, "dropout": 0.33}), "ckks": (4, {})}
SCHEDULE = {"rounds": 2, "min_clients": 3, "collect_seconds": 6.0, "stage_seconds": 6.0, "max_failed_rounds": 1000}


def disturb(server: AggregatorProcess, tasks: list[CountedTask], choose: random.Random) -> None:
    """Disturb devices, at most two of a task at a time, and now and then the server."""
    devices = [device for task in tasks for device in task.devices]
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
            task = choose.choice(tasks)
            victim = choose.choice(task.devices)
            others = [device for device in task.devices if device.waking]
            if victim not in others and len(others) < 2 and victim.is_running():
                victim.disturb(choose)
    for device in devices:
        if device.waking:
            device.start()


def has_ended(task: CountedTask) -> bool:
    with suppress(httpx.TransportError):
        return task.now()["state"] != "open"
    return False


def test_devices_and_server_killed_and_paused_at_any_moment(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (server, api), ExitStack() as stack:
        tasks = [
            stack.enter_context(counted_task(api, tmp_path, mechanism, count, parameters, **SCHEDULE))
            for mechanism, (count, parameters) in TASKS.items()
        ]
        for task in tasks:
            for device in task.devices:
                device.start()
        disturb(server, tasks, random.Random(SEED))
        assert sum(device.kills for task in tasks for device in task.devices) > 3
        for task in tasks:
            wait_until(lambda task=task: has_ended(task), "the end of the task")
            task.check_ended("complete")
        # the restarts and the ends of the tasks deleted all orphans
        assert server.kinds().keys() <= {"aggregates", "snapshots", "views"}
