"""Participants reach two servers through one address; the death of the leader ends none of them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.rounds.events import Event, RoundReport, TaskEnded
from tests.support.postgres import TestDatabase
from tests.support.replicas import Replicas, running_replicas
from tests.support.tasks import interactions, small_task

USERS, ROUNDS = 4, 4


class Forwarder:
    """A balancer of connections: each goes to the next server that accepts it, and ends with it."""

    def __init__(self, ports: list[int]) -> None:
        self._ports, self._next = ports, 0

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._forward, sock=listener)
        async with server:
            await stop.wait()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._ports:
            self._next += 1
            with suppress(OSError):
                others = await asyncio.open_connection("127.0.0.1", self._ports[self._next % len(self._ports)])
                await asyncio.gather(self._copy(reader, others[1]), self._copy(others[0], writer))
                return
        writer.close()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()
        with suppress(OSError):
            await target.wait_closed()


@contextmanager
def forwarding(listener: socket.socket, replicas: Replicas) -> Iterator[None]:
    """Forward the connections to `listener` while the context is open."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    forwarder = Forwarder([server.port for server in replicas.servers])
    thread = threading.Thread(target=lambda: loop.run_until_complete(forwarder.serve(listener, stop)))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.fixture
def front() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


@pytest.fixture
def two_replicas(
    front: socket.socket, postgres: TestDatabase, new_prefix: Callable[[], str], tmp_path: Path
) -> Iterator[Replicas]:
    settings = {"database_url": postgres.schema(), "blobs": new_prefix(), "recheck_seconds": 1.0}
    origin = f"http://127.0.0.1:{front.getsockname()[1]}"
    with running_replicas(tmp_path, 2, public_origins=origin, **settings) as running:
        yield running


@pytest.mark.timeout(300)
def test_no_participant_ends_when_one_of_two_servers_is_killed(front: socket.socket, two_replicas: Replicas) -> None:
    url, told = f"http://127.0.0.1:{front.getsockname()[1]}", list[Event]()
    leader, ended = two_replicas.leader(), threading.Event()
    with forwarding(front, two_replicas), ThreadPoolExecutor(USERS) as pool:
        with Operator(url, leader.operator_token) as operator:
            task = small_task(operator, "survives", users=USERS, rounds=ROUNDS)

        def kill_after_the_first(event: Event) -> None:
            told.append(event)
            if isinstance(event, RoundReport) and event.round == 1:
                leader.kill()

        def one(index: int) -> list[RoundReport]:
            with Client(url, Identity.generate(), MemoryStore(), Policy(mechanisms={"plain"})) as client:
                part = client.join("survives", invitation=task.invitation, seed=index)
                on_event = kill_after_the_first if index == 0 else None
                return part.take_part(interactions(USERS)[index], on_event, ended.is_set, poll_seconds=5.0)

        parts = [pool.submit(one, index) for index in range(USERS)]
        try:
            reports = [part.result(timeout=200.0) for part in parts]
        finally:
            ended.set()
    assert [[report.round for report in mine] for mine in reports] == [list(range(1, ROUNDS + 1))] * USERS
    assert isinstance(told[-1], TaskEnded)
    assert not leader.running
