"""Chromium, its pages of the dashboard, and the demo of `examples/web` with a record of its clients' vectors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, expect, sync_playwright

from client_sdk import Operator, task_request
from client_sdk.lab.fleet import Fleet
from examples.web.demo import WebDemo, made_up_users, running_demo
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.wire import unpack
from tests.support.api import checked
from tests.support.forked_programs import fork_programs
from tests.support.needs import required
from tests.support.server import TLS

SIZES = {"phone": (390, 844), "wide": (1600, 1000)}
MILLISECONDS = 40_000
expect.set_options(timeout=MILLISECONDS)


@contextmanager
def chromium() -> Iterator[Browser]:
    executable = required("chromium")
    with sync_playwright() as play_:
        browser = play_.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def resize(page: Page, size: str) -> None:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})


def screenshot(page: Page, name: str, kind: str = "dashboard") -> None:
    """Keep a picture of the whole page below HUSHREC_ARTIFACTS, if that is set, in the folder `kind`."""
    if folder := os.environ.get("HUSHREC_ARTIFACTS"):
        page.screenshot(path=Path(folder) / kind / f"{name}.png", full_page=True)


CLIENTS = 4
"""Python clients of a recorded demo."""


@dataclass
class RecordedDemo:
    """A running demo whose Python clients' vectors are recorded."""

    demo: WebDemo
    vectors: list[list[int]] = field(default_factory=list)
    """Whole numbers, in order of arrival."""

    def recording(self, encode: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
        """Return `encode`, which turns a client's values into whole numbers, with a record of what it returned."""

        def recorded(*arguments: Any) -> NDArray[Any]:
            vector = encode(*arguments)
            self.vectors.append(vector.tolist())
            return vector

        return recorded

    @cached_property
    def task(self) -> dict[str, Any]:
        return dict(self.get("").json())

    def aggregate(self, number: int) -> list[int]:
        length = self.get(f"/sums/{number}").json()["layout"]["length"]
        return [int(element) for element in unpack(self.get(f"/rounds/{number}/aggregate").content, self.bits, length)]

    @property
    def bits(self) -> int:
        return int(self.task["plan"]["bits"])

    def expected(self, number: int, own: list[int]) -> list[int]:
        """Return the sum of the vectors of a round and one more, modulo the ring, by plain integers."""
        clients = len(self.demo.fleet.clients)
        rows = [*self.vectors[(number - 1) * clients : number * clients], own]
        assert len(rows) == clients + 1
        return [sum(column) % (1 << self.bits) for column in zip(*rows, strict=True)]

    def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.demo.operator_token}"}
        return checked(httpx.get(f"{self.demo.server}/v1/tasks/{self.demo.task}{path}", headers=headers, verify=TLS))


@contextmanager
def recorded_demo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 1, **changes: Any
) -> Iterator[RecordedDemo]:
    """Start the demo of `examples/web` on free ports; its fleet plays in a thread, and its vectors are recorded."""
    required("noble")
    fork_programs(monkeypatch)
    with running_demo(folder, clients=CLIENTS, rounds=rounds, **changes) as demo:
        recorded = RecordedDemo(demo)
        for plan in (MaskedPlan, OneshotPlan):
            monkeypatch.setattr(plan, "encode", recorded.recording(plan.encode))
        with playing(demo.fleet):
            yield recorded


@contextmanager
def playing(fleet: Fleet) -> Iterator[None]:
    """Let the fleet take part in its task in a thread until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=fleet.run, kwargs={"stop": stop.is_set})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)
        assert not thread.is_alive()


@contextmanager
def following_demo(recorded: RecordedDemo) -> Iterator[RecordedDemo]:
    """Play a task of one round that follows the recorded one, with as many Python clients."""
    demo = recorded.demo
    with Operator(demo.server, demo.operator_token) as operator, Fleet(demo.server, made_up_users(CLIENTS)) as fleet:
        view = operator.task(demo.task)
        schedule = view.schedule.model_copy(update={"rounds": 1, "follows": demo.task})
        recipe = view.recipe.parameters
        request = task_request("later", "colr", view.mechanism.name, schedule, recipe, organiser=view.organiser)
        task = operator.create_task(request)
        fleet.enrol(operator.invite(task.task_id, CLIENTS).invitation, None, demo.page.organiser.source)
        with playing(fleet):
            settings = demo.settings | {"task": task.task_id}
            yield RecordedDemo(replace(demo, fleet=fleet, settings=settings), recorded.vectors)
