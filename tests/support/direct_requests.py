"""Requests to frequent routes, most of them with a fault, for tests that send them along different ways.

None of them changes anything, so that each can be sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support.api import Api, TestMember, digest_field, signed_enrolment
from tests.support.signing import UNSIGNED

__all__ = ["CHANGING", "REQUESTS", "World", "enrolment", "lasting_headers"]

NOBODY = "c_" + "0" * 20
NO_TASK = "t_" + "0" * 20
CHANGING = {"date", "x-request-id"}
"""Headers that differ from response to response."""


@dataclass
class World:
    """Two members of a round that collects; the second one has contributed. more: headers of every request."""

    api: Api
    first: TestMember
    second: TestMember
    body: bytes
    more: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, api: Api) -> World:
        """Return a new task with its members."""
        first, second = api.create_task(f"direct-{uuid4()}", cohort=2).enrol(2)
        first.task.wait_round(1, "collecting")
        body = second.contribution(1, 1.0)
        assert second.put(1, body).status_code == 201
        return cls(api, first, second, body)

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> httpx.Response:
        own = {**self.first.auth, **(headers or {}), **self.more}
        return self.api.http.request(method, path, headers=own, content=body or None)

    def put(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        return self.send("PUT", path, {"Content-Digest": digest_field(body), **headers}, body)

    def enrol(self, content: bytes, content_type: str | None = "application/json") -> httpx.Response:
        headers = {} if content_type is None else {"Content-Type": content_type}
        return self.api.http.post("/v1/enrolments", content=content, headers={**headers, **self.more})

    def put_second(self, body: bytes) -> httpx.Response:
        """Upload a contribution of the second member, whose contribution is stored."""
        own = {**self.second.auth, "Content-Digest": digest_field(body), **self.more}
        return self.api.http.put(self.second.path(1), content=body, headers=own)


def enrolment(**changes: Any) -> bytes:
    body = signed_enrolment("hri_unknown", Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    return json.dumps(body | changes).encode()


REQUESTS: Final[dict[str, Callable[[World], httpx.Response]]] = {
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
    "stored before": lambda world: world.put_second(world.body),
    "other bytes": lambda world: world.put_second(world.second.contribution(1, 0.5)),
    "query": lambda world: world.put(world.first.path(1) + "?x=1", world.body),
    "no signature": lambda world: world.send(
        "PUT", world.first.path(1), {"Content-Digest": digest_field(world.body), **UNSIGNED}, world.body
    ),
    "unknown token": lambda world: world.put(world.first.path(1), world.body, Authorization="Bearer hrc_unknown"),
    "no bearer": lambda world: world.put(world.first.path(1), world.body, Authorization="Basic eDp5"),
    "as operator": lambda world: world.put(world.first.path(1), world.body, **world.api.operator),
    "no aggregate": lambda world: world.send("GET", f"{world.first.task.path}/rounds/1/aggregate"),
    "no snapshot": lambda world: world.send("GET", f"{world.first.task.path}/snapshots/1"),
    "no newest snapshot": lambda world: world.send("GET", f"{world.first.task.path}/snapshots/latest"),
    "cohort": lambda world: world.send("GET", f"{world.first.task.path}/rounds/1/cohort"),
    "no cohort": lambda world: world.send("GET", f"{world.first.task.path}/rounds/2/cohort"),
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


def lasting_headers(answer: httpx.Response) -> dict[str, str]:
    """Return the headers of a response without those of `CHANGING`."""
    return {name: text for name, text in answer.headers.items() if name not in CHANGING}
