"""What HTTP libraries, browsers and proxies rely on, rules for every route, and downloads by many members."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from protocols.messages import stages
from tests.support.api import (
    Api,
    TestMember,
    aggregator_inside,
    checked,
    contribute,
    digest_field,
    refusal,
    services,
    serving,
    slug,
)
from tests.support.masked import enrol_masked, masked_task
from tests.support.oneshot import oneshot_task
from tests.support.replicas import wait_until
from tests.support.signing import SIGNED, raw_head

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))


JSON_LIMIT = 2048


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("manners")
    with aggregator_inside(folder / "data", json_body_limit=JSON_LIMIT, envelope_limit=4096, hsts_seconds=60) as inside:
        yield inside


@pytest.fixture(scope="module")
def members(api: Api) -> dict[str, TestMember]:
    """A member in an open round, and a holder of a keyed task."""
    member, _ = api.create_task("plain", cohort=2).begin(2)
    keyed = api.create_task("keyed", cohort=2, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    (holder,) = keyed.enrol(1, role="holder")
    return {"member": member, "holder": holder}


def test_there_is_an_answer_before_the_first_round(api: Api) -> None:
    early = api.create_task("early", cohort=2)
    (member,) = early.enrol(1)
    path = f"{early.path}/rounds/current"
    first = api.http.get(path, headers=member.auth)
    assert (first.status_code, first.content, first.headers["etag"]) == (204, b"", 'W/"0"')
    same = {**member.auth, "If-None-Match": f'"other", {first.headers["etag"]}'}
    assert api.http.get(f"{path}?wait=0.01", headers=same).status_code == 304
    early.enrol(1)
    assert api.http.get(f"{path}?wait=20", headers=same).json()["number"] == 1


def test_a_401_says_what_a_signature_covers(api: Api, members: dict[str, TestMember]) -> None:
    task = members["member"].task
    poll = checked(api.http.get(f"{task.path}/rounds/current?wait=1"), 401)
    expected = 'hushrec=("@method" "@authority" "@path" "@query");created;keyid;tag="hushrec"'
    assert poll.headers["accept-signature"] == expected
    fields = {"Content-Digest": digest_field(b"x"), "Upload-Offset": "0", "Upload-Complete": "?0"}
    path = f"{task.path}/rounds/1/contributions/c_{'0' * 20}"
    chunk = api.http.patch(path, content=b"x", headers={**fields, "Content-Type": "application/partial-upload"})
    covered = '("@method" "@authority" "@path" "content-digest" "upload-complete" "upload-offset")'
    assert covered in chunk.headers["accept-signature"]
    assert "accept-signature" not in api.http.get(task.path, headers=api.operator).headers


def test_bodies_have_media_types_of_their_own(api: Api) -> None:
    masked = masked_task(api, "typed", 5)
    members = enrol_masked(masked, 5)
    masked.wait_round(1, "advertising")
    bodies = {place: member.make(1, "advertise") for place, member in members.items()}
    for place, member in members.items():
        path = f"{masked.path}/rounds/1/stages/advertise/{member.client_id}"
        headers = {**member.auth, "Content-Digest": digest_field(bodies[place])}
        wrong = {**headers, "Content-Type": stages.STAGE_TYPES["share"]}
        refused = api.http.put(path, content=bodies[place], headers=wrong)
        assert (refused.status_code, slug(refused)) == (415, "unsupported-media-type")
        typed = {**headers, "Content-Type": stages.STAGE_TYPES["advertise"]}
        assert api.http.put(path, content=bodies[place], headers=typed).status_code == 201
    masked.wait_round(1, "sharing")
    roster = api.http.get(f"{masked.path}/rounds/1/roster", headers=members[0].auth)
    assert roster.headers["content-type"] == "application/vnd.hushrec.roster"


def test_uploads_in_chunks_answer_as_the_draft_says(api: Api) -> None:
    (member, _) = api.create_task("limits", cohort=2).begin(2)
    body = member.contribution(1, 1.0)
    asked = checked(api.http.head(member.path(1), headers=member.auth), 204)
    names = ("upload-offset", "upload-complete", "upload-length", "cache-control")
    assert [asked.headers[name] for name in names] == ["0", "?0", str(len(body)), "no-store"]
    limits = dict(part.split("=") for part in asked.headers["upload-limit"].split(", "))
    assert {limits["max-size"], limits["min-size"]} == {str(len(body))}
    assert int(limits["min-append-size"]) * 1001 >= len(body) and int(limits["max-age"]) > 0

    part = member.piece(0, body[:8], Upload_Length=str(len(body)))
    assert (part.status_code, part.headers["upload-complete"], part.headers["upload-offset"]) == (204, "?0", "8")
    other = member.piece(8, body[8:], body, Upload_Length=str(len(body) + 1))
    assert (other.status_code, other.json()["expected_bytes"]) == (400, len(body))
    assert other.json()["type"] == "https://iana.org/assignments/http-problem-types#inconsistent-upload-length"
    long = member.piece(8, body[8:] + b"more")
    assert (long.status_code, "max-size" in long.headers["upload-limit"]) == (413, True)
    typed = member.piece(8, body[8:], body, Content_Type="text/plain")
    assert (typed.status_code, typed.headers["accept-patch"]) == (415, "application/partial-upload")
    for status in (201, 200):
        done = member.piece(8, body[8:], body)
        assert (done.status_code, done.headers["upload-complete"]) == (status, "?1")
    late = member.piece(8, b"x")
    assert (late.status_code, late.headers["upload-complete"]) == (409, "?1")
    assert late.json()["type"] == "https://iana.org/assignments/http-problem-types#mismatching-upload-offset"
    assert (late.json()["expected-offset"], late.json()["provided-offset"]) == (len(body), 8)
    asked = api.http.request("OPTIONS", member.path(1))
    assert (asked.status_code, asked.headers["accept-patch"]) == (405, "application/partial-upload")


def test_allow_lists_every_method(api: Api) -> None:
    for path, methods in {
        "/v1/tasks": "GET, HEAD, POST",
        "/v1/tasks/t_1/rounds/1/contributions/c_1": "HEAD, PATCH, PUT",
        "/v1/tasks/t_1/revocations": "GET, HEAD, PUT",
        "/v1/tasks/t_1/close": "POST",
        "/healthz": "GET, HEAD",
    }.items():
        answer = api.http.request("DELETE", path, headers=api.operator)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)


def test_unknown_query_parameters_are_refused(api: Api, members: dict[str, TestMember]) -> None:
    member = members["member"]
    task = member.task
    for path in (f"{task.path}?verbose=1", f"{task.path}/rounds?limit=1&limit=2", f"{task.path}/rounds/current?wiat=5"):
        answer = api.http.get(path, headers=member.auth)
        assert (answer.status_code, slug(answer)) == (422, "invalid-parameters"), path
        assert answer.json()["errors"][0]["field"].startswith("query")
    for headers in (member.auth, api.operator):  # too long a wait, also where there is nothing to wait for
        answer = api.http.get(f"{task.path}/rounds/current?wait=30.5", headers=headers)
        assert (answer.status_code, slug(answer)) == (422, "invalid-parameters")
    assert api.http.get(f"{task.path}/rounds?limit=1&after=0", headers=member.auth).status_code == 200
    assert api.http.get("/healthz?x=1").status_code == 422


ORIGIN = "https://app.example.org"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "authorization, content-digest, signature, signature-input",
}


def test_head_is_get_without_the_body(api: Api) -> None:
    task = api.create_task("heads")
    for path in ("/", "/healthz", "/openapi.json", f"/v1/tasks/{task.id}", "/v1/tasks/t_none", "/dashboard/sign-in"):
        head, got = (api.http.head(path, headers=api.operator), api.http.get(path, headers=api.operator))
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers.get("content-type") == got.headers.get("content-type")
        if "text/html" not in got.headers["content-type"]:  # pages hold the time
            assert head.headers["content-length"] == got.headers["content-length"]
    [member] = task.enrol(1)
    assert api.http.head(task.path, headers=member.auth).status_code == 200  # what is signed is HEAD


def test_the_front_page_is_html_for_browsers_and_json_for_programs(api: Api) -> None:
    shown = api.http.get("/", headers={"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"})
    assert (shown.status_code, shown.headers["content-type"][:9]) == (200, "text/html")
    assert "style-src 'self'" in shown.headers["content-security-policy"]
    told = api.http.get("/", headers={"Accept": "application/json"}).json()
    assert told.keys() == {"service", "openapi", "dashboard", "health"}
    for path in ("openapi", "dashboard", "health"):
        assert api.http.get(told[path]).status_code in (200, 303)


def test_a_body_must_be_json(api: Api) -> None:
    for media_type, status in (
        *((other, 415) for other in ("text/plain", "application/x-www-form-urlencoded", "", "application/cbor")),
        *((json_, 422) for json_ in ("application/json", "Application/JSON; charset=utf-8", "application/ld+json")),
    ):
        headers = {**api.operator, "Content-Type": media_type}
        answer = api.http.post("/v1/tasks", content=b'{"name": "x"}', headers=headers)
        assert answer.status_code == status, media_type
        assert status != 415 or "application/json" in answer.json()["detail"]


def test_listed_origins_may_call_the_api_and_others_and_the_dashboard_may_not(api: Api, tmp_path: Path) -> None:
    allow = "access-control-allow-origin"
    with aggregator_inside(tmp_path / "data", cors_origins=f"{ORIGIN}, http://localhost:5173") as open_to_pages:
        http = open_to_pages.http
        asked = http.options("/v1/tasks/t_none/rounds/1/aggregate", headers=PREFLIGHT)
        assert (asked.status_code, asked.headers[allow]) == (200, ORIGIN)
        for headers, allowed in (({"Origin": ORIGIN}, ORIGIN), ({}, None)):
            answer = http.get("/v1/tasks", headers=headers)
            assert (answer.status_code, answer.headers.get(allow)) == (401, allowed)
            assert "origin" in answer.headers["vary"].lower()
            assert "access-control-allow-credentials" not in answer.headers
            assert not allowed or "Retry-After" in answer.headers["access-control-expose-headers"]
        for origin in ("https://evil.example.org", "http://app.example.org", "null"):
            refused = http.options("/v1/tasks", headers={**PREFLIGHT, "Origin": origin})
            assert (refused.status_code, refused.headers.get(allow)) == (400, None)
            assert allow not in http.get("/v1/tasks", headers={"Origin": origin}).headers
        assert allow not in http.get("/dashboard/sign-in", headers={"Origin": ORIGIN}).headers
    assert allow not in api.http.get("/v1/tasks", headers={"Origin": ORIGIN}).headers
    assert allow not in api.http.options("/v1/tasks", headers=PREFLIGHT).headers


ROUTES = sorted((method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods)
RAW = [(method, path) for method, path in ROUTES if method in ("PUT", "PATCH")]


def filled(path: str, who: TestMember) -> str:
    known = {"task": who.task.id, "client": who.client_id, "number": "1", "stage": "advertise", "name": "nobody"}
    known["invitation"] = "i_" + "0" * 20
    return re.sub(r"\{(\w+)\}", lambda found: known[found.group(1)], path)


@pytest.mark.parametrize(("status", "problem"), [(413, "body-too-long"), (400, "bad-request")])
def test_every_route_limits_json_bodies(api: Api, members: dict[str, TestMember], status: int, problem: str) -> None:
    """Chunked bodies are refused, also empty ones: a client is told so at its first request, not its first upload."""
    body = b'{"name": "' + b"x" * JSON_LIMIT + b'"}'
    headers = {**api.operator, "Content-Type": "application/json"}
    for method, path in (route for route in ROUTES if route not in RAW):
        sent = body if status == 413 else iter([body[:100], body[100:]])
        answer = api.http.request(method, filled(path, members["member"]), content=sent, headers=headers)
        assert answer.status_code == status, (method, path, answer.text)
        assert method == "HEAD" or slug(answer) == problem


@pytest.mark.parametrize("who", ["member", "holder"])
def test_every_route_limits_raw_bodies(api: Api, members: dict[str, TestMember], who: str) -> None:
    """They are refused before the body is read, or because of its length."""
    body, bearer = bytes(1_000_000), members[who]
    digests = {"Content-Digest": digest_field(body), "Repr-Digest": digest_field(body)}
    for method, path in RAW:
        kind = "application/partial-upload" if method == "PATCH" else "application/octet-stream"
        headers = {**bearer.auth, **digests, "Upload-Offset": "0", "Upload-Complete": "?1", "Content-Type": kind}
        answer = api.http.request(method, filled(path, bearer), content=body, headers=headers)
        assert slug(answer) in ("body-too-long", "forbidden", "not-found", "conflict"), (path, answer.text)
        unannounced = (bytes(1000) for _ in range(1000))
        chunked = api.http.request(method, filled(path, bearer), content=unannounced, headers=headers)
        assert slug(chunked) == "bad-request"
    assert not list((services(api).settings.data_dir / "uploads").glob("*"))


@pytest.mark.parametrize("known", [False, True])
def test_every_response_has_the_security_headers(api: Api, members: dict[str, TestMember], known: bool) -> None:
    for method, path in [*ROUTES, ("GET", "/nowhere"), ("BREW", "/v1/tasks"), ("GET", "/openapi.json")]:
        if path.endswith("/close"):
            continue  # the task is needed
        headers = api.operator if known else {}
        answer = api.http.request(method, filled(path, members["member"]), headers=headers)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["strict-transport-security"] == "max-age=60"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "script-src" not in policy
        kept = path in ("/v1/tasks/{task}", "/v1/tasks/{task}/members/me/ledger") and answer.status_code == 200
        # what is kept, the client alone keeps, and it asks each time whether it has changed
        assert answer.headers["cache-control"] == ("private, no-cache" if kept else "no-store"), path
        assert not kept or "etag" in answer.headers
        assert "server" not in answer.headers


def test_no_page_loads_a_viewer_from_another_host_and_no_response_redirects_to_that_of_the_request(api: Api) -> None:
    for path in ("/docs", "/docs/oauth2-redirect", "/redoc"):
        answer = api.http.get(path, headers=api.operator)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert "http" not in answer.headers["content-security-policy"]
    assert api.http.get("/openapi.json").json()["paths"]  # any viewer can show it
    for path in ("/v1/tasks/", "/healthz/"):
        answer = api.http.get(path, headers={**api.operator, "Host": "elsewhere.example"}, follow_redirects=False)
        assert (answer.status_code, "elsewhere" in str(answer.headers) + answer.text) == (404, False)


LONG = 500_000
"""Items of a task whose aggregate of 2 MB does not fit the buffers on the way to a client that reads nothing."""


def test_all_members_get_the_same_bytes_and_nobody_else_does(api: Api) -> None:
    stranger = api.create_task("other", cohort=3).enrol(1)[0]
    task = api.create_task("downloads", cohort=3, rounds=1)
    members, paths = task.begin(3), [f"{task.path}/{resource}" for resource in ("rounds/1/aggregate", "snapshots/1")]
    assert [api.http.get(path, headers=members[0].auth).status_code for path in paths] == [404, 404]
    contribute(members, 1, 1.0)
    task.wait_round(1, "complete")
    for path in paths:
        made, sent = (api.http.get(path, headers=member.auth) for member in members[:2])
        assert (made.status_code, sent.content) == (200, made.content)
        unchanged = api.http.get(path, headers={**members[2].auth, "If-None-Match": made.headers["etag"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert made.headers["cache-control"] == unchanged.headers["cache-control"] == "private, immutable"
        assert api.http.get(path, headers=stranger.auth).status_code == 404
        assert api.http.get(path).status_code == 401
        assert api.http.get(path, headers=api.operator).content == made.content
    api.http.delete(f"{task.path}/members/{members[1].client_id}", headers=api.operator)
    assert [api.http.get(path, headers=members[1].auth).status_code for path in paths] == [401, 401]


def test_a_client_has_eight_downloads_open_at_most(tmp_path: Path) -> None:
    transport = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    with serving(tmp_path / "data") as (server, api), ExitStack() as resources:
        task, members = api.begin(2, items=LONG, rounds=1, min_clients=2)
        contribute(members, 1, 1.0)
        task.wait_round(1, "complete")
        path = f"{task.path}/rounds/1/aggregate"
        slow = resources.enter_context(httpx.Client(base_url=server.url, auth=SIGNED, timeout=60, transport=transport))

        def opened(member: TestMember) -> httpx.Response:
            """A response of which nothing is read until the test ends."""
            return resources.enter_context(slow.stream("GET", path, headers=member.auth))

        first = [opened(members[0]) for _ in range(8)]
        assert [one.status_code for one in first] == [200] * 8
        refused = api.http.get(path, headers=members[0].auth)
        assert refusal(refused) == (429, "too-many-requests") and "Retry-After" in refused.headers
        assert opened(members[1]).status_code == 200  # each client has its own
        first[0].close()
        wait_until(lambda: api.http.get(path, headers=members[0].auth).status_code == 200, "one has ended", 30)


@pytest.fixture(scope="module")
def senders(api: Api) -> list[tuple[str, TestMember, dict[str, str]]]:
    """Who uploads: the name under which uploads are counted, a member of the task, and the headers.

    Nobody of ``members``: other tests end the access of some of them.
    """
    member, _ = api.create_task("uploads", cohort=2).begin(2)
    keyed = api.create_task("uploads-keyed", cohort=2, recipe_name="colr", mechanism_name="ckks", dim=8, clip=1.0)
    (holder,) = keyed.enrol(1, role="holder")
    (committee,) = oneshot_task(api, "uploads-committee", 3).enrol(1, role="committee")
    enrolled = [member, holder, committee]
    return [*((one.client_id, one, one.auth) for one in enrolled), ("operator environment", enrolled[0], api.operator)]


def test_all_routes_of_raw_bodies_are_known() -> None:
    def takes_raw(method: str, path: str) -> bool:
        kinds = DOCUMENT["paths"][path][method.lower()].get("requestBody", {}).get("content", {"application/json": {}})
        return not any(kind.endswith("json") for kind in kinds)

    assert [route for route in ROUTES if takes_raw(*route)] == RAW


@pytest.mark.parametrize(("method", "path"), RAW)
def test_every_route_of_a_raw_body_takes_eight_at_once_of_a_sender(
    api: Api, senders: list[tuple[str, TestMember, dict[str, str]]], method: str, path: str
) -> None:
    def send(member: TestMember, auth: dict[str, str]) -> int:
        headers = {**auth, "Content-Digest": digest_field(b"x"), "Upload-Offset": "0", "Upload-Complete": "?0"}
        return api.http.request(method, filled(path, member), content=b"x", headers=headers).status_code

    answers = set()
    for name, member, auth in senders:
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(services(api).uploads.counted(name))
            answers.add(send(member, auth))
        assert send(member, auth) != 429
    assert 429 in answers <= {429, 403, 404}  # the others may not upload this at all


def test_polls_and_uploads_leave_connections_for_health_checks(tmp_path: Path) -> None:
    """Of 24 connections 18 are for polls that wait, 21 for polls and uploads together."""
    with serving(tmp_path / "data", max_connections=24) as (server, api), ExitStack() as stack:
        task, members = api.begin(8)
        path = f"{task.path}/rounds/current"

        def opened(member: TestMember, method: str, target: str, *lines: str) -> socket.socket:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            connection.sendall(raw_head(server.url, method, target, member.token, *lines))
            return connection

        def answered(connection: socket.socket) -> str:
            return connection.recv(65536).decode().lower()

        def poll(member: TestMember) -> socket.socket:
            etag = api.http.get(path, headers=member.auth).headers["etag"]
            return opened(member, "GET", f"{path}?wait=30", f"If-None-Match: {etag}")

        polls = [poll(member) for member in members for _ in range(5)]
        over = [answered(one) for one in select.select(polls, (), (), 10)[0]]
        wait_until(lambda: len(select.select(polls, (), (), 0)[0]) == 22, "18 polls wait")
        assert all(one.startswith("http/1.1 304") for one in over)
        assert all("retry-after: 5\r\n" in one and "connection: close" in one for one in over)
        changed = opened(members[0], "GET", f"{path}?wait=30")  # what has news is answered as ever
        assert answered(changed).startswith("http/1.1 200")
        changed.close()
        body = members[1].contribution(1, 1.0)
        lines = (f"Content-Length: {len(body)}", f"Content-Digest: {digest_field(body)}", "Expect: 100-continue")
        stuck = [opened(member, "PUT", member.path(1), *lines) for member in members[:3]]
        assert all(answered(one).startswith("http/1.1 100") for one in stuck)
        one_more = opened(members[3], "PUT", members[3].path(1), *lines)
        assert answered(one_more).startswith("http/1.1 100")  # the server reads on for a second, then refuses
        refused = answered(one_more)
        assert refused.startswith("http/1.1 429") and "retry-after: 1\r\n" in refused
        for health in ("/healthz", "/readyz", "/metrics"):
            assert httpx.get(server.url + health, headers=api.operator).status_code == 200
        for one in stuck:
            one.close()
        contribute(members, 1, 1.0)
        task.wait_round(1, "complete")
        assert len(select.select(polls, (), (), 30)[0]) > 0
