"""A one-shot round of four Python clients and one JavaScript client, and the exact sum of all their vectors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from numpy.typing import NDArray

from client_sdk.rounds import masked as masked_rounds
from client_sdk.rounds import oneshot as oneshot_rounds
from examples.web.demo import WebDemo, running_demo
from protocols.sums.ring import unpack

CLIENTS = 4
"""Python clients of a recorded demo."""


@dataclass
class RecordedDemo:
    """A running demo whose Python clients' vectors are recorded. vectors: whole numbers, in order of arrival."""

    demo: WebDemo
    vectors: list[list[int]] = field(default_factory=list)

    def recording(self, encode: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
        """Return `encode`, which turns a client's values into whole numbers, with a record of what it returned."""

        def recorded(*arguments: Any) -> NDArray[Any]:
            vector = encode(*arguments)
            self.vectors.append(vector.tolist())
            return vector

        return recorded

    @cached_property
    def task(self) -> dict[str, Any]:
        """The task as the server states it."""
        return dict(self.get("").json())

    def aggregate(self, number: int) -> list[int]:
        """Return the released sum of a round as ring elements; no round before it has failed."""
        length = self.get(f"/sums/{number}").json()["layout"]["length"]
        return [int(element) for element in unpack(self.get(f"/rounds/{number}/aggregate").content, self.bits, length)]

    @property
    def bits(self) -> int:
        """Bits of a ring element."""
        return int(self.task["plan"]["bits"])

    def expected(self, number: int, own: list[int]) -> list[int]:
        """Return the sum of the vectors of a round and one more, modulo the ring, by plain integers."""
        clients = len(self.demo.fleet.clients)
        rows = [*self.vectors[(number - 1) * clients : number * clients], own]
        assert len(rows) == clients + 1
        return [sum(column) % (1 << self.bits) for column in zip(*rows, strict=True)]

    def get(self, path: str) -> httpx.Response:
        """Return an answer of the server about the task, as an operator sees it."""
        headers = {"Authorization": f"Bearer {self.demo.operator_token}"}
        answer = httpx.get(f"{self.demo.server}/v1/tasks/{self.demo.task}{path}", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer


@contextmanager
def recorded_demo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 1, **changes: Any
) -> Iterator[RecordedDemo]:
    """Start the demo of `examples/web` on free ports; its fleet plays in a thread, and its vectors are recorded."""
    with running_demo(folder, clients=CLIENTS, rounds=rounds, **changes) as demo:
        recorded = RecordedDemo(demo)
        for module in (masked_rounds, oneshot_rounds):
            monkeypatch.setattr(module, "encode", recorded.recording(module.encode))
        stop = threading.Event()
        thread = threading.Thread(target=demo.fleet.run, kwargs={"stop": stop.is_set})
        thread.start()
        try:
            yield recorded
        finally:
            stop.set()
            thread.join(120)
            assert not thread.is_alive()
