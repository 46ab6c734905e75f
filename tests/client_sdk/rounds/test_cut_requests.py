"""What `take_part` does when a request is cut or refused on the way: a proxy in front of a real server does it."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from client_sdk import (
    AsyncClient,
    Client,
    ClientOptions,
    GaveUp,
    Identity,
    MemoryStore,
    Operator,
    Policy,
    RetryPolicy,
    RoundMissed,
    RoundReport,
    task_request,
)
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES
from client_sdk.rounds.events import Event, ServerBack, ServerUnreachable
from protocols.messages import Schedule
from tests.support.server import AggregatorProcess, free_port, running_aggregator

ITEMS, DIM = 1 << 14, 64
"""A plain contribution of fedmf has 4 bytes a value: 4 MiB, the longest that is sent in one PUT."""
ANY = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)


@dataclass(frozen=True)
class Passed:
    """A request that came to the proxy. length: of its body in bytes. offset: its Upload-Offset."""

    method: str
    path: str
    length: int
    offset: str | None


Fault = Callable[["Proxy", BaseHTTPRequestHandler, int], bool]
"""Handles a request with a body of so many bytes; returns False to let it pass."""


class Proxy:
    """Passes requests on to `server`, unless `fault` handles them; `requests` are all that came."""

    def __init__(self, server: AggregatorProcess, port: int) -> None:
        self.server = server
        self.requests: list[Passed] = []
        self.fault: Fault = lambda *_: False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: proxy._pass(self)
                raise AttributeError(name)

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{port}"

    def _pass(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        self.requests.append(Passed(handler.command, handler.path, length, handler.headers.get("upload-offset")))
        if self.fault(self, handler, length):
            return
        onward = http.client.HTTPConnection("127.0.0.1", self.server.port)
        try:
            onward.request(handler.command, handler.path, handler.rfile.read(length), dict(handler.headers))
            answer = onward.getresponse()
            body = answer.read()
            handler.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    handler.send_header(name, value)
            handler.send_header("content-length", answer.getheader("content-length") or str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except ConnectionError:  # the server or the client is away
            handler.close_connection = True
        finally:
            onward.close()

    def contributions(self) -> list[Passed]:
        """The requests of uploads."""
        return [request for request in self.requests if "/contributions/" in request.path]

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve within the block."""
        thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()


def cut(handler: BaseHTTPRequestHandler, after: int) -> bool:
    """Read `after` bytes of the body, and break the connection."""
    handler.rfile.read(after)
    handler.close_connection = True
    return True


def unavailable(handler: BaseHTTPRequestHandler, length: int, retry_after: str) -> bool:
    """Read the body, and answer 503."""
    handler.rfile.read(length)
    handler.send_response_only(503)
    handler.send_header("retry-after", retry_after)
    handler.send_header("content-length", "0")
    handler.end_headers()
    return True


