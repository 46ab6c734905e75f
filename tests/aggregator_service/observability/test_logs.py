"""What the server logs, and spans of a round: lines as text and as JSON, requests and their ids, no secrets."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import h11
import httpx
import pytest
from alembic import command
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, StatusCode
from sqlalchemy import make_url

from aggregator_service.access.principals import hash_token
from aggregator_service.app import open_tracing
from aggregator_service.logs import REQUEST_ID, JsonFormatter, configure_logging, fields
from aggregator_service.migrations.migrate import alembic_config
from aggregator_service.storage.database import Database
from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.api.http import SyncDriver
from protocols.errors import ParameterError
from tests.support.api import Api, aggregator_inside, digest_field, services, slug
from tests.support.replicas import TestDatabase
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.signing import SIGNED
from tests.support.tasks import SmallTask, interactions, small_task, take_part_together

SERVICE = logging.getLogger("aggregator_service")
LOGGER = logging.getLogger("aggregator_service.tests_of_lines")


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """Returns the lines on standard error; the configuration of the service's logs is restored afterwards."""
    loggers = SERVICE, logging.getLogger("uvicorn")
    before = [(one.handlers[:], one.level, one.propagate) for one in loggers]

    def written() -> list[str]:
        return capsys.readouterr().err.splitlines()

    yield written
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_has_the_fields_of_its_record_the_id_of_the_request_and_a_traceback(
    lines: Callable[[], list[str]], form: Literal["text", "json"]
) -> None:
    configure_logging(form, "warning")
    token = REQUEST_ID.set("r-1")
    LOGGER.info("below the level")
    LOGGER.warning("uploaded", extra=fields(task="t_1", round=3, digest=None, client="é"))
    REQUEST_ID.reset(token)
    try:
        raise ValueError("a defect")
    except ValueError:
        LOGGER.exception("failed", extra=fields(task="t_1"))
    line, failure, *trace = lines()
    if form == "json":
        found = json.loads(line)
        datetime.fromisoformat(found.pop("time"))
        common = {"level": "warning", "logger": LOGGER.name, "message": "uploaded"}
        assert found == {**common, "request": "r-1", "task": "t_1", "round": 3, "client": "é"}
        trace = [json.loads(failure)["exception"].splitlines()[-1]]
    else:
        assert line[24:] == "WARNING uploaded request=r-1 task=t_1 round=3 client=é"
        assert failure[24:] == "ERROR failed task=t_1"
    assert trace[-1] == "ValueError: a defect"


