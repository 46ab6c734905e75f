"""Short requests, which the HTTP protocol answers without ASGI messages: the same responses, in order, none lost."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from aggregator_service.app import create_app
from aggregator_service.commands.api_process import server_config
from aggregator_service.http import short_protocol
from aggregator_service.http.direct_routes import DirectCall
from aggregator_service.http.response_bytes import ResponseWriter
from aggregator_service.http.short_cycle import ShortCycle, whole_body
from aggregator_service.http.short_protocol import ShortHttp
from aggregator_service.http.short_requests import SHORT_BYTES, ShortRequests
from aggregator_service.settings import Settings
from tests.support.api import Api, TestMember
from tests.support.connections import close_both_ends
from tests.support.direct_requests import REQUESTS, World, lasting_headers
from tests.support.server import AggregatorProcess, running_aggregator

BODY = b"0123456789"
SHORT = b"PUT /short HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n" + BODY
SLOW = b"PUT /slow HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n" + BODY
PASSED_ON = SHORT.replace(b"/short", b"/short/passed-on")
OTHER = SHORT.replace(b"/short", b"/other")


class Answers:
    """Answers /short, and /slow after a while; passes /short/passed-on on to the application."""

    application: Application

    def find(self, scope: Any) -> DirectCall | None:
        found = scope["path"].startswith(("/short", "/slow"))
        return cast(DirectCall, scope["path"]) if found else None

    async def answer(self, call: DirectCall, cycle: ShortCycle) -> Any:
        assert whole_body(cycle.request) == BODY
        if cast(str, call) == "/slow":
            await asyncio.sleep(0.05)
        if cast(str, call) == "/short/broken":
            raise LookupError("no such header")
        if cast(str, call) == "/short/passed-on":
            assert await cycle.request.body() == BODY
            return self.application
        close = b"" if cycle.keep_alive else b"connection: close\r\n"
        return b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n" + close + b"\r\n"


class Quick(ShortHttp):
    short = cast(ShortRequests, Answers())


class Application:
    """Answers 200 and keeps what it received of each request."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            body += message.get("body", b"") if message["type"] == "http.request" else b" (disconnected)"
        self.received.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class Conversation:
    """One connection to a new server. state: of the server. keep_alive: seconds for which it may be idle."""

    def __init__(self, keep_alive: int = 60) -> None:
        self.application, self.state, self.keep_alive = Application(), ServerState(), keep_alive

    async def __aenter__(self) -> Conversation:
        config = uvicorn.Config(self.application, http=Quick, log_config=None, timeout_keep_alive=self.keep_alive)
        cast(Answers, Quick.short).application = self.application
        config.load()
        loop = asyncio.get_running_loop()
        self.failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, failure: self.failures.append(failure))
        self._server = await loop.create_server(
            lambda: Quick(config=config, server_state=self.state, app_state={}), "127.0.0.1", 0
        )
        self._reader, self.writer = await asyncio.open_connection(*self._server.sockets[0].getsockname())
        self._received = b""
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_both_ends(self.writer, self._server, self.state)
        while self.state.tasks:
            await asyncio.sleep(0.01)
        assert self.failures == []

    async def send(self, *chunks: bytes, pause: float = 0.01) -> None:
        for chunk in chunks:
            self.writer.write(chunk)
            await asyncio.sleep(pause)

    async def statuses(self, wanted: int) -> list[bytes]:
        """The statuses of the first `wanted` responses, or of all until the connection is closed."""
        while len(found := re.findall(rb"HTTP/1\.1 (\d+)", self._received)) < wanted:
            piece = await asyncio.wait_for(self._reader.read(4096), 10)
            if not piece:
                return found
            self._received += piece
        return found

    async def closes(self) -> bool:
        """Whether the server closes the connection within some seconds."""
        return await asyncio.wait_for(self._reader.read(1), 10) == b""


def converse(*chunks: bytes, wanted: int) -> tuple[list[bytes], list[tuple[str, bytes]]]:
    """The statuses of the responses, and what the application received."""

    async def both() -> tuple[list[bytes], list[tuple[str, bytes]]]:
        async with Conversation() as conversation:
            await conversation.send(*chunks)
            return await conversation.statuses(wanted), conversation.application.received

    return asyncio.run(both())


def test_a_short_request_needs_no_application() -> None:
    assert converse(SHORT, SHORT, wanted=2) == ([b"201", b"201"], [])