def first(method: str, part: str, fault: Callable[[BaseHTTPRequestHandler, int], bool]) -> Fault:
    """Handle the first request of that method to an address with `part`, and no other."""
    done = threading.Event()

    def handle(_: Proxy, handler: BaseHTTPRequestHandler, length: int) -> bool:
        if handler.command != method or part not in handler.path or done.is_set():
            return False
        done.set()
        return fault(handler, length)

    return handle


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy with its server."""
    port = free_port(2)
    origins = ",".join(f"http://127.0.0.1:{each}" for each in (port, port + 1))
    data_dir = tmp_path_factory.mktemp("cut") / "data"
    with (
        running_aggregator(data_dir, port=port + 1, public_origins=origins) as server,
        Proxy(server, port).running() as proxy,
    ):
        yield proxy


@pytest.fixture
def server(running: Proxy) -> AggregatorProcess:
    return running.server


@pytest.fixture
def proxy(running: Proxy) -> Proxy:
    running.requests, running.fault = [], lambda *_: False
    return running


@contextmanager
def joined(server: AggregatorProcess, name: str, uses: int = 2) -> Iterator[str]:
    """A task of one round of two members, one of whom takes part directly. Yields the invitation of the other."""
    with Operator(server.url, server.operator_token) as operator, ThreadPoolExecutor(1) as pool:
        schedule = Schedule(rounds=1, cohort_size=2, start_clients=2, min_clients=2, collect_seconds=600)
        parameters = {"items": ITEMS, "dim": DIM, "clip": 2.0}
        task = operator.create_task(task_request(name, "fedmf", "plain", schedule, parameters))
        invitation, ended = operator.invite(task.task_id, uses=uses).invitation, threading.Event()

        def other() -> list[RoundReport]:
            with Client(server.url, Identity.generate(), MemoryStore(), ANY) as client:
                return client.join(invitation=invitation).take_part([1, 2, 3], stop=ended.is_set, poll_seconds=1.0)

        part: Future[list[RoundReport]] = pool.submit(other)
        try:
            yield invitation
        finally:
            ended.set()
            part.result(timeout=60.0)


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_a_contribution_that_was_cut_is_resumed_at_the_servers_offset(
    server: AggregatorProcess, proxy: Proxy, client_class: type
) -> None:
    proxy.fault = first("PUT", "/contributions/", lambda handler, length: cut(handler, length // 2))

    def take_part(invitation: str) -> list[RoundReport]:
        with Client(proxy.url, Identity.generate(), MemoryStore(), ANY) as client:
            return client.join(invitation=invitation).take_part([4, 5])

    async def take_part_async(invitation: str) -> list[RoundReport]:
        async with AsyncClient(proxy.url, Identity.generate(), MemoryStore(), ANY) as client:
            return await (await client.join(invitation=invitation)).take_part([4, 5])

    with joined(server, f"cut-{client_class.__name__}".lower()) as invitation:
        if client_class is Client:
            (report,) = take_part(invitation)
        else:
            (report,) = asyncio.run(take_part_async(invitation))
    assert report.contribution_bytes == DEFAULT_CHUNK_BYTES
    put, head, patch = proxy.contributions()
    assert [put.method, head.method, patch.method] == ["PUT", "HEAD", "PATCH"]
    assert (patch.offset, patch.length) == ("0", report.contribution_bytes)  # an interrupted PUT leaves nothing behind
    assert report.bytes_up >= 2 * report.contribution_bytes


def test_after_a_lost_answer_the_contribution_is_not_sent_again(server: AggregatorProcess, proxy: Proxy) -> None:
    def lose_answer(handler: BaseHTTPRequestHandler, length: int) -> bool:
        onward = http.client.HTTPConnection("127.0.0.1", server.port)
        onward.request("PUT", handler.path, handler.rfile.read(length), dict(handler.headers))
        assert onward.getresponse().status == 201
        onward.close()
        return cut(handler, 0)

    proxy.fault = first("PUT", "/contributions/", lose_answer)
    with (
        joined(server, "lost") as invitation,
        Client(proxy.url, Identity.generate(), MemoryStore(), ANY) as client,
    ):
        (report,) = client.join(invitation=invitation).take_part([4, 5])
    sent = [(request.method, request.length) for request in proxy.contributions()]
    assert sent == [("PUT", report.contribution_bytes), ("HEAD", 0), ("PATCH", 0)]


def test_the_number_of_attempts_is_obeyed(server: AggregatorProcess, proxy: Proxy) -> None:
    twice, told = ClientOptions(retry=RetryPolicy(attempts=2, base_seconds=0.01)), list[Event]()
    stop = threading.Event()

    def progress(event: Event) -> None:
        told.append(event)
        if isinstance(event, RoundMissed):
            stop.set()

    def refuse_bodies(_: Proxy, handler: BaseHTTPRequestHandler, length: int) -> bool:
        return "/contributions/" in handler.path and unavailable(handler, length, "0")

    with (
        joined(server, "twice") as invitation,
        Client(proxy.url, Identity.generate(), MemoryStore(), ANY, options=twice) as client,
    ):
        participant = client.join(invitation=invitation)
        proxy.fault = refuse_bodies
        assert participant.take_part([4, 5], progress, stop.is_set) == []
        assert "gave up after 2 attempts" in next(each.reason for each in told if isinstance(each, RoundMissed))
        assert [request.method for request in proxy.contributions()] == ["PUT", "PUT"]
        proxy.fault = lambda _proxy, handler, _length: cut(handler, 0)
        before = len(proxy.requests)
        with pytest.raises(GaveUp) as caught:
            participant.take_part([4, 5])
        assert caught.value.attempts == 2
        assert [request.method for request in proxy.requests[before:]] == ["GET", "GET"]


def test_an_outage_that_begins_in_an_upload_is_told_once(server: AggregatorProcess, proxy: Proxy) -> None:
    """The connection of the PUT breaks, and nothing answers until the user was told."""
    told, away = list[Event](), threading.Event()

    def progress(event: Event) -> None:
        told.append(event)
        if isinstance(event, ServerUnreachable):
            away.clear()

    def fail(running: Proxy, handler: BaseHTTPRequestHandler, length: int) -> bool:
        if len(running.contributions()) == 1 and "/contributions/" in handler.path:
            away.set()
            return cut(handler, length // 2)
        return away.is_set() and cut(handler, 0)

    proxy.fault = fail
    with (
        joined(server, "told") as invitation,
        Client(proxy.url, Identity.generate(), MemoryStore(), ANY) as client,
    ):
        (report,) = client.join(invitation=invitation).take_part([4, 5], progress)
    assert report.round == 1
    outage = [type(event) for event in told if isinstance(event, ServerUnreachable | ServerBack)]
    assert outage == [ServerUnreachable, ServerBack]
    methods = [request.method for request in proxy.contributions()]
    assert methods == ["PUT", *["HEAD"] * (len(methods) - 2), "PATCH"]
    assert len(methods) > 4
