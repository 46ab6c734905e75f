"""Every route of a real server, called in any order by any caller; see docs/testing.md."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import requests
from hypothesis import given, seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from tests.fuzz.judge import DOCUMENT, OPERATIONS, SCHEMA
from tests.fuzz.links import with_links
from tests.fuzz.runs import AGAIN, EXAMPLES, SEED, limits
from tests.fuzz.stories import STORIES, Story
from tests.fuzz.valid_fields import ValidFields
from tests.fuzz.workflow import Workflow, send
from tests.fuzz.world import World


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
