"""Requests that call their route directly get the answers that FastAPI gives: the same status, headers and problem."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from aggregator_service.http.direct_routes import DirectRouter, direct
from aggregator_service.routes import tasks
from tests.support.direct_requests import REQUESTS, World, enrolment, lasting_headers
from tests.support.inside import aggregator_inside


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("direct")
    with aggregator_inside(folder / "data", failure_rate=0, client_rate=0) as api:
        yield World.of(api)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_is_fastapis(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    answers = [REQUESTS[name](world)]
    monkeypatch.setattr(DirectRouter, "find", lambda *_: None)
    answers.append(REQUESTS[name](world))
    directly, by_fastapi = answers
    assert directly.status_code == by_fastapi.status_code
    assert directly.content == by_fastapi.content
    assert lasting_headers(directly) == lasting_headers(by_fastapi)


def test_a_body_that_fastapi_judges_is_passed_on_whole(world: World) -> None:
    answer = world.enrol(enrolment(extra="x" * 20_000))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.extra")


def test_a_client_that_closes_the_connection_before_its_body_is_no_fault_of_the_server(world: World) -> None:
    scope = {"type": "http", "method": "POST", "path": "/v1/enrolments", "query_string": b"", "http_version": "1.1"}
    scope |= {"headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1), "scheme": "http"}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    world.api.http.portal.call(world.api.http.app, scope, receive, send)  # type: ignore[attr-defined]
    assert sent[0]["status"] == 400
    assert "connection closed" in json.loads(sent[1]["body"])["detail"]


def test_frequent_requests_are_direct(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    original = DirectRouter.find

    def recorded(self: DirectRouter, scope: Any) -> Any:
        found.append(original(self, scope))
        return found[-1]

    monkeypatch.setattr(DirectRouter, "find", recorded)
    assert world.put(world.first.path(1), b"x").status_code == 400
    assert world.send("GET", f"{world.first.task.path}/rounds/1/aggregate").status_code == 404
    assert world.enrol(enrolment()).status_code == 403
    assert world.send("GET", f"{world.first.task.path}/rounds").status_code == 200
    assert [None if one is None else one.route.route.path_format for one in found] == [
        "/v1/tasks/{task}/rounds/{number}/contributions/{client}",
        "/v1/tasks/{task}/rounds/{number}/aggregate",
        "/v1/enrolments",
        None,
    ]


def test_a_function_that_needs_more_cannot_be_called_directly() -> None:
    created = next(
        route for route in tasks.router.routes if isinstance(route, APIRoute) and route.endpoint is tasks.create
    )
    with pytest.raises(TypeError, match="operator"):
        direct(created)
