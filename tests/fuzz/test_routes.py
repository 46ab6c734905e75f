"""Every route of a real server, called in any order by any caller; see docs/testing.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

import pytest
import requests
from hypothesis import given, seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import initialize, rule
from schemathesis import Case

from tests.fuzz.judge import DOCUMENT, OPERATIONS, SCHEMA, with_links
from tests.fuzz.stories import STORIES, Story
from tests.fuzz.valid_fields import ValidFields
from tests.fuzz.world import AGAIN, EXAMPLES, SEED, Principal, World, limits
from tests.support.signing import know, sign_prepared

_Machine: Any = SCHEMA.as_state_machine()


def send(world: World, session: requests.Session, case: Case, sender: Principal, **kwargs: Any) -> Any:
    """Send a case as `sender`, check the answer, and return it."""
    world.before()
    try:
        response = case.call(base_url=world.server.url, session=session, auth=sign_prepared, **kwargs)
    except (requests.exceptions.InvalidHeader, UnicodeError):  # not valid in HTTP
        return None
    request = response.request
    content = request.body or b""
    if str(case.operation.path) == "/v1/enrolments" and response.status_code in (200, 201):
        key = world.identities[json.loads(content)["identity_key"]]
        know(response.json()["token"], response.json()["client_id"], key)
    answer = world.answer_of(
        request.method,
        request.url,
        {**request.headers},
        content if isinstance(content, bytes) else content.encode(),
        response.status_code,
        {name: ", ".join(values) for name, values in response.headers.items()},
        response.content,
    )
    answer.response = response
    world.after(answer)
    return response


class Workflow(_Machine):  # type: ignore[misc]
    """Calls follow the links of earlier answers; tokens, digests and signatures are often valid."""

    world: ClassVar[World]
    stories: ClassVar[list[Story]]
    session: ClassVar[requests.Session]
    valid_fields: ValidFields
    calls: ClassVar[int] = 0
    failure: ClassVar[str] = ""

    @initialize(seed=st.integers(0, 2**32 - 1))  # type: ignore[untyped-decorator]
    def begin(self, seed: int) -> None:
        """Seed our own choices from schemathesis' draws."""
        self.valid_fields = ValidFields(self.world, Random(seed))

    @rule(which=st.integers(0, 9), steps=st.integers(1, 4))  # type: ignore[untyped-decorator]
    def meanwhile(self, which: int, steps: int) -> None:
        """Advance the stories."""
        if self.stories:
            story: Iterator[None] = self.stories[which % len(self.stories)]
            for _ in range(steps):
                with suppress(StopIteration), self.world.protected():
                    next(story)

    def call(self, case: Case, **kwargs: Any) -> Any:
        """Send the case as some caller; keep the first failure, because a retry meets another server state."""
        Workflow.calls += 1
        sender = self.valid_fields.fill_in(case)
        try:
            return send(self.world, self.session, case, sender, **kwargs)
        except AssertionError as error:
            Workflow.failure = Workflow.failure or "\n".join([str(error), "before:", *self.world.trail])
            raise

    def validate_response(self, response: Any, case: Case, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `send` has checked the response."""


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
