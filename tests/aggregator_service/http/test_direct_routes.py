"""Requests that call their route directly get the answers that FastAPI gives: the same status, headers and problem."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fastapi.routing import APIRoute

from aggregator_service.http.direct_routes import DirectRoutes, direct
from aggregator_service.routes import tasks
from tests.support.api import Api, TestMember, digest_field, signed_enrolment
from tests.support.inside import aggregator_inside
from tests.support.signing import UNSIGNED

NOBODY = "c_" + "0" * 20
NO_TASK = "t_" + "0" * 20
CHANGING = {"date", "x-request-id"}


@dataclass
class World:
    """Two members of a round that collects; the second one has contributed."""

    api: Api
    first: TestMember
    second: TestMember
    body: bytes

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> httpx.Response:
        own = {**self.first.auth, **(headers or {})}
        return self.api.http.request(method, path, headers=own, content=body or None)

    def put(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        return self.send("PUT", path, {"Content-Digest": digest_field(body), **headers}, body)

    def enrol(self, content: bytes, content_type: str | None = "application/json") -> httpx.Response:
        headers = {} if content_type is None else {"Content-Type": content_type}
        return self.api.http.post("/v1/enrolments", content=content, headers=headers)


def enrolment(**changes: Any) -> bytes:
    body = signed_enrolment("hri_unknown", Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    return json.dumps(body | changes).encode()


REQUESTS: dict[str, Callable[[World], httpx.Response]] = {
    "too long": lambda world: world.put(world.first.path(1), world.body + b"x"),
    "too short": lambda world: world.put(world.first.path(1), world.body[1:]),
    "empty": lambda world: world.send("PUT", world.first.path(1)),
    "no digest": lambda world: world.send("PUT", world.first.path(1), body=world.body),
    "wrong digest": lambda world: world.put(
        world.first.path(1), world.body, **{"Content-Digest": digest_field(b"another")}
    ),
    "not a vector": lambda world: world.put(world.first.path(1), b"\xff" * len(world.body)),
    "media type": lambda world: world.put(world.first.path(1), world.body, **{"Content-Type": "text/html"}),
    "chain": lambda world: world.put(world.first.path(1), world.body, **{"Aggregate-Chain": "0" * 64}),
    "of another client": lambda world: world.put(world.second.path(1), world.body),
    "of nobody": lambda world: world.put(world.first.path(1).replace(world.first.client_id, NOBODY), world.body),
    "no round": lambda world: world.put(world.first.path(999), world.body),
    "number too large": lambda world: world.put(world.first.path(2**31), world.body),
    "no task": lambda world: world.put(world.first.path(1).replace(world.first.task.id, NO_TASK), world.body),
    "stored before": lambda world: world.api.http.put(
        world.second.path(1),
        content=world.body,
        headers={**world.second.auth, "Content-Digest": digest_field(world.body)},
    ),
    "other bytes": lambda world: world.api.http.put(
        world.second.path(1),
        content=world.second.contribution(1, 0.5),
        headers={**world.second.auth, "Content-Digest": digest_field(world.second.contribution(1, 0.5))},
    ),
    "query": lambda world: world.put(world.first.path(1) + "?x=1", world.body),
    "no signature": lambda world: world.send(
        "PUT", world.first.path(1), {"Content-Digest": digest_field(world.body), **UNSIGNED}, world.body
    ),
    "unknown token": lambda world: world.put(world.first.path(1), world.body, Authorization="Bearer hrc_unknown"),
    "no bearer": lambda world: world.put(world.first.path(1), world.body, Authorization="Basic eDp5"),
    "as operator": lambda world: world.put(world.first.path(1), world.body, **world.api.operator),
    "no aggregate": lambda world: world.send("GET", f"{world.first.task.path}/rounds/1/aggregate"),
    "no snapshot": lambda world: world.send("GET", f"{world.first.task.path}/snapshots/1"),
    "no envelope": lambda world: world.send("GET", f"{world.first.task.path}/keyring"),
    "no stages": lambda world: world.send("GET", f"{world.first.task.path}/rounds/1/roster"),
    "unknown stage": lambda world: world.put(
        f"{world.first.task.path}/rounds/1/stages/rest/{world.first.client_id}", world.body
    ),
    "head": lambda world: world.send("HEAD", f"{world.first.task.path}/rounds/1/aggregate"),
    "method": lambda world: world.send("DELETE", world.first.path(1)),
    "envelope": lambda world: world.put(f"{world.first.task.path}/keyring/{NOBODY}", b"sealed"),
    "unknown invitation": lambda world: world.enrol(enrolment()),
    "false signature": lambda world: world.enrol(enrolment(renewal=1)),
    "unknown field": lambda world: world.enrol(enrolment(extra=1)),
    "missing field": lambda world: world.enrol(b"{}"),
    "not an object": lambda world: world.enrol(b"[]"),
    "null": lambda world: world.enrol(b"null"),
    "not JSON": lambda world: world.enrol(b"{"),
    "not UTF-8": lambda world: world.enrol(b'{"invitation": "\xff"}'),
    "no body": lambda world: world.enrol(b""),
    "deep": lambda world: world.enrol(b"[" * 30_000),
    "other JSON type": lambda world: world.enrol(enrolment(), "application/merge-patch+json; charset=utf-8"),
    "no JSON type": lambda world: world.enrol(enrolment(), "text/plain"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("direct")
    with aggregator_inside(folder / "data", failure_rate=0, client_rate=0) as api:
        first, second = api.create_task("direct", cohort=2).enrol(2)
        first.task.wait_round(1, "collecting")
        body = second.contribution(1, 1.0)
        assert second.put(1, body).status_code == 201
        yield World(api, first, second, body)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_is_fastapis(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    answers = [REQUESTS[name](world)]
    monkeypatch.setattr(DirectRoutes, "_find", lambda *_: None)
    answers.append(REQUESTS[name](world))
    directly, by_fastapi = answers
    assert directly.status_code == by_fastapi.status_code
    assert directly.content == by_fastapi.content
    named = [{name: text for name, text in answer.headers.items() if name not in CHANGING} for answer in answers]
    assert named[0] == named[1]


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
    original = DirectRoutes._find

    def recorded(self: DirectRoutes, scope: Any) -> Any:
        found.append(original(self, scope))
        return found[-1]

    monkeypatch.setattr(DirectRoutes, "_find", recorded)
    assert world.put(world.first.path(1), b"x").status_code == 400
    assert world.send("GET", f"{world.first.task.path}/rounds/1/aggregate").status_code == 404
    assert world.enrol(enrolment()).status_code == 403
    assert world.send("GET", f"{world.first.task.path}/rounds").status_code == 200
    assert [None if one is None else one[0].route.path_format for one in found] == [
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
