"""Schemathesis' state machine over OpenAPI links, with stories that advance between its steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

import requests
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from schemathesis import Case

from tests.fuzz.judge import SCHEMA
from tests.fuzz.stories import Story
from tests.fuzz.valid_fields import ValidFields
from tests.fuzz.world import Principal, World
from tests.support.signing import know, sign_prepared

__all__ = ["Workflow", "send"]

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
