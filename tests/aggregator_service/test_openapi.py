"""The committed OpenAPI document is the app's, and the app keeps to it whatever it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aggregator_service.app import create_app
from aggregator_service.openapi import document_text
from aggregator_service.settings import Settings
from tests.support.api import Api, TestMember
from tests.support.server import OPERATOR_TOKEN, AggregatorProcess, running_aggregator

COMMITTED = Path(__file__).parents[2] / "openapi" / "openapi.json"


def test_the_committed_document_is_current() -> None:
    expected = document_text(create_app(Settings()))
    assert COMMITTED.read_text(encoding="utf-8") == expected, "run: make openapi"


def operations() -> list[tuple[str, dict[str, Any]]]:
    document = json.loads(COMMITTED.read_text(encoding="utf-8"))
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


@pytest.mark.parametrize(("name", "operation"), operations(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_operation_is_described(name: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    assert any(status in operation["responses"] for status in ("200", "201"))
    refusals = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
    assert refusals
    for answer in refusals.values():
        assert set(answer["content"]) == {"application/problem+json"}
        assert answer["content"]["application/problem+json"]["examples"]
    if name.startswith(("PUT", "PATCH")):
        ((media_type, body),) = operation["requestBody"]["content"].items()
        assert media_type in ("application/octet-stream", "application/partial-upload")
        assert body["schema"] == {"type": "string", "format": "binary"}
    if name not in ("POST /v1/enrolments", "GET /healthz", "GET /readyz"):
        assert operation["security"] == [{"bearer": []}]


def test_every_json_body_has_an_example() -> None:
    schemas = json.loads(COMMITTED.read_text(encoding="utf-8"))["components"]["schemas"]
    for message in ("TaskRequest", "TaskView", "RoundView", "Enrolment", "EnrolmentRequest", "UploadReceipt"):
        assert schemas[message]["examples"]


schemathesis.serializer.alias("application/partial-upload", "application/octet-stream")

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """A real server; `wait` is cut short, so that no example waits for seconds."""
    with running_aggregator(tmp_path_factory.mktemp("schemathesis") / "data", wait_max_seconds=0.02) as running:
        yield running


@pytest.fixture(scope="module")
def member(server: AggregatorProcess) -> Iterator[TestMember]:
    """A member who is asked in the open round 1."""
    api = Api(server.url, server.operator_token)
    task = api.create_task(cohort=2)
    found, _ = task.enrol(2)
    task.wait_round(1, "collecting")
    yield found
    api.close()


@schemathesis.openapi.from_path(COMMITTED).parametrize()
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_upsets_the_server(case: Case, server: AggregatorProcess, member: TestMember) -> None:
    """Whatever is sent, as an operator to any address and as a member to its own: documented answers only, no 5xx."""
    operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    case.call_and_validate(base_url=server.url, headers=operator, checks=CHECKS)
    own = {"task": member.task.id, "client": member.client_id, "number": 1, "stage": "advertise", "name": "nobody"}
    if case.path_parameters:
        case.path_parameters.update({name: own[name] for name in case.path_parameters})
        case.call_and_validate(base_url=server.url, headers=member.auth, checks=CHECKS)