@pytest.mark.parametrize("cuts", [(20,), (len(SHORT) - 10,), (len(SHORT) - 3,), (5, len(SHORT) - 10, len(SHORT) - 1)])
def test_a_request_in_pieces(cuts: tuple[int, ...]) -> None:
    edges = [0, *cuts, len(SHORT)]
    pieces = [SHORT[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    assert converse(*pieces, wanted=1) == ([b"201"], [])


def test_the_body_of_a_short_request_is_freed_at_once() -> None:
    async def remembered() -> list[ShortCycle]:
        async with Conversation() as conversation:
            gc.collect()
            gc.disable()
            try:
                for wanted in range(1, 6):
                    await conversation.send(SHORT)
                    await conversation.statuses(wanted)
                return [one for one in gc.get_objects() if isinstance(one, ShortCycle)]
            finally:
                gc.enable()

    assert len(asyncio.run(remembered())) <= 1  # the connection's last one


def test_a_pipeline_is_answered_in_order() -> None:
    assert converse(SHORT + OTHER + SHORT, wanted=3)[0] == [b"201", b"200", b"200"]
    assert converse(SLOW + SHORT + OTHER, wanted=3)[0] == [b"201", b"200", b"200"]
    assert converse(OTHER, SHORT, OTHER, wanted=3)[0] == [b"200", b"201", b"200"]


def test_a_request_that_is_passed_on_keeps_its_body() -> None:
    assert converse(PASSED_ON, SHORT, wanted=2) == ([b"200", b"201"], [("/short/passed-on", BODY)])


@pytest.mark.parametrize(
    "request_",
    [
        SHORT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        SHORT.replace(b"Host: test", b"Host: test\r\nConnection: close"),
    ],
)
def test_requests_after_which_the_connection_closes_go_to_the_application(request_: bytes) -> None:
    assert converse(request_, wanted=1) == ([b"200"], [("/short", BODY)])


def test_a_slow_body_is_left_to_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_protocol, "BODY_SECONDS", 0.05)

    async def slowly() -> None:
        async with Conversation() as conversation:
            await conversation.send(SHORT[:-4], pause=0.2)
            await conversation.send(SHORT[-4:], SHORT)
            assert await conversation.statuses(2) == [b"200", b"201"]
            assert conversation.application.received == [("/short", BODY)]

    asyncio.run(slowly())


def test_the_application_learns_of_a_body_that_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_protocol, "BODY_SECONDS", 3600.0)

    async def cut_off() -> None:
        async with Conversation() as conversation:
            await conversation.send(SHORT[:-4])
            conversation.writer.close()
            while not conversation.application.received:
                await asyncio.sleep(0.01)
            assert conversation.application.received == [("/short", b" (disconnected)")]

    asyncio.run(asyncio.wait_for(cut_off(), 10))


def test_a_response_that_cannot_be_made_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    assert converse(SHORT, SHORT.replace(b"/short", b"/short/broken"), wanted=2) == ([b"201"], [])
    assert "LookupError: no such header" in caplog.text


def test_malformed_bytes_behind_a_short_request_are_refused_once() -> None:
    async def malformed() -> None:
        async with Conversation() as conversation:
            await conversation.send(SLOW + b"\x00\x01 nonsense\r\n\r\n")
            assert await conversation.statuses(2) == [b"400"]
            await asyncio.sleep(0.1)  # the answer is made by now, and may not be written behind the 400

    asyncio.run(malformed())


def test_a_shutdown_waits_for_the_answer_and_closes_the_connection() -> None:
    async def shut_down() -> None:
        async with Conversation() as conversation:
            await conversation.send(SLOW)
            for connection in list(conversation.state.connections):
                connection.shutdown()
            assert conversation.state.tasks, "the server's shutdown waits for these"
            assert await conversation.statuses(1) == [b"201"]
            assert await conversation.closes()
            assert conversation.application.received == []

    asyncio.run(shut_down())


def test_a_client_that_has_gone_gets_no_response() -> None:
    async def gone() -> None:
        async with Conversation() as conversation:
            await conversation.send(SLOW, pause=0.01)
            for connection in list(conversation.state.connections):
                connection.transport.abort()
            while conversation.state.tasks:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(gone(), 10))