def test_warnings_of_uvicorn_are_logged_once_a_second_and_errors_always(lines: Callable[[], list[str]]) -> None:
    configure_logging("text")
    uvicorn = logging.getLogger("uvicorn.error")
    for _ in range(3):
        uvicorn.warning("Invalid HTTP request received.")
        uvicorn.warning("No supported WebSocket library detected. Please use pip")
        uvicorn.error("a fault of ours")
    for error in (h11.LocalProtocolError("too late"), ValueError("ours")):
        try:
            raise error
        except Exception:
            uvicorn.exception("Exception in ASGI application")
    found = [line.split(" ", 2)[2] for line in lines() if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert found == [
        "WARNING Invalid HTTP request received.",
        *["ERROR a fault of ours"] * 3,
        "WARNING Response not sent: malformed bytes followed its request.",
        "ERROR Exception in ASGI application",
    ]


def test_the_first_lines_name_version_database_store_and_migration(postgres: TestDatabase, tmp_path: Path) -> None:
    url = make_url(postgres.schema()).set(password="geheim")
    text = url.render_as_string(hide_password=False)
    with closing(Database(text, 1)) as database:
        database.migrating(lambda connection: command.upgrade(alembic_config(connection), "0001"))
    with running_aggregator(tmp_path / "data", database_url=text, blobs=f"dir:{tmp_path / 'blobs'}") as server:
        first, *rest = [json.loads(line) for line in server.log().splitlines()]
    assert first["message"].startswith(
        f"hushrec-server {version('hushrec')}, database: PostgreSQL {postgres.name} on {url.host}"
    )
    assert first["message"].endswith(f"blobs: dir:{tmp_path / 'blobs'}")
    migrated = next(line for line in rest if "migrated the tables of the database from 0001 to" in line["message"])
    assert migrated["level"] == "warning"
    assert "geheim" not in server.log()


MADE = re.compile(r"^[0-9a-f]{16}$")


class Lines(logging.Handler):
    """Formats records as the server does, when they are logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    def named(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["message"].startswith(message)]


@pytest.fixture
def logged() -> Iterator[Lines]:
    handler, level = Lines(), SERVICE.level
    SERVICE.addHandler(handler)
    SERVICE.setLevel(logging.DEBUG)
    yield handler
    SERVICE.removeHandler(handler)
    SERVICE.setLevel(level)


def test_every_request_has_an_id_its_own_or_the_clients_where_it_is_valid(inside: Api) -> None:
    for offered in ("a", "0af7651916cd43dd8448eb211c80319c", "Trace_1.2-3", "x" * 64):
        assert inside.http.get("/healthz", headers={"X-Request-Id": offered}).headers["x-request-id"] == offered
    for offered in ("", "x" * 65, "two words", 'a"b', "<b>", "-x", "hrc_token", "hri_secret", "é"):
        given = inside.http.get("/healthz", headers={"X-Request-Id": offered.encode("latin-1")}).headers["x-request-id"]
        assert MADE.match(given), offered
    long = inside.http.post("/v1/tasks", content=b"x" * 100_000)
    answers = [inside.http.get("/healthz"), inside.http.get("/nowhere"), long]
    assert [answer.status_code for answer in answers] == [200, 404, 413]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 3
    assert all(MADE.match(one) for one in ids)


def test_each_request_is_one_line_with_ids_sizes_and_times(inside: Api, logged: Lines) -> None:
    task, (member, _) = inside.begin(2)
    enrolled = [line for line in logged.named("request") if line["route"] == "/v1/enrolments"][0]
    assert (enrolled["status"], enrolled["task"], enrolled["role"]) == (201, task.id, "member")
    assert enrolled["client"] == member.client_id
    assert member.token not in json.dumps(logged.lines)
    logged.lines.clear()
    body = member.contribution(1, 5.0)
    assert member.put(1, body, {"X-Request-Id": "upload-1"}).status_code == 201
    (line,) = [line for line in logged.named("request") if line["method"] == "PUT"]
    assert line.pop("milliseconds") > 0
    for name in ("time", "level", "logger", "sent"):
        line.pop(name)
    assert line == {
        "message": "request",
        "request": "upload-1",
        "method": "PUT",
        "route": "/v1/tasks/{task}/rounds/{number}/contributions/{client}",
        "status": 201,
        "received": len(body),
        "task": task.id,
        "round": 1,
        "client": member.client_id,
        "digest": hashlib.sha256(body).hexdigest(),
    }


def test_the_number_of_a_sum_is_not_logged_as_that_of_a_round(inside: Api, logged: Lines) -> None:
    task = inside.create_task()
    logged.lines.clear()
    for path in ("sums/99", "rounds/99"):
        inside.http.get(f"{task.path}/{path}", headers=inside.operator)
    assert [line.get("round") for line in logged.named("request")] == [None, 99]


def test_lines_have_ids_problems_and_levels_but_no_text_from_the_request(inside: Api, logged: Lines) -> None:
    """Most requests are polls: what only reads and succeeds is logged at debug level."""
    inside.http.headers["X-Request-Id"] = "create-1"
    inside.create_task("lines")
    del inside.http.headers["X-Request-Id"]
    (created,) = logged.named("task created")
    assert created["request"] == "create-1"  # also in another thread
    for path in ("/v1/tasks", "/v1/tasks/t_INJECTED%0a%22x/rounds/99999999999999?wait=1&secret=hri_abc"):
        inside.http.get(path, headers=inside.operator)
    levels = [(line["method"], line["status"], line["level"]) for line in logged.named("request")]
    assert levels == [("POST", 201, "info"), ("GET", 200, "debug"), ("GET", 422, "info")]
    refused = logged.named("request")[-1]
    assert refused["problem"] == "invalid-parameters"
    assert not re.search("INJECTED|secret|hri_|9999", json.dumps(refused))


def test_an_unexpected_exception_is_a_problem_with_an_id_and_a_logged_traceback(
    inside: Api, logged: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services(inside).database, "read", lambda: 1 / 0)
    answer = inside.http.get("/v1/tasks", headers={"Authorization": "Bearer nobody", "X-Request-Id": "boom"})
    assert (answer.status_code, slug(answer), answer.headers["x-request-id"]) == (500, "internal-error", "boom")
    (failure,) = logged.named("unhandled")
    assert failure["request"] == "boom"
    assert "ZeroDivisionError" in failure["exception"]
    assert logged.named("request")[0]["problem"] == "internal-error"


USERS = 3
WINDOW = 12
SIGNATURE_LENGTH = 88
SENTINEL = "Sentinel7Value"
"""Stands for a secret that a caller puts in the wrong place."""


class Record(httpx.HTTPTransport):
    def __init__(self) -> None:
        super().__init__()
        self.bodies, self.texts, self.problems, self.signed = list[bytes](), set[str](), list[str](), 0

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
            self.texts |= {sent["invitation"], sent["signature"], got.get("token", sent["signature"])}
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
    policy = Policy(mechanisms=frozenset({"ckks"}), snapshot_every=1)
    clients = [
        Client(server.url, identity, store, policy, driver=SyncDriver(transport=record))
        for identity, store in zip(identities, stores, strict=True)
    ]
    take_part_together([task.join(client, place) for place, client in enumerate(clients)], interactions(USERS))
    return identities, stores


def send_bad_requests(server: AggregatorProcess, record: Record) -> None:
    """Get refused in every way, with the sentinel in each place that a caller can fill."""
    api = Api(server.url, server.operator_token)
    api.http = httpx.Client(base_url=server.url, transport=record, timeout=30, auth=SIGNED)
    task, (member, other) = api.begin(2, "provoked")
    good, wrong = member.contribution(1, 5.0), SENTINEL.encode() * 50
    assert member.put(1, good).status_code == 201
    refused = [
        member.put(1, member.contribution(1, 6.0)),
        other.put(1, wrong),
        other.put(1, wrong.ljust(len(good), b"\xff")[: len(good)]),
        other.put(1, good, {"Content-Digest": digest_field(wrong)}),
        other.put(1, good, {"Content-Digest": SENTINEL}),
        other.piece(0, b"x", Upload_Offset=SENTINEL, Upload_Complete=SENTINEL),
    ]
    for path, headers in (
        (f"/v1/tasks/{SENTINEL}", api.operator),
        (f"/{SENTINEL}?token={SENTINEL}", {"X-Request-Id": "hrc_" + SENTINEL}),
        (f"{task.path}/rounds/{SENTINEL}?wait={SENTINEL}", api.operator),
        ("/v1/tasks", {"Authorization": f"Bearer hro_{SENTINEL}"}),
        ("/v1/tasks", {"Authorization": f"Basic {SENTINEL}"}),
    ):
        refused.append(api.http.get(path, headers=headers))
    enrolment = Identity.generate().enrolment(f"hri_{SENTINEL}", None).model_dump(mode="json")
    for path, body in (
        ("/v1/tasks", f'{{"name": "{SENTINEL}'),
        ("/v1/tasks", json.dumps({"name": SENTINEL, SENTINEL: SENTINEL})),
        ("/v1/tasks", SENTINEL * 50_000),
        ("/v1/enrolments", json.dumps(enrolment)),
        (f"{task.path}/invitations", json.dumps({"role": SENTINEL})),
    ):
        headers = {**api.operator, "Content-Type": "application/json"}
        refused.append(api.http.post(path, content=body, headers=headers))
    assert all(answer.status_code >= 400 for answer in refused)
    api.http.get(f"{task.path}/rounds/current", headers=other.auth | {"If-None-Match": SENTINEL})
    task.close()
    api.http.close()


def test_logs_and_problems_contain_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)  # includes the log lines of the client's libraries
    record = Record()
    with running_aggregator(tmp_path / "data", log_level="debug", fold_batch=2, test_spawns_workers=1) as server:
        with Operator(server.url, server.operator_token, driver=SyncDriver(transport=record)) as operator:
            task = small_task(operator, "secrets", users=USERS, recipe="colr", mechanism="ckks")
            identities, stores = play(server, task, record)
            assert operator.task("secrets").state == "complete"
            send_bad_requests(server, record)
        written = server.log()
    everything = "\n".join([written, *record.problems, caplog.text])
    assert written.count('"message": "request"') > 40
    assert len(record.problems) >= 15

    assert SENTINEL not in "\n".join([written, *record.problems])  # the caller's own log may contain its own input
    texts = {server.operator_token, task.invitation, task.holder_invitation}
    texts |= {text for text in record.texts if SENTINEL not in text}
    texts |= {hash_token(text) for text in texts}
    secrets = [body for body in record.bodies if len(body) >= WINDOW and SENTINEL.encode() not in body]
    for identity, store in zip(identities, stores, strict=True):
        secrets += [identity.signing_key.private_bytes_raw(), identity.mailbox.seed]
        secrets += [body for (_, _, name), body in store._bodies.items() if name in ("keyring.bin", "memory.npz")]
    assert len(secrets) > 3 * USERS
    # a request that is repeated within a second has the same signature
    assert record.signed > 40
    assert sum(len(text) == SIGNATURE_LENGTH for text in texts) > 20
    for text in texts:
        assert text not in everything
    assert not [form for secret in secrets for form in forms(secret) if form in everything]


CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def test_spans_of_a_whole_round(tmp_path: Path, spans: tuple[TracerProvider, InMemorySpanExporter]) -> None:
    provider, exporter = spans
    with aggregator_inside(tmp_path / "data", tracer_provider=provider) as api:
        task, members = api.begin(2)
        for member in members:
            body = member.contribution(1, 2.0)
            headers = {"traceparent": CALLER, "X-Request-Id": "upload"}
            assert member.put(1, body, headers).status_code == 201
        task.wait_round(1, "complete")
        assert api.http.get("/v1/tasks/t_secretname/rounds/1?wait=0&x=hri_secret").status_code == 401
    found = exporter.get_finished_spans()
    by_name = {span.name: span for span in found}
    route = "/v1/tasks/{task}/rounds/{number}/contributions/{client}"
    upload, where = by_name[f"PUT {route}"], {"hushrec.task": task.id, "hushrec.round": 1}
    assert dict(upload.attributes or {}) == where | {
        "http.request.method": "PUT",
        "http.route": route,
        "http.response.status_code": 201,
        "hushrec.request_id": "upload",
    }
    assert upload.parent is not None and f"{upload.parent.trace_id:032x}" in CALLER
    assert upload.status.status_code is not StatusCode.ERROR
    for name, numbers in {"fold": {"hushrec.batch": 2}, "release": {"hushrec.survivors": 2}}.items():
        assert dict(by_name[name].attributes or {}) == where | numbers
    everything = " ".join(span.to_json() for span in found)
    assert "secret" not in everything
    assert members[0].token not in everything


def test_spans_are_exported_to_a_collector_where_the_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_tracing("none")[0], NoOpTracerProvider)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    provider, flush = open_tracing("otlp")
    assert provider.get_tracer("x").start_span("y").is_recording()
    flush()  # no span has ended, so none is exported
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ParameterError, match="the extra `otel`"):
        open_tracing("otlp")
