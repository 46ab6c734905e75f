"""Whole tasks at log level debug: no log line or problem holds a token, invitation, secret, key or body."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from aggregator_service.access.principals import hash_token
from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.api.http import SyncDriver
from tests.support.api import Api, digest_field
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.signing import SIGNED
from tests.support.tasks import SmallTask, interactions, small_task

USERS = 3
WINDOW = 12
SIGNATURE_LENGTH = 88
SENTINEL = "Sentinel7Value"
"""Stands for a secret that a caller puts in the wrong place."""


class Record(httpx.HTTPTransport):
    """Records sent bodies, received tokens, and problems."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.texts: set[str] = set()
        self.signed = 0
        self.problems: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        answer.read()
        if "signature" in request.headers:
            self.signed += 1
            self.texts.add(request.headers["signature"].split(":")[1])
        if request.method == "PUT":
            self.bodies.append(request.content)
        elif request.content and request.url.path == "/v1/enrolments":
            sent, got = json.loads(request.content), answer.json()
            kept = (sent["invitation"], sent["signature"], got.get("token"))
            self.texts |= {text for text in kept if text}
        if "problem" in answer.headers.get("content-type", ""):
            self.problems.append(answer.text)
        return answer


def forms(secret: bytes) -> Iterator[str]:
    """Yield the forms bytes may take in a line: hex, base64 in both alphabets and all alignments, Python's repr."""
    for start in {0, len(secret) // 2, max(0, len(secret) - WINDOW)}:
        window = secret[start : start + WINDOW]
        yield window.hex()
        yield repr(window)[2:-1]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            for shift in range(3):  # the middle of an encoding does not depend on the bytes around it
                yield encode(bytes(shift) + window).decode()[4:-4]


def play(server: AggregatorProcess, task: SmallTask, record: Record) -> tuple[list[Identity], list[MemoryStore]]:
    """Play a whole task with the SDK, over drivers that record."""
    identities, stores = [Identity.generate() for _ in range(USERS)], [MemoryStore() for _ in range(USERS)]
    policy = Policy(mechanisms=frozenset({"plain", "ckks"}), snapshot_every=1)
    clients = [
        Client(server.url, identity, store, policy, driver=SyncDriver(transport=record))
        for identity, store in zip(identities, stores, strict=True)
    ]
    first = clients[0].join(
        task.name,
        invitation=task.holder_invitation or task.invitation,
        certificate=task.holder_certificate if task.holder_invitation else task.certificate,
    )
    keys = first if task.holder_invitation else None
    if keys is not None:
        keys.create_keyring()
    parts = [
        first,
        *(one.join(task.name, invitation=task.invitation, certificate=task.certificate) for one in clients[1:]),
    ]
    with ThreadPoolExecutor(USERS + 1) as pool:
        serving = pool.submit(keys.serve, None, None, 1.0) if keys else None
        list(pool.map(lambda part, items: part.take_part(items), parts, interactions(USERS)))
        if serving:
            serving.result(timeout=30)
    return identities, stores


def send_bad_requests(server: AggregatorProcess, record: Record) -> None:
    """Get refused in every way, with the sentinel in each place that a caller can fill."""
    api = Api(server.url, server.operator_token)
    api.http = httpx.Client(base_url=server.url, transport=record, timeout=30, auth=SIGNED)
    task = api.create_task("provoked", cohort=2)
    member, other = task.enrol(2)
    task.wait_round(1, "collecting")
    good = member.contribution(1, 5.0)
    assert member.put(1, good).status_code == 201
    wrong = SENTINEL.encode() * 50
    refusals: list[Callable[[], httpx.Response]] = [
        lambda: member.put(1, member.contribution(1, 6.0)),
        lambda: other.put(1, wrong),
        lambda: other.put(1, wrong.ljust(len(good), b"\xff")[: len(good)]),
        lambda: other.put(1, good, {"Content-Digest": digest_field(wrong)}),
        lambda: other.put(1, good, {"Content-Digest": SENTINEL}),
        lambda: api.http.patch(
            other.path(1), content=b"x", headers={**other.auth, "Upload-Offset": SENTINEL, "Upload-Complete": SENTINEL}
        ),
        lambda: api.http.get(f"/v1/tasks/{SENTINEL}", headers=api.operator),
        lambda: api.http.get(f"/{SENTINEL}?token={SENTINEL}", headers={"X-Request-Id": "hrc_" + SENTINEL}),
        lambda: api.http.get(f"{task.path}/rounds/{SENTINEL}?wait={SENTINEL}", headers=api.operator),
        lambda: api.http.get("/v1/tasks", headers={"Authorization": f"Bearer hro_{SENTINEL}"}),
        lambda: api.http.get("/v1/tasks", headers={"Authorization": f"Basic {SENTINEL}"}),
        lambda: api.http.post("/v1/tasks", content=f'{{"name": "{SENTINEL}', headers=api.operator),
        lambda: api.http.post("/v1/tasks", json={"name": SENTINEL, SENTINEL: SENTINEL}, headers=api.operator),
        lambda: api.http.post("/v1/tasks", content=wrong * 1000, headers=api.operator),
        lambda: api.http.post("/v1/enrolments", json=enrolment(f"hri_{SENTINEL}")),
        lambda: api.http.post(f"{task.path}/invitations", json={"role": SENTINEL}, headers=api.operator),
        lambda: api.http.get(f"{task.path}/rounds/current", headers=other.auth | {"If-None-Match": SENTINEL}),
    ]
    for refusal in refusals:
        assert refusal().status_code >= 400 or refusal is refusals[-1]
    api.http.post(f"{task.path}/close", headers=api.operator)
    api.http.close()


def enrolment(invitation: str) -> dict[str, str]:
    return Identity.generate().enrolment(invitation, None).model_dump(mode="json")


@pytest.mark.parametrize("mechanism", ["plain", "ckks"])
def test_logs_and_problems_contain_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture, mechanism: str) -> None:
    caplog.set_level(logging.DEBUG)  # includes the log lines of the client's libraries
    record = Record()
    with running_aggregator(tmp_path / "data", log_level="debug", fold_batch=2, test_spawns_workers=1) as server:
        with Operator(server.url, server.operator_token, driver=SyncDriver(transport=record)) as operator:
            task = small_task(operator, "secrets", users=USERS, recipe="colr", mechanism=mechanism)
            identities, stores = play(server, task, record)
            assert operator.task("secrets").state == "complete"
            send_bad_requests(server, record)
        written = server.log()
    everything = "\n".join([written, *record.problems, caplog.text])
    assert written.count('"message": "request"') > 40
    assert len(record.problems) >= 15

    assert SENTINEL not in "\n".join([written, *record.problems])  # the caller's own log may contain its own input
    texts = {server.operator_token, task.invitation, *(text for text in record.texts if SENTINEL not in text)}
    texts |= {task.holder_invitation} if task.holder_invitation else set()
    texts |= {hash_token(text) for text in texts}
    secrets = [body for body in record.bodies if len(body) >= WINDOW and SENTINEL.encode() not in body]
    for identity, store in zip(identities, stores, strict=True):
        secrets += [identity.signing_key.private_bytes_raw(), identity.mailbox.private_bytes_raw()]
        secrets += [body for (_, _, name), body in store._bodies.items() if name in ("keyring.bin", "memory.npz")]
    assert len(secrets) > 3 * USERS
    # a request that is repeated within a second has the same signature
    assert record.signed > 40
    assert sum(len(text) == SIGNATURE_LENGTH for text in texts) > 20
    for text in texts:
        assert text not in everything
    leaked = [form for secret in secrets for form in forms(secret) if form in everything]
    assert not leaked
