"""Bytes that no client of ours sends: wrong lengths, odd paths and headers, hostile JSON, forms of the dashboard.

After each of them the server answers the next one, and a refused one has changed nothing. Malformed heads are in
`tests/aggregator_service/http/test_request_smuggling.py`, callers without the permission in
`tests/aggregator_service/access/test_tokens.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import strategies as st

from tests.fuzz.honest import keyed, masked, operators, plain
from tests.fuzz.judge import INSIDES, OPERATIONS, Answer
from tests.fuzz.world import EXAMPLES, World, each
from tests.support.api import signed_enrolment
from tests.support.dashboard import form_token, sign_in
from tests.support.proxies import Door, converse

KINDS = plain, keyed, masked, operators


def head(method: str, target: str, *lines: str, version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join([f"{method} {target} {version}", "Host: test", *lines, "", ""]).encode("latin-1")


LAST = head("GET", "/healthz", "Connection: close")
"""Sent last: its answer is the last one, or there is no answer any more."""


def answers_to(world: World, method: str, target: str, sent: bytes, last: bytes = LAST) -> list[int]:
    """Send requests and a last one, judge all answers, and return the statuses of all but the last one's.

    They are sent at once: bytes that arrive after the server has closed the connection would discard its answer."""
    world.begin()
    said, statuses = converse(Door(world.server.port), sent + last), list[int]()
    assert not said.rest
    for answer in said.responses:
        plain = answer.status == 400 and answer.body == b"Invalid HTTP request received."  # below the application
        checked = (method, target) if answer.body != b'{"status":"ok"}' else ("GET", "/healthz")
        if method == "HEAD" and answer.body:
            checked = ("GET", target)  # a refusal before the application has read the method
        if not plain:
            path = unquote(checked[1].partition("?")[0])
            world.check(Answer(checked[0], path, answer.status, answer.fields, answer.body))
        statuses.append(answer.status)
    if last and said.responses and said.responses[-1].body == b'{"status":"ok"}':
        del statuses[-1]
    return statuses


ENROL = "/v1/enrolments"
JSON = "Content-Type: application/json"


@pytest.fixture(autouse=True)
def alive(world: World) -> None:
    """Check that the server answers before and after each test."""
    assert world.api.http.get("/readyz").status_code == 200


def test_an_old_client_and_requests_one_after_the_other(world: World) -> None:
    """Pipelined requests are answered in order, one by one; what follows one of HTTP/1.0 is not answered."""
    assert answers_to(world, "GET", "/v1/tasks", head("GET", "/v1/tasks", version="HTTP/1.0")) in ([400], [401])
    one, refused = head("GET", "/healthz"), head("POST", ENROL, JSON, "Content-Length: 1") + b"{"
    assert answers_to(world, "GET", "/healthz", one * 3) == [200] * 3
    assert answers_to(world, "POST", ENROL, refused * 3) == [400] * 3


def spelt(draw: st.DrawFn, path: str) -> str:
    """Draw a path with unusual text in place of a parameter, or anywhere."""
    odd = st.sampled_from(
        ["%00", "%2f", "%2F..%2f", "..", ".", "", "%", "%zz", "%c0%af", "%ff", "\xff", "a" * 5000, "%F0%9F%92%A9"]
        + ["'--", "{task}", "%0d%0aX-Injected:%20yes", ";a=b", "9" * 30, "-1", "1e3", "0x1", "+1", "%31", "\u00b2"]
    )
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part.startswith("{") or draw(st.integers(0, 9)) == 0:
            parts[index] = draw(odd)
    return "/".join(parts).replace(" ", "%20") or "/"


QUERIES = st.lists(
    st.sampled_from(
        ["wait=nan", "wait=inf", "wait=-1", "wait=1e400", "wait=", "wait=30&wait=0", "after=9223372036854775808"]
        + ["after=-0", "limit=0", "limit=1001", "limit=1e3", "limit=\xb2", "name=%00", "name=" + "a" * 9000, "&&&=&"]
        + ["clients=nan", "clients=2147483647", "corrupt=nan", "dropout=-0.0", "group=-1", "unkeyed=maybe", "a=%ff"]
        + ["at_least=" + "9" * 5000, "state=folding'", "bits=64.0", "values=1e12"]
    ),
    max_size=3,
).map("&".join)
HEADERS = st.lists(
    st.sampled_from(
        ["If-None-Match: *", "If-None-Match: W/", 'If-None-Match: "' + "a" * 9000, "If-None-Match: \xff"]
        + ["Upload-Offset: -1", "Upload-Offset: \xb2", "Upload-Offset: " + "9" * 40, "Upload-Complete: ?2"]
        + ["Content-Digest: sha-256=:%s:" % ("A" * 43 + "="), "Content-Digest: sha-256=:", "Repr-Digest: \xff"]
        + ["X-Request-Id: " + "a" * 5000, "X-Request-Id: \xff", "X-Request-Id: a b", "X-Request-Id: "]
        + ["X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: javascript", "X-HTTP-Method-Override: DELETE", "Cookie: a=b"]
        + ["Origin: https://example.org", "Host: example.org", "traceparent: 00-zz", 'Forwarded: for="_a"']
        + ["Content-Type: application/json; charset=utf-16", "Content-Type: \xff", "Content-Type: multipart/form-data"]
        + ["Signature: sig=:AAAA:", "Signature-Input: sig=(", "Content-Encoding: br", "Accept-Encoding: gzip"]
        + ["Accept: nothing/*", "Range: bytes=0-", "TE: trailers"]
    ),
    max_size=4,
)
LENGTHS = st.sampled_from(
    ["Content-Length: " + "9" * 40, "Content-Length: 9223372036854775808", "Content-Length: +2", ""]
    + [
        "Transfer-Encoding: gzip",
        "Content-Length: 2\r\nContent-Encoding: gzip",
        "Content-Length: 2\r\nExpect: 100-continue",
    ]
)
"""In the place of the length of a body of two bytes; forms that smuggle are with the malformed heads."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    method, path = draw(st.sampled_from(OPERATIONS))
    if draw(st.integers(0, 9)) == 0:
        method = draw(st.sampled_from(["TRACE", "OPTIONS", "PROPFIND", "HEAD", "DELETE", "PUT", "GET", "POST"]))
    query = draw(QUERIES)
    lines = draw(HEADERS)
    if method in ("POST", "PUT", "PATCH"):
        lines.append(draw(LENGTHS) if draw(st.integers(0, 3)) == 0 else "Content-Length: 2")
    return method, spelt(draw, path) + (f"?{query}" if query else ""), lines


