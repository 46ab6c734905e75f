"""Invalid or unusual JSON at any place of a body; valid bodies of callers that are not let in; the dashboard.

Of the dashboard's pages and forms, which OpenAPI does not list: any path, any field, signed in or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.fuzz.judge import INSIDES, OPERATIONS
from tests.fuzz.world import AGAIN, EXAMPLES, NOBODY, SEED, Principal, World, limits
from tests.support.api import digest_field, signed_enrolment
from tests.support.dashboard import form_token, sign_in
from tests.support.promises import CALLERS, promised

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
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"name": "a", "name": "b"}',
    b" " * (LIMIT - 2) + b"{}",
]
"""A byte order mark, UTF-16, a duplicate name (the last one counts), a body of exactly the largest length."""
WHOLE = [
    *READ_ALL_THE_SAME,
    *b'{}{} [{}] null "{}" { } \0 {}\0'.split(b" "),
    *(b"", b" ", b"[" * LIMIT, b"{" * LIMIT, b" " * LIMIT),
    *(b'"' + b"\\u0000" * 10_000 + b'"', b" " * (LIMIT - 1) + b"{}"),
    *(b'{"a":' * 12_000, b"1" * LIMIT, b"[1" + b",1" * 32_000 + b"]"),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every place in a JSON value."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def insert_raw(value: Any, place: tuple[Any, ...], raw: bytes) -> bytes:
    """Return the value as JSON, with `raw` at that place."""
    if not place:
        return raw
    mark = "the-place-of-something-else"
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = mark
    return json.dumps(copy).encode().replace(f'"{mark}"'.encode(), raw)


def bodies(world: World) -> dict[str, Any]:
    """Return a valid body for each route that takes JSON, by path."""
    keys = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    recipe = {"name": "colr", "parameters": {"items": 50, "dim": 8, "rank": 2, "clip": 0.5}}
    schedule = {"rounds": 1, "cohort_size": 3, "min_clients": 2, "start_clients": 0, "sampling": "uniform"}
    seconds = {"collect_seconds": 9.5, "stage_seconds": 9, "max_failed_rounds": 1, "min_difference": None}
    mechanism = {"name": "ckks", "parameters": {"set": "standard", "wire": "seeded"}}
    task = {"name": "raw-json", "recipe": recipe, "mechanism": mechanism, "schedule": schedule | seconds}
    task_id = world.open_tasks[0]
    return {
        "/v1/tasks": {**task, "seed": "A" * 43, "data_set": "label"},
        "/v1/enrolments": {**signed_enrolment(world.api.invite(task_id), *keys), "group": 0},
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
    everywhere = st.tuples(st.sampled_from(list(places(good))), st.sampled_from(HOSTILE))

    @seed(SEED)
    @limits(EXAMPLES // 2)
    @given(where=everywhere)
    def call(where: tuple[tuple[Any, ...], bytes]) -> None:
        send(world, path, insert_raw(good, *where))

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: {AGAIN}", pytrace=False)


def test_bodies_that_are_none_and_other_media_types(world: World) -> None:
    for path, good in bodies(world).items():
        for body in WHOLE:
            assert send(world, path, body) in (400, 413, 422) or body in READ_ALL_THE_SAME
        for media_type in ("text/plain", "application/xml", "application/json; charset=utf-7", "", "a", "/"):
            send(world, path, json.dumps(good).encode(), media_type)


PROMISED = promised()


@pytest.fixture(scope="module")
def callers(world: World) -> dict[str, Principal]:
    """Return one caller of each kind; the clients are members of one task, the committee of one of its own."""
    for role in ("read-only", "operator"):
        made = world.api.http.post("/v1/operators", json={"name": role, "role": role}, headers=world.api.operator)
        assert made.status_code == 201
    holder = world.of_kind("holder")[0]
    member = next(one for one in world.of_kind("member") if one.known.task == holder.known.task)
    made = {kind: world.of_kind(kind)[-1] for kind in ("read-only", "operator", "admin")}  # newest: others expire
    return {"nobody": NOBODY, "holder": holder, "member": member, "committee": world.of_kind("committee")[0], **made}


def test_nobody_changes_anything_that_is_not_theirs_to_change(world: World, callers: dict[str, Principal]) -> None:
    known = {"number": "1", "stage": "advertise", "name": "read-only", "invitation": "i_0"}
    good = {re.sub(r"t_[0-9a-f]+", "{task}", path): body for path, body in bodies(world).items()}
    before, tried = world.rows.strict(), 0
    for method, template in OPERATIONS:
        for kind in CALLERS:
            if kind in PROMISED[method, template]:
                continue
            own = callers[kind if kind == "committee" else "member"].known
            names = known | {"task": own.task, "client": own.client}
            path = re.sub(r"\{(\w+)\}", lambda found: str(names[found.group(1)]), template)  # noqa: B023
            body = json.dumps(good.get(template, {})).encode() if method == "POST" else b"sealed"
            headers = {**callers[kind].auth, "Content-Type": "application/json"}
            if method in ("PUT", "PATCH"):
                headers |= {"Content-Digest": digest_field(body), "Content-Type": "application/partial-upload"}
                headers |= {"Upload-Offset": "0", "Upload-Complete": "?0"}
            content = body if method in ("POST", "PUT", "PATCH") else None
            answer = world.api.http.request(method, path, content=content, headers=headers)
            assert answer.status_code == (401 if kind == "nobody" else 403), (kind, method, path, answer.text)
            tried += 1
    assert tried > 50
    assert world.rows.strict() == before
    assert not list((world.server.data_dir / "uploads").glob("body*")), "a body that nobody may send is kept"


ROOT = "/dashboard"
CANARY = "<script>alert('canary')</script>"
PATHS = ["", "/sign-in", "/sign-out", "/health", "/tasks/{task}", "/tasks/{task}/rounds/1", "/static/dashboard.css"]
PATHS += ["/tasks/{task}/rounds/1/extend", "/tasks/{task}/rounds/1/abort", "/tasks/{task}/rounds/{odd}", "/{odd}"]
PATHS += ["/tasks/{odd}", "/tasks/{odd}/rounds/{odd}", "/static/{odd}", "/tasks/{odd}/rounds/1/abort"]
ODD = [
    "a" * 3000,
    "9" * 30,
    *["..%2f..%2fpyproject.toml", "%00", "%ff", "-1", "0", "%3Cscript%3E", "..", "%2e%2e", "{task}"],
]
VALUES = [
    "",
    CANARY,
    "\0",
    "9" * 400,
    "\ud7ff",
    *["1e400", "nan", "-1", "0", "//evil.example", "https://evil.example", "60"],
]
FIELDS = ["form_token", "token", "minutes", "seconds", "next", "page", "before", "confirm", "name", CANARY]
STATUSES = {200, 303, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429}


@pytest.fixture(scope="module")
def visitors(world: World) -> Iterator[list[httpx.Client]]:
    """Return two HTTP clients: one that is not signed in, and one signed in as admin."""
    with httpx.Client(base_url=world.server.url) as nobody, httpx.Client(base_url=world.server.url) as admin:
        assert sign_in(admin, world.server.url, world.server.operator_token).status_code == 303
        admin.headers["X-Form"] = form_token(admin)
        yield [nobody, admin]


@st.composite
def visits(draw: st.DrawFn) -> tuple[str, str, dict[str, str], dict[str, str], dict[str, str]]:
    """Draw method, path, query, form and headers."""
    pairs = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=3)
    path = draw(st.sampled_from(PATHS)).replace("{odd}", draw(st.sampled_from(ODD)))
    origin = draw(st.sampled_from(["", "null", "https://evil.example", "own"]))
    return draw(st.sampled_from(["GET", "POST", "HEAD", "PUT"])), path, draw(pairs), draw(pairs), {"Origin": origin}


def test_any_visit(world: World, visitors: list[httpx.Client]) -> None:
    """No answer reveals internals or runs input, and nothing changes without the form's own token."""

    @seed(SEED)
    @limits(3 * EXAMPLES)
    @given(visit=visits(), who=st.integers(0, 1))
    def call(visit: tuple[str, str, dict[str, str], dict[str, str], dict[str, str]], who: int) -> None:
        method, path, query, form, headers = visit
        path = ROOT + path.replace("{task}", world.open_tasks[0])
        headers = {"Origin": world.server.url} if headers["Origin"] == "own" else headers
        before = world.rows.strict()
        try:
            answer = visitors[who].request(
                method, path, params=query, data=form if method == "POST" else None, headers=headers
            )
        except httpx.InvalidURL:
            return
        message = f"{visit} as {who} -> {answer.status_code} {dict(answer.headers)}\n{answer.text[:800]}"
        assert answer.status_code in STATUSES, message
        assert CANARY not in answer.text, message
        # the page of health names SQLite
        assert answer.status_code < 400 or INSIDES.search(answer.text) is None, message
        assert "server" not in answer.headers and answer.headers["x-content-type-options"] == "nosniff", message
        assert "default-src 'none'" in answer.headers["content-security-policy"], message
        assert world.server.operator_token not in answer.text, message
        assert re.match(r"(/(?!/)|$)", answer.headers.get("location", "")), message
        assert world.rows.strict() == before, message

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: {AGAIN}", pytrace=False)
