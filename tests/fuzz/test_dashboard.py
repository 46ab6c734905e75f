"""The dashboard's pages and forms, which OpenAPI does not list: any path, any field, signed in or not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.fuzz.judge import INSIDES
from tests.fuzz.world import AGAIN, EXAMPLES, SEED, World, limits
from tests.support.dashboard import form_token, sign_in

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
        assert answer.status_code < 400 or INSIDES.search(answer.text) is None, (
            message
        )  # the page of health names SQLite
        assert "server" not in answer.headers and answer.headers["x-content-type-options"] == "nosniff", message
        assert "default-src 'none'" in answer.headers["content-security-policy"], message
        assert world.server.operator_token not in answer.text, message
        assert re.match(r"(/(?!/)|$)", answer.headers.get("location", "")), message
        assert world.rows.strict() == before, message

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: {AGAIN}", pytrace=False)
