"""Server-sent events of a server process: which events it sends, when it sends none, what ends a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from aggregator_service.access.principals import Operator
from aggregator_service.dashboard.access import Visitor
from aggregator_service.dashboard.live import Streams
from aggregator_service.problems import Problem
from tests.support.api import Api, TestTask, contribute
from tests.support.dashboard import form_token, new_operator, sign_in
from tests.support.replicas import wait_until
from tests.support.server import TLS, AggregatorProcess

SECONDS = 60.0
SERVER = {"operator_rate": 0}


@pytest.fixture
def visitor(server: AggregatorProcess) -> Iterator[httpx.Client]:
    """An HTTP client that is signed in."""
    with _signed_in(server, server.operator_token) as http:
        yield http


@contextmanager
def _signed_in(server: AggregatorProcess, token: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=SECONDS, verify=TLS) as http:
        assert sign_in(http, server.url, token).status_code == 303
        yield http


class Stream:
    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self._end = lines, time.monotonic() + SECONDS

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield name and data of the next events, without comments and the retry field, until the stream ends."""
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))
            assert time.monotonic() < self._end, "the event did not come, or the stream does not end"

    def until(self, wanted: Callable[[str, Any], bool]) -> Any:
        """Return the data of the first event for which `wanted` is true."""
        return next(data for name, data in self if wanted(name, data))

    def part(self, named: str) -> str:
        return str(self.until(lambda name, data: name == "part" and data["name"] == named)["html"])

    def ends(self) -> str:
        """Require that nothing but what is on its way still comes; return what the server said last."""
        return str(([data for name, data in self if name == "end"] or [{"why": ""}])[-1]["why"])


@contextmanager
def watching(http: httpx.Client, path: str) -> Iterator[Stream]:
    with http.stream("GET", f"/dashboard{path}/live") as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield Stream(answer.iter_lines())


def started(live_api: Api, name: str, **schedule: Any) -> TestTask:
    return live_api.create_task(name, cohort=3, **schedule)


def test_a_change_sends_the_changed_fragments(live_api: Api, visitor: httpx.Client) -> None:
    task = started(live_api, "seen-live")
    members = task.begin(3)
    with watching(visitor, f"/tasks/{task.id}/rounds/1") as stream:
        assert "0<small>of 3 clients" in stream.part("round_status")
        stream.until(lambda name, _: name == "now")  # all fragments have come
        time.sleep(1.5)  # a check without a change: the browser itself updates ages and remaining times
        members[0].put(1, members[0].contribution(1, 1.0))
        name, changed = next(iter(stream))
        assert (name, "1<small>of 3 clients" in changed["html"]) == ("part", True)
        contribute(members[1:], 1, 1.0)
        said = stream.until(lambda name, data: name == "say" and "complete" in data["text"])
        assert said == {"text": "Round 1 is complete."}


def test_overview_and_server_page_are_live_and_what_does_not_exist_is_not(live_api: Api, visitor: httpx.Client) -> None:
    with watching(visitor, "") as stream:
        stream.part("task_list")
        task = started(live_api, "appears")
        stream.until(lambda name, data: name == "part" and "appears" in data["html"])
    with watching(visitor, "/health") as stream:
        assert "this process drives the rounds" in stream.part("health")
    for path in ("/tasks/t_none", f"/tasks/{task.id}/rounds/7"):
        assert visitor.get(f"/dashboard{path}/live").status_code == 404


def test_a_sign_out_or_void_token_ends_streams(live_api: Api, server: AggregatorProcess, visitor: httpx.Client) -> None:
    with watching(visitor, "") as stream:
        stream.part("task_list")
        data = {"form_token": form_token(visitor)}
        visitor.post("/dashboard/sign-out", data=data, headers={"Origin": server.url})
        assert "signed out" in stream.ends()
    token = new_operator(live_api, "streams", "read-only")
    with _signed_in(server, token) as http, watching(http, "") as stream:
        stream.part("task_list")
        assert live_api.http.delete("/v1/operators/streams", headers=live_api.operator).status_code == 200
        assert stream.ends()
        assert http.get("/dashboard/live").status_code == 401


def test_streams_are_limited_and_released(server: AggregatorProcess, visitor: httpx.Client) -> None:
    with _signed_in(server, server.operator_token) as other:
        opened = [visitor.send(visitor.build_request("GET", "/dashboard/live"), stream=True) for _ in range(6)]
        assert [answer.status_code for answer in opened] == [200] * 6
        assert visitor.get("/dashboard/live").status_code == 429
        assert visitor.get("/dashboard").status_code == 200
        with watching(other, "") as stream:  # another sign-in has its own limit
            stream.part("task_list")
        for answer in opened:
            answer.close()

        def free() -> bool:
            with visitor.stream("GET", "/dashboard/live") as again:
                return again.status_code == 200

        wait_until(free, "streams that were closed still count")


def test_stopping_the_server_ends_streams_and_keeps_sign_ins(server: AggregatorProcess) -> None:
    with _signed_in(server, server.operator_token) as http:
        with watching(http, "") as stream:
            stream.part("task_list")
            server.stop()
            stream.ends()
        server.start()
        assert http.get("/dashboard").status_code == 200


def test_a_stream_that_never_started_uses_no_slot() -> None:
    streams, one = Streams(), Visitor(Operator("ada", "admin"), "1" * 64, "2" * 64, "3" * 64)
    held = [streams.acquire(one) for _ in range(6)]
    with pytest.raises(Problem, match="too-many-requests"):
        streams.acquire(one)
    assert streams.acquire(Visitor(one.operator, "4" * 64, one.token_hash, one.form_token)).owner == "4" * 64
    streams.release(held.pop())
    del held[-1]  # the browser disconnected before its stream started
    assert [streams.acquire(one).owner for _ in range(2)] == ["1" * 64] * 2
