"""Every route and page of a real server, called in any order by any caller; see docs/testing.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest
import requests
from hypothesis import given, seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from tests.fuzz.judge import DOCUMENT, INSIDES, OPERATIONS, SCHEMA
from tests.fuzz.links import with_links
from tests.fuzz.runs import AGAIN, EXAMPLES, SEED, limits
from tests.fuzz.stories import STORIES, Story
from tests.fuzz.test_json import bodies
from tests.fuzz.valid_fields import ValidFields
from tests.fuzz.workflow import Workflow, send
from tests.fuzz.world import NOBODY, Principal, World
from tests.support.api import digest_field
from tests.support.dashboard import form_token, sign_in
from tests.support.promises import CALLERS, promised


@pytest.mark.timeout(0 if EXAMPLES > 60 else 600)
def test_any_order_of_calls(world: World, session: requests.Session) -> None:
    """Calls that use earlier answers, while honest clients advance rounds."""
    Workflow.world, Workflow.session = world, session
    Workflow.stories = [story(world) for story in STORIES]
    run = SEED
    while Workflow.calls < 2 * EXAMPLES:
        run += 1
        try:
            seed(run)(type("Run", (Workflow,), {})).run(settings=limits(8, stateful_step_count=15))
        except Exception as error:
            # The server does not begin anew with each scenario, and Hypothesis notices: then it begins anew itself.
            if not Workflow.failure and not isinstance(error, Flaky) and "nconsistent" not in str(error):
                raise
        if Workflow.failure:
            pytest.fail(f"{Workflow.failure}\nagain: {AGAIN}", pytrace=False)
    _finish(world, Workflow.stories)
    for method, path in OPERATIONS:
        seen = world.judge.seen[method, path]
        assert any(status < 300 for status in seen), f"{method} {path} never succeeded: {dict(seen)}"


def _finish(world: World, stories: list[Story]) -> None:
    with world.protected():
        for story in stories:
            for _ in story:
                pass


@pytest.mark.timeout(0 if EXAMPLES > 60 else 600)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_any_call(world: World, session: requests.Session, method: str, path: str) -> None:
    """Requests that match the OpenAPI document, and requests that do not, from any caller."""

    @seed(SEED)
    @limits(EXAMPLES // 15)
    @given(case=SCHEMA[path][method].as_strategy(), choices=st.integers(0, 2**32 - 1))
    def call(case: Any, choices: int) -> None:
        send(world, session, case, ValidFields(world, Random(choices)).fill_in(case))

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: {AGAIN}", pytrace=False)


def operations() -> list[tuple[str, dict[str, Any]]]:
    paths = with_links(json.loads(DOCUMENT.read_text(encoding="utf-8")))["paths"]
    return [(f"{method.upper()} {path}", one) for path, methods in paths.items() for method, one in methods.items()]


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


PROMISED = promised()


@pytest.fixture(scope="module")
def callers(world: World) -> dict[str, Principal]:
    """Return one caller of each kind; the clients are members of one task, the committee of one of its own."""
    for role in ("read-only", "operator"):
        made = world.api.http.post("/v1/operators", json={"name": role, "role": role}, headers=world.api.operator)
        assert made.status_code == 201
    holder = world.of_kind("holder")[0]
    member = next(one for one in world.of_kind("member") if one.known.task == holder.known.task)
    made = {kind: world.of_kind(kind)[0] for kind in ("read-only", "operator", "admin")}
    return {"nobody": NOBODY, "holder": holder, "member": member, "committee": world.of_kind("committee")[0], **made}


def test_nobody_changes_anything_that_is_not_theirs_to_change(world: World, callers: dict[str, Principal]) -> None:
    known = {
        "number": "1",
        "stage": "advertise",
        "name": "read-only",
        "invitation": "i_0",
    }
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
    "..%2f..%2fpyproject.toml",
    "%00",
    "%ff",
    "a" * 3000,
    "-1",
    "9" * 30,
    "0",
    "%3Cscript%3E",
    "..",
    "%2e%2e",
    "{task}",
]
VALUES = [
    "",
    CANARY,
    "\0",
    "1e400",
    "nan",
    "-1",
    "0",
    "9" * 400,
    "\ud7ff",
    "//evil.example",
    "https://evil.example",
    "60",
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
