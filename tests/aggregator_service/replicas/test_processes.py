"""`serve --processes 2`: two API processes share a port and a database; one leads, and a killed one is replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle

import httpx
import numpy as np
import psutil
import pytest

from tests.support.api import Api, TestMember, TestTask
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, free_port
from tests.support.signing import SIGNED

COHORT = 6


class _InTurn(httpx.BaseTransport):
    """Sends each request to the next of the processes' own ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports, self._transport = cycle(ports), httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=next(self._ports))
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()


class TwoProcesses:
    """A server with two API processes, each of which also listens on a port of its own."""

    def __init__(self, server: AggregatorProcess, ports: Sequence[int]) -> None:
        self.server, self.ports = server, ports

    @contextmanager
    def api(self) -> Iterator[Api]:
        """An operator and its clients, each of whose requests goes to another process."""
        made = Api(self.server.url, self.server.operator_token)
        made.http.close()
        with httpx.Client(
            base_url=self.server.url, transport=_InTurn(self.ports), timeout=60, auth=SIGNED
        ) as made.http:
            yield made

    def listeners(self) -> dict[int, int]:
        """The pid of each API process by its own port."""
        supervisor = psutil.Process(self.server.pid)
        found: dict[int, int] = {}
        for child in supervisor.children():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # killed a moment ago
                for connection in child.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port in self.ports:
                        found[connection.laddr.port] = child.pid
        return found

    def leading_port(self) -> int | None:
        """The port of the process that drives the rounds."""
        headers = {"Authorization": f"Bearer {self.server.operator_token}"}
        for port in self.ports:
            try:
                text = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=60).text
            except httpx.TransportError:
                continue
            if "\nhushrec_engine_leading 1.0\n" in text:
                return port
        return None

    def wait_both(self) -> dict[int, int]:
        """Wait until both processes answer on their own ports; return their pids by port."""

        def answer() -> bool:
            try:
                return all(httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200 for port in self.ports)
            except httpx.TransportError:
                return False

        wait_until(answer, "both processes answer")
        return self.listeners()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoProcesses]:
    """On each database. It runs for a whole module; a test that stops it starts it again."""
    port = free_port(3)
    own = {}
    if request.param == "postgresql":
        own["database_url"] = request.getfixturevalue("postgres").schema()
    server = AggregatorProcess(
        tmp_path_factory.mktemp("processes") / "data",
        port=port,
        public_origins=f"http://127.0.0.1:{port}",  # clients sign this address also at the processes' own ports
        processes=2,
        process_port=port,
        fold_batch=2,
        fresh=True,  # the supervisor starts its processes from the interpreter that a command line has
        **own,
    )
    server.start()
    try:
        made = TwoProcesses(server, (port + 1, port + 2))
        made.wait_both()
        yield made
    finally:
        server.stop()


def deliver(members: Sequence[TestMember], first: int = 0) -> None:
    for index, member in enumerate(members, start=first):
        answer = member.put(1, member.contribution(1, 2.0**index))
        assert answer.status_code == 201, answer.text


def assert_exact(task: TestTask) -> None:
    total, mask = task.opened(1), task.plan.layout.blocks[0].integral_mask()
    assert np.array_equal(total[mask], np.full(mask.sum(), float(COHORT)))
    assert np.allclose(total[~mask], 2.0**COHORT - 1, atol=1e-6)


def test_a_round_whose_requests_go_to_both_processes(two: TwoProcesses) -> None:
    with two.api() as api:
        task = api.create_task("shared", cohort=COHORT)
        members = task.enrol(COHORT)
        task.wait_round(1, "collecting")
        deliver(members)
        again = members[0].put(1, members[0].contribution(1, 1.0))  # the other process answers this repetition
        assert again.status_code == 200, again.text
        task.wait_round(1, "complete", seconds=60)
        assert_exact(task)


def test_a_change_in_one_process_is_seen_by_the_other(two: TwoProcesses) -> None:
    with two.api() as api:
        task = api.create_task("seen", cohort=COHORT)
        (member,) = task.enrol(1)
        for _ in range(4):
            assert api.http.get(task.path, headers=member.auth).json()["members"] == 1
        task.enrol(1)
        for _ in range(2):  # at once, in both
            assert api.http.get(task.path, headers=member.auth).json()["members"] == 2
        removed = api.http.delete(f"{task.path}/members/{member.client_id}", headers=api.operator)
        assert removed.status_code == 200

        def is_void() -> bool:
            answers = [api.http.get(task.path, headers=member.auth).status_code for _ in range(2)]
            return answers == [401, 401]

        wait_until(is_void, "the token is void in both processes", seconds=30)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_process_is_killed_in_a_round(two: TwoProcesses, victim: str) -> None:
    with two.api() as api:
        task = api.create_task(f"killed-{victim}", cohort=COHORT)
        members = task.enrol(COHORT)
        task.wait_round(1, "collecting")
        deliver(members[:3])
        wait_until(lambda: two.leading_port() is not None, "a process leads")
        leading, pids = two.leading_port(), two.listeners()
        port = leading if victim == "leader" else next(port for port in two.ports if port != leading)
        assert port is not None
        os.kill(pids[port], signal.SIGKILL)
        wait_until(lambda: two.listeners().get(port) not in (None, pids[port]), "the process is replaced")
        two.wait_both()
        deliver(members[3:], first=3)
        assert task.wait_round(1, "complete", seconds=60)["survivors"] == COHORT
        assert_exact(task)
    assert "an API process has ended; starting it again" in two.server.log()


def test_a_stop_ends_all_processes(two: TwoProcesses) -> None:
    supervisor = psutil.Process(two.server.pid)
    children = supervisor.children(recursive=True)
    assert len(two.listeners()) == 2
    two.server.stop()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert "killing it" not in two.server.log()
    two.server.start()  # the lock of the data directory is free
    two.wait_both()


def test_the_processes_end_with_a_killed_supervisor(two: TwoProcesses) -> None:
    children = psutil.Process(two.server.pid).children(recursive=True)
    two.server.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    two.server.start()
    two.wait_both()