def test_odd_paths_queries_headers_and_lengths(world: World) -> None:
    everybody = [*world.callers.values()]

    def call(drawn: tuple[tuple[str, str, list[str]], int]) -> None:
        (method, target, lines), who = drawn
        token = everybody[who % len(everybody)].token
        body = b"{}" if method in ("POST", "PUT", "PATCH") else b""
        lines = [*filter(None, lines), f"Authorization: Bearer {token}", "Connection: close"]
        sent = head(method, target.encode("utf-8").decode("latin-1"), *lines)
        assert answers_to(world, method, target, sent + body, b""), f"no answer to {sent!r}"

    each(3 * EXAMPLES, st.tuples(requests(), st.integers(0, 10**6)), call)


LIMIT = 64 * 1024
_NUMBERS = b"NaN Infinity -Infinity 1e400 -1e400 1e-400 -0 -0.0 9223372036854775808 1e19 -9223372036854775809"
_NUMBERS += b" 01 +1 1. .5 0x10 1_0 1.5 1e3 1, /**/1"
_VALUES = rb'true null "" "\u0000" "\ud800" "\udfff\ud800" "\x" "\u202e" [] {} [[[[]]]] {"a":{"a":{}}} [1]'
_VALUES += rb' undefined "1" "plain"'
HOSTILE = [
    *_NUMBERS.split(),
    *_VALUES.split(),
    *(b"9" * 400, b"0." + b"9" * 400, b"1" + b"0" * 5000, b"", b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"'),
    *(b"[" * 900 + b"]" * 900, b"[" * 9000, b'{"a":' * 900 + b"1" + b"}" * 900, b'"' + b"a" * 60_000 + b'"'),
    *(b'"a\nb"', b"'a'", b'"' + "\U0001f4a9".encode() * 100 + b'"', b'"A' + b"=" * 42 + b'"'),
]
READ_ALL_THE_SAME = [
    *(b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b'{"name": "a", "name": "b"}', b" " * (LIMIT - 2) + b"{}")
]
"""A byte order mark, UTF-16, a duplicate name (the last one counts), a body of exactly the largest length."""
WHOLE = [
    *READ_ALL_THE_SAME,
    *b'{}{} [{}] null "{}" { } \0 {}\0'.split(b" "),
    *(b"", b" ", b"[" * LIMIT, b"{" * LIMIT, b" " * LIMIT),
    *(b'"' + b"\\u0000" * 10_000 + b'"', b" " * (LIMIT - 1) + b"{}"),
    *(b'{"a":' * 12_000, b"1" * LIMIT, b"[1" + b",1" * 32_000 + b"]"),
]


def holes(value: Any) -> Iterator[str]:
    """Yield the JSON of a value with @@ in place of each of its parts, and of the whole."""
    yield "@@"
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from (json.dumps({**value, key: "@"}).replace('"@"', hole) for hole in holes(inner))


def bodies(world: World) -> dict[str, Any]:
    recipe = {"name": "colr", "parameters": {"items": 50, "dim": 8, "rank": 2, "clip": 0.5}}
    schedule = {"rounds": 1, "cohort_size": 3, "min_clients": 2, "start_clients": 0, "sampling": "uniform"}
    seconds = {"collect_seconds": 9.5, "stage_seconds": 9, "max_failed_rounds": 1, "min_difference": None}
    mechanism = {"name": "ckks", "parameters": {"set": "standard", "wire": "seeded"}}
    task = {"name": "raw-json", "recipe": recipe, "mechanism": mechanism, "schedule": schedule | seconds}
    task_id = world.open_tasks[0]
    return {
        "/v1/tasks": {**task, "seed": "A" * 43, "data_set": "label"},
        "/v1/enrolments": {**signed_enrolment(world.api.invite(task_id)), "group": 0},
        "/v1/operators": {"name": "raw-json", "role": "read-only", "expires_seconds": 60.5},
        f"/v1/tasks/{task_id}/invitations": {"role": "member", "uses": 1, "expires_seconds": 60},
        f"/v1/tasks/{task_id}/rounds/1/extend": {"seconds": 1},
    }


def send(world: World, path: str, body: bytes, media_type: str = "application/json") -> int:
    """Send a body as admin, with the answer checked, and return the status."""
    headers = {**world.api.operator, "Content-Type": media_type}
    return world.api.http.post(path, content=body, headers=headers).status_code


@pytest.mark.parametrize("which", range(5))
def test_anything_at_any_place(world: World, which: int) -> None:
    path, good = list(bodies(world).items())[which]
    everywhere = st.tuples(st.sampled_from(list(holes(good))), st.sampled_from(HOSTILE))
    each(EXAMPLES // 2, everywhere, lambda drawn: send(world, path, drawn[0].encode().replace(b"@@", drawn[1])))


def test_bodies_that_are_none_and_other_media_types(world: World) -> None:
    for path, good in bodies(world).items():
        for body in WHOLE:
            assert send(world, path, body) in (400, 413, 422) or body in READ_ALL_THE_SAME
        for media_type in ("text/plain", "application/xml", "application/json; charset=utf-7", "", "a", "/"):
            send(world, path, json.dumps(good).encode(), media_type)


ROOT = "/dashboard"
CANARY = "<script>alert('canary')</script>"
PATHS = ["", "/sign-in", "/sign-out", "/health", "/tasks/{task}", "/tasks/{task}/rounds/1", "/static/dashboard.css"]
PATHS += ["/tasks/{task}/rounds/1/extend", "/tasks/{task}/rounds/1/abort", "/tasks/{task}/rounds/{odd}", "/{odd}"]
PATHS += ["/tasks/{odd}", "/tasks/{odd}/rounds/{odd}", "/static/{odd}", "/tasks/{odd}/rounds/1/abort"]
ODD = ["a" * 3000, "9" * 30, "..%2f..%2fpyproject.toml", "%00", "%ff", "-1", "0", "%3Cscript%3E", "..", "%2e%2e"]
ODD += ["{task}"]
VALUES = ["", CANARY, "\0", "9" * 400, "\ud7ff", "1e400", "nan", "-1", "0", "60"]
VALUES += ["//evil.example", "https://evil.example"]
FIELDS = ["form_token", "token", "minutes", "seconds", "next", "page", "before", "confirm", "name", CANARY]


@st.composite
def visits(draw: st.DrawFn) -> tuple[str, str, dict[str, str], dict[str, str], dict[str, str]]:
    """Draw method, path, query, form and headers."""
    pairs = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=3)
    path = draw(st.sampled_from(PATHS)).replace("{odd}", draw(st.sampled_from(ODD)))
    origin = draw(st.sampled_from(["", "null", "https://evil.example", "own"]))
    return draw(st.sampled_from(["GET", "POST", "HEAD", "PUT"])), path, draw(pairs), draw(pairs), {"Origin": origin}


def test_any_visit(world: World) -> None:
    """No answer reveals internals or runs input, and nothing changes without the form's own token.

    To somebody who is not signed in, and to an admin.
    """

    def call(drawn: tuple[tuple[str, str, dict[str, str], dict[str, str], dict[str, str]], int]) -> None:
        visit, who = drawn
        method, path, query, form, headers = visit
        path = ROOT + path.replace("{task}", world.open_tasks[0])
        headers = {"Origin": world.server.url} if headers["Origin"] == "own" else headers
        before = world.rows()
        try:
            answer = (nobody, admin)[who].request(
                method, path, params=query, data=form if method == "POST" else None, headers=headers
            )
        except httpx.InvalidURL:
            return
        message = f"{visit} as {who} -> {answer.status_code} {dict(answer.headers)}\n{answer.text[:800]}"
        assert answer.status_code in {200, 303, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429}, message
        assert CANARY not in answer.text, message
        # the page of health names SQLite
        assert answer.status_code < 400 or INSIDES.search(answer.text) is None, message
        assert "server" not in answer.headers and answer.headers["x-content-type-options"] == "nosniff", message
        assert "default-src 'none'" in answer.headers["content-security-policy"], message
        assert world.server.operator_token not in answer.text, message
        assert re.match(r"(/(?!/)|$)", answer.headers.get("location", "")), message
        assert world.rows() == before, message

    with httpx.Client(base_url=world.server.url) as nobody, httpx.Client(base_url=world.server.url) as admin:
        assert sign_in(admin, world.server.url, world.server.operator_token).status_code == 303
        admin.headers["X-Form"] = form_token(admin)
        each(3 * EXAMPLES, st.tuples(visits(), st.integers(0, 1)), call)
