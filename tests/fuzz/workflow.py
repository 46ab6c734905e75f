"""Schemathesis' state machine over the document's links, in a world that goes on between its steps."""

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

from tests.fuzz.honest import Honesty
from tests.fuzz.judge import SCHEMA
from tests.fuzz.stories import Story
from tests.fuzz.world import Principal, World
from tests.support.signing import know, sign_prepared

__all__ = ["Workflow", "send"]

_Machine: Any = SCHEMA.as_state_machine()


def send(world: World, session: requests.Session, case: Case, sender: Principal, **kwargs: Any) -> Any:
    """Send a case as `sender` has prepared it, judge the answer, and return it."""
    world.before()
    try:
        response = case.call(base_url=world.server.url, session=session, auth=sign_prepared, **kwargs)
    except (requests.exceptions.InvalidHeader, UnicodeError):  # nothing that HTTP can carry
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
    """ApiCalls follow the links of what was answered before; tokens, digests and signatures are often true ones."""

    world: ClassVar[World]
    stories: ClassVar[list[Story]]
    session: ClassVar[requests.Session]
    honesty: Honesty
    calls: ClassVar[int] = 0
    failure: ClassVar[str] = ""

    @initialize(seed=st.integers(0, 2**32 - 1))  # type: ignore[untyped-decorator]
    def begin(self, seed: int) -> None:
        """Choices that are not schemathesis' own follow from its draws, too."""
        self.honesty = Honesty(self.world, Random(seed))

    @rule(which=st.integers(0, 9), steps=st.integers(1, 4))  # type: ignore[untyped-decorator]
    def meanwhile(self, which: int, steps: int) -> None:
        """The honest go on with their lives."""
        if self.stories:
            story: Iterator[None] = self.stories[which % len(self.stories)]
            for _ in range(steps):
                with suppress(StopIteration), self.world.told():
                    next(story)

    def call(self, case: Case, **kwargs: Any) -> Any:
        """Send the case as somebody; the first failure is kept, since the world has moved on when it is tried again."""
        Workflow.calls += 1
        sender = self.honesty.improve(case)
        try:
            return send(self.world, self.session, case, sender, **kwargs)
        except AssertionError as error:
            Workflow.failure = Workflow.failure or "\n".join([str(error), "before:", *self.world.trail])
            raise

    def validate_response(self, response: Any, case: Case, *args: Any, **kwargs: Any) -> None:
        """`send` has judged it."""
