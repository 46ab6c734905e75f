"""What browsers and tools expect of any server: HEAD, cross-origin requests, a page at `/`, media types."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from pydantic import ValidationError

from aggregator_service.settings import Settings
from tests.support.api import Api
from tests.support.server import AggregatorProcess, running_aggregator

ORIGIN = "https://app.example.org"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "authorization, content-digest, signature, signature-input",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("browsers") / "data") as server:
        yield server


def test_head_is_get_without_the_body(api: Api) -> None:
    task = api.create_task("heads")
    for path in ("/", "/healthz", "/openapi.json", f"/v1/tasks/{task.id}", "/v1/tasks/t_none", "/dashboard/sign-in"):
        head, got = api.http.head(path, headers=api.operator), api.http.get(path, headers=api.operator)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers.get("content-type") == got.headers.get("content-type")
        if "text/html" not in got.headers["content-type"]:  # pages hold the time
            assert head.headers["content-length"] == got.headers["content-length"]


def test_a_signed_head_request_is_verified_as_head(api: Api) -> None:
    task = api.create_task("signed-heads")
    [member] = task.enrol(1)
    answer = api.http.head(task.path, headers=member.auth)
    assert (answer.status_code, answer.content) == (200, b"")


def test_the_front_page_is_html_for_browsers_and_json_for_programs(api: Api) -> None:
    shown = api.http.get("/", headers={"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"})
    assert shown.status_code == 200
    assert shown.headers["content-type"].startswith("text/html")
    assert "HushRec aggregator" in shown.text
    assert "style-src 'self'" in shown.headers["content-security-policy"]
    told = api.http.get("/", headers={"Accept": "application/json"})
    assert told.json() == {
        "service": "hushrec aggregator",
        "openapi": "/openapi.json",
        "dashboard": "/dashboard",
        "health": "/healthz",
    }
    for path in list(told.json().values())[1:]:
        assert api.http.get(path).status_code in (200, 303)


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/cbor"])
def test_a_body_that_is_not_json_gets_415(api: Api, media_type: str) -> None:
    headers = {**api.operator, "Content-Type": media_type}
    answer = api.http.post("/v1/tasks", content=b'{"name": "x"}', headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"])
def test_json_media_types_are_read(api: Api, media_type: str) -> None:
    headers = {**api.operator, "Content-Type": media_type}
    assert api.http.post("/v1/tasks", content=b'{"name": "x"}', headers=headers).status_code == 422


@pytest.fixture(scope="module")
def open_to_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    folder = tmp_path_factory.mktemp("cors")
    with running_aggregator(folder / "data", cors_origins=f"{ORIGIN}, http://localhost:5173") as server:
        yield server


def test_listed_origins_may_call_the_api(open_to_pages: AggregatorProcess) -> None:
    with httpx.Client(base_url=open_to_pages.url) as http:
        asked = http.options("/v1/tasks/t_none/rounds/1/aggregate", headers=PREFLIGHT)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        answer = http.get("/v1/tasks", headers={"Origin": ORIGIN})
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "Retry-After" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers


def test_other_origins_and_the_dashboard_get_no_permission(open_to_pages: AggregatorProcess, api: Api) -> None:
    with httpx.Client(base_url=open_to_pages.url) as http:
        for origin in ("https://evil.example.org", "http://app.example.org", "null"):
            refused = http.options("/v1/tasks", headers={**PREFLIGHT, "Origin": origin})
            assert refused.status_code == 400
            assert "access-control-allow-origin" not in refused.headers
            assert "access-control-allow-origin" not in http.get("/v1/tasks", headers={"Origin": origin}).headers
        page = http.get("/dashboard/sign-in", headers={"Origin": ORIGIN})
        assert "access-control-allow-origin" not in page.headers
    assert "access-control-allow-origin" not in api.http.get("/v1/tasks", headers={"Origin": ORIGIN}).headers
    assert "access-control-allow-origin" not in api.http.options("/v1/tasks", headers=PREFLIGHT).headers


@pytest.mark.parametrize("origin", ["*", "app.example.org", "https://app.example.org/path", "null"])
def test_an_origin_that_is_none_is_refused_at_start(origin: str) -> None:
    with pytest.raises(ValidationError, match="an origin has the form"):
        Settings(cors_origins=origin)