@pytest.mark.parametrize("request_", [SHORT, OTHER])
def test_an_idle_connection_is_closed_after_its_timeout_and_a_busy_one_is_not(request_: bytes) -> None:
    async def idle() -> None:
        async with Conversation(keep_alive=2) as conversation:
            for sent in range(1, 4):
                await conversation.send(request_, pause=0.8)
                assert len(await conversation.statuses(sent)) == sent, (
                    "2 s have passed since the first response, not since the last"
                )
            assert await conversation.closes()

    asyncio.run(idle())


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: x", b"a\nb", b"a\rb"])
def test_a_response_header_cannot_add_another_one(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        ResponseWriter(0).response(200, [(b"etag", value)], b"", "id", (), close=False)


# --- with the service --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    folder = tmp_path_factory.mktemp("short")
    with running_aggregator(folder / "data", hsts_seconds=60, failure_rate=0, client_rate=0) as process:
        yield process


@pytest.fixture(scope="module")
def world(server: AggregatorProcess) -> Iterator[World]:
    api = Api(server.url, server.operator_token)
    yield World.of(api)
    api.close()


@pytest.mark.parametrize("name", REQUESTS)
def test_the_response_is_that_of_the_application(world: World, name: str) -> None:
    answer = REQUESTS[name](world)
    by_application = REQUESTS[name](World(world.api, world.first, world.second, world.body, {"Origin": "https://a.b"}))
    assert answer.status_code == by_application.status_code
    assert answer.content == by_application.content
    assert lasting_headers(answer) == lasting_headers(by_application)
    assert answer.headers["strict-transport-security"] == "max-age=60"


def test_a_body_that_is_not_in_memory_is_streamed_and_recorded(server: AggregatorProcess, world: World) -> None:
    members = world.api.create_task("streamed", cohort=2, items=200_000).enrol(2)
    task = members[0].task
    task.wait_round(1, "collecting")
    for member in members:
        assert member.put(1, member.contribution(1, 1.0)).status_code == 201
    task.wait_round(1, "complete")
    answers = [
        world.api.http.get(f"{task.path}/rounds/1/aggregate", headers={**members[0].auth, **more})
        for more in ({"X-Request-Id": "streamed"}, {"Origin": "https://a.b"})
    ]
    assert answers[0].status_code == 200
    assert len(answers[0].content) > 2_000_000
    assert answers[0].content == answers[1].content
    assert lasting_headers(answers[0]) == lasting_headers(answers[1])
    end = time.monotonic() + 10
    while '"request": "streamed"' not in (log := server.log_path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    (line,) = [line for line in log.splitlines() if '"request": "streamed"' in line]
    assert f'"sent": {len(answers[0].content)}' in line


def stored(member: TestMember, **headers: str) -> str:
    """Contribute to a new round; return the id of the request."""
    answer = member.put(1, member.contribution(1, 1.0), headers)
    assert answer.status_code == 201, answer.text
    return str(answer.headers["x-request-id"])


def test_a_short_request_is_counted_and_logged_once(server: AggregatorProcess, world: World) -> None:
    def counted() -> float:
        text = world.api.http.get("/metrics", headers=world.api.operator).text
        pattern = r'hushrec_requests_total\{method="PUT",route="\S+/contributions/\{client\}",status="201"\} (\S+)'
        found = re.search(pattern, text)
        return 0.0 if found is None else float(found[1])

    first, second = world.api.create_task("counted", cohort=2).enrol(2)
    first.task.wait_round(1, "collecting")
    before = counted()
    assert stored(first, **{"X-Request-Id": "short-1"}) == "short-1"
    stored(second)
    assert counted() == before + 2
    end = time.monotonic() + 10
    while '"request": "short-1"' not in (log := server.log_path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    (line,) = [line for line in log.splitlines() if '"request": "short-1"' in line]
    assert f'"client": "{first.client_id}"' in line
    assert f'"received": {len(first.contribution(1, 1.0))}' in line


def test_the_time_of_a_request_begins_with_its_headers(server: AggregatorProcess) -> None:
    head = b"PUT /v1/tasks/t_%b/keyring/c_%b HTTP/1.1\r\nHost: test\r\n" % (b"0" * 20, b"0" * 20)
    head += b"Authorization: Bearer hrc_x\r\nX-Request-Id: late-body\r\nContent-Length: 2\r\n\r\n"
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(head)
        time.sleep(0.4)
        connection.sendall(b"xx")
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")
    end = time.monotonic() + 10
    while '"request": "late-body"' not in (log := server.log_path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    (line,) = [line for line in log.splitlines() if '"request": "late-body"' in line]
    assert json.loads(line)["milliseconds"] >= 300


def test_short_requests_end_at_their_length_and_other_middlewares_see_theirs() -> None:
    """What `find` leaves to the application, whatever the route."""

    class Router:
        def find(self, _: Any) -> str:
            return "found"

    requests = ShortRequests(None, cast(Any, Router()), cast(Any, None), ResponseWriter(0), json_limit=1000)

    def found(method: str, **headers: str) -> bool:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return requests.find({"method": method, "headers": raw}) is not None

    assert found("PUT", content_length=str(SHORT_BYTES))
    assert found("GET")
    assert found("GET", connection="Keep-Alive")
    assert found("POST", content_length="1000", content_type="application/json")
    assert not found("PUT", content_length=str(SHORT_BYTES + 1))
    assert not found("PUT", transfer_encoding="chunked")
    assert not found("PUT", content_length="1", expect="100-continue")
    assert not found("PUT", content_length="1", connection="keep-alive, te")
    assert not found("PUT", content_length="1", origin="https://a.b")
    assert not found("PUT", content_length="1", x_forwarded_for="192.0.2.1")
    assert not found("POST", content_length="1001", content_type="application/json")
    assert not found("POST", content_length="1", content_type="text/plain")
    assert not found("POST", content_length="0", content_type="application/json")
    assert not found("POST", content_length="1", content_type="application/json", content_digest="sha-256=:x:")


Traces = Literal["none", "otlp"]


@pytest.mark.parametrize("traces", get_args(Traces))
def test_the_server_answers_short_requests_unless_each_request_needs_a_span(
    tmp_path: Path, traces: Literal["none", "otlp"]
) -> None:
    settings = Settings(data_dir=tmp_path, traces=traces)
    http = server_config(settings, create_app(settings)).http
    assert isinstance(http, type)
    assert issubclass(http, ShortHttp)
    assert (http.short is None) == (http.immediate is None) == (traces == "otlp")
