"""Rules for every route: a limit on the body, and security headers on the response."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, TestMember, digest_field
from tests.support.inside import aggregator_inside

DOCUMENT = json.loads((Path(__file__).parents[3] / "openapi" / "openapi.json").read_text(encoding="utf-8"))
ROUTES = sorted((method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods)
RAW = [(method, path) for method, path in ROUTES if method in ("PUT", "PATCH")]
JSON_LIMIT = 2048
OTHERS = [("GET", "/nowhere"), ("BREW", "/v1/tasks"), ("GET", "/openapi.json")]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("edges")
    with aggregator_inside(folder / "data", json_body_limit=JSON_LIMIT, envelope_limit=4096, hsts_seconds=60) as inside:
        yield inside


@pytest.fixture(scope="module")
def members(api: Api) -> dict[str, TestMember]:
    """A member in an open round, and a holder of the same keyed task."""
    plain = api.create_task("plain", cohort=2)
    member, _ = plain.enrol(2)
    plain.wait_round(1, "collecting")
    keyed = api.create_task("keyed", cohort=2, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    (holder,) = keyed.enrol(1, role="holder")
    return {"member": member, "holder": holder}


def filled(path: str, who: TestMember) -> str:
    known = {"task": who.task.id, "client": who.client_id, "number": "1", "stage": "advertise", "name": "nobody"}
    known["invitation"] = "i_" + "0" * 20
    return re.sub(r"\{(\w+)\}", lambda found: known[found.group(1)], path)


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route not in RAW])
@pytest.mark.parametrize("chunked", [False, True])
def test_every_route_limits_json_bodies(
    api: Api, members: dict[str, TestMember], method: str, path: str, chunked: bool
) -> None:
    body = b'{"name": "' + b"x" * JSON_LIMIT + b'"}'
    sent = (body[start : start + 100] for start in range(0, len(body), 100)) if chunked else body
    headers = {**api.operator, "Content-Type": "application/json"}
    answer = api.http.request(method, filled(path, members["member"]), content=sent, headers=headers)
    assert answer.status_code == (400 if chunked else 413), answer.text
    if method != "HEAD":
        assert answer.json()["type"] == f"urn:hushrec:problem:{'bad-request' if chunked else 'body-too-long'}"


@pytest.mark.parametrize(("method", "path"), RAW)
@pytest.mark.parametrize("who", ["member", "holder"])
def test_every_route_limits_raw_bodies(
    api: Api, members: dict[str, TestMember], method: str, path: str, who: str
) -> None:
    body, bearer = bytes(1_000_000), members[who]
    headers = {
        **bearer.auth,
        "Content-Digest": digest_field(body),
        "Repr-Digest": digest_field(body),
        "Upload-Offset": "0",
        "Upload-Complete": "?1",
        "Content-Type": "application/partial-upload" if method == "PATCH" else "application/octet-stream",
    }
    answer = api.http.request(method, filled(path, bearer), content=body, headers=headers)
    slug = answer.json()["type"].rpartition(":")[2]
    # refused before the body is read, or because of its length
    assert slug in ("body-too-long", "forbidden", "not-found", "conflict"), answer.text
    uploads = list((Path(api.http.app.state.services.settings.data_dir) / "uploads").glob("*"))  # type: ignore[attr-defined]
    assert not uploads
    unannounced = (bytes(1000) for _ in range(1000))
    chunked = api.http.request(method, filled(path, bearer), content=unannounced, headers=headers)
    assert chunked.json()["type"].rpartition(":")[2] == "bad-request"


@pytest.mark.parametrize(
    ("method", "path"), [*ROUTES, ("GET", "/nowhere"), ("BREW", "/v1/tasks"), ("GET", "/openapi.json")]
)
@pytest.mark.parametrize("known", [False, True])
def test_every_response_has_the_security_headers(
    api: Api, members: dict[str, TestMember], method: str, path: str, known: bool
) -> None:
    headers = api.operator if known else {}
    answer = api.http.request(method, filled(path, members["member"]), headers=headers)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["strict-transport-security"] == "max-age=60"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src" not in policy
    kept = path in ("/v1/tasks/{task}", "/v1/tasks/{task}/members/me/ledger") and answer.status_code == 200
    # what is kept, the client alone keeps, and it asks each time whether it has changed
    assert answer.headers["cache-control"] == ("private, no-cache" if kept else "no-store")
    assert not kept or "etag" in answer.headers
    assert "server" not in answer.headers


@pytest.mark.parametrize("path", ["/docs", "/docs/oauth2-redirect", "/redoc"])
def test_no_page_loads_a_viewer_from_another_host(api: Api, path: str) -> None:
    answer = api.http.get(path, headers=api.operator)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert "http" not in answer.headers["content-security-policy"]
    assert api.http.get("/openapi.json").json()["paths"]  # any viewer can show it


@pytest.mark.parametrize("path", ["/v1/tasks/", "/healthz/", "/v1/operators/"])
def test_no_response_redirects_to_the_host_of_the_request(api: Api, path: str) -> None:
    answer = api.http.get(path, headers={**api.operator, "Host": "elsewhere.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "elsewhere" not in str(answer.headers) + answer.text


def test_immutable_responses_may_be_cached(api: Api) -> None:
    task = api.create_task("kept", cohort=2)
    for member in task.enrol(2):
        task.wait_round(1, "collecting")
        assert member.put(1, member.contribution(1, 1.0)).status_code == 201
    task.wait_round(1, "complete")
    first = api.http.get(f"{task.path}/rounds/1/aggregate", headers=api.operator)
    again = {**api.operator, "If-None-Match": first.headers["etag"]}
    second = api.http.get(f"{task.path}/rounds/1/aggregate", headers=again)
    assert (first.status_code, second.status_code) == (200, 304)
    assert first.headers["cache-control"] == second.headers["cache-control"] == "private, immutable"


def test_without_the_setting_there_is_no_strict_transport_security(tmp_path: Path) -> None:
    with aggregator_inside(tmp_path / "data") as api:
        assert "strict-transport-security" not in api.http.get("/healthz").headers
