"""The committed OpenAPI document equals the app's. `tests/fuzz` checks that the app behaves as it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.app import create_app
from aggregator_service.routes.openapi import document_text
from aggregator_service.settings import Settings

COMMITTED = Path(__file__).parents[3] / "openapi" / "openapi.json"


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
    if name not in ("POST /v1/enrolments", "GET /v1/enrolments/task", "GET /healthz", "GET /readyz"):
        assert operation["security"] == [{"bearer": []}]


def test_every_json_body_has_an_example() -> None:
    schemas = json.loads(COMMITTED.read_text(encoding="utf-8"))["components"]["schemas"]
    for message in ("TaskRequest", "TaskView", "RoundView", "Enrolment", "EnrolmentRequest", "UploadReceipt"):
        assert schemas[message]["examples"]


def test_links_name_existing_operations_and_parameters() -> None:
    found = {operation["operationId"]: operation for _, operation in operations()}
    linked = set()
    for _, operation in operations():
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                target = found[link["operationId"]]
                names = {parameter["name"] for parameter in target.get("parameters", [])}
                assert {name.rpartition(".")[2] for name in link["parameters"]} <= names
                linked.add(link["operationId"])
    unlinked = {name for name, operation in operations() if operation["operationId"] not in linked}
    entries = {name for name in unlinked if "{" not in name}  # operations that need no earlier response
    assert unlinked == entries
