"""Every route of a real server, called in any order by any caller; see docs/testing.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, ClassVar, Final

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import initialize, rule
from schemathesis import Case

from tests.fuzz.judge import DOCUMENT, OPERATIONS, SCHEMA, with_links
from tests.fuzz.stories import STORIES, Story
from tests.fuzz.world import AGAIN, EXAMPLES, NOBODY, SEED, Principal, World, limits
from tests.support.api import TestMember, digest_field, signed_enrolment
from tests.support.promises import promised
from tests.support.signing import know, sign_prepared

_PROMISED: Final = promised()
_TASKS: Final = 40
"""Limit on created tasks, because the round engine has to advance each of them."""
_SPLIT: Final = 17
"""Offset at which a chunked upload is split."""


class ValidFields:
    """Chooses with `random` who sends a case, and how many of its fields are replaced by valid ones."""

    def __init__(self, world: World, random: Random) -> None:
        self._world, self._random = world, random

    def _often(self, share: float) -> bool:
        return self._random.random() < share

    def fill_in(self, case: Case) -> Principal:
        """Replace some fields of the case by valid ones, and return the sender."""
        template, method = str(case.operation.path), str(case.method).upper()
        self._protect_stories(case, method)
        sender = self._sender(case, _PROMISED[method, template])
        self._fill_path(case, sender)
        self._protect_stories(case, method)
        case.headers.update(self._token_of(sender))
        if method in ("PUT", "PATCH"):
            self._fill_raw(case, method, sender)
        elif method == "POST":
            self._fill_json(case, template)
        return sender

    def _sender(self, case: Case, allowed: set[str]) -> Principal:
        task = case.path_parameters.get("task") if self._often(0.8) else None
        if self._often(0.75):
            fitting = self._world.of_kind(*allowed, task=task)
            return self._random.choice(fitting or [self._world.admin])
        everybody = [*self._world.principals.values(), NOBODY]
        return self._random.choice(everybody)

    def _token_of(self, sender: Principal) -> dict[str, str]:
        """Return the sender's token, sometimes an invalid one."""
        if self._often(0.95):
            return sender.auth
        token = sender.token or "hro_nobody-has-ever-had-this-token"
        damaged = (token[:-1], token + "A", token.swapcase(), token + "\t x", "", "x" * 5000)
        scheme = self._random.choice(("Bearer", "bearer", "Basic", "Bearer Bearer"))
        return {"Authorization": f"{scheme} {self._random.choice(damaged)}"}

    def _protect_stories(self, case: Case, method: str) -> None:
        """Let only reads, and requests that must be refused, touch the tasks of stories."""
        task, name = case.path_parameters.get("task"), case.path_parameters.get("name")
        if task in self._world.story_tasks and method not in ("GET", "HEAD"):
            case.path_parameters["task"] = self._random.choice(self._world.open_tasks)
        if name in self._world.story_names:
            case.path_parameters["name"] = "nobody"

    def _fill_path(self, case: Case, sender: Principal) -> None:
        known: dict[str, Any] = {
            "task": sender.known.task or self._random.choice(self._world.open_tasks),
            "client": sender.known.client or self._any_client(),
            "number": self._random.choice((1, 1, 1, 2, 3)),
            "stage": self._random.choice(("advertise", "share", "confirm", "unmask")),
            "invitation": "i_00000000000000000000",
            "name": self._random.choice(self._world.names or ["nobody"]),
        }
        for name in case.path_parameters:
            if self._often(0.6):
                case.path_parameters[name] = known[name]

    def _any_client(self) -> str:
        clients = [one.known.client for one in self._world.of_kind("member", "holder") if one.known.client]
        return self._random.choice(clients) if clients else "c_00000000000000000000"

    def _fill_raw(self, case: Case, method: str, sender: Principal) -> None:
        if self._often(0.7):
            case.body = self._body(case, sender)
        if self._often(0.85):
            body = case.body if isinstance(case.body, bytes) else b""
            case.headers["Content-Digest"] = digest_field(body)
            if method == "PATCH":
                first = self._often(0.5)
                case.headers["Upload-Offset"] = "0" if first else str(_SPLIT)
                case.headers["Upload-Complete"] = "?0" if first else "?1"
                case.body = body[:_SPLIT] if first else body[_SPLIT:]
                case.headers["Content-Digest"] = digest_field(case.body)
                case.headers["Repr-Digest"] = digest_field(body)

    def _body(self, case: Case, sender: Principal) -> bytes:
        """Return a contribution if the sender can make one, else bytes with the length of some message."""
        task, number = self._world.tasks.get(sender.known.task or ""), case.path_parameters.get("number")
        makes = task is not None and task.mechanism.name == "plain" and isinstance(number, int) and 0 < number < 9
        if task is not None and makes and sender.known.client and "/contributions/" in str(case.operation.path):
            member = TestMember(task, sender.known.client, sender.token)
            return member.contribution(int(number), float(self._random.choice((1, 2))))
        return self._random.randbytes(self._random.choice((1, 64, 160, 328, 500, 4096)))

    def _fill_json(self, case: Case, template: str) -> None:
        if template == "/v1/tasks":
            self._fill_task(case)
        elif template == "/v1/enrolments" and self._often(0.8) and self._world.invitations:
            _, _, invitation = self._random.choice(self._world.invitations)
            keys = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
            body = signed_enrolment(invitation, *keys)
            self._world.identities[body["identity_key"]] = keys[0]
            case.body = body if self._often(0.8) else self._with_one_of(body, case.body)

    def _fill_task(self, case: Case) -> None:
        full = len(self._world.tasks) >= _TASKS
        if full or self._often(0.8):
            name = f"fuzzed-{self._random.randrange(10**9)}"
            body = {
                "name": "plain" if full else name,  # a name that is taken
                "recipe": {"name": "fedmf", "parameters": {"items": 5, "dim": 3, "clip": 1000.0}},
                "mechanism": {"name": self._random.choice(("plain", "plain", "masked", "ckks")), "parameters": {}},
                "schedule": {"rounds": 2, "cohort_size": 4, "min_clients": 3, "start_clients": 3},
            }
            case.body = body if self._often(0.6) else self._with_one_of(body, case.body)

    def _with_one_of(self, body: dict[str, Any], generated: object) -> dict[str, Any]:
        """Return the valid body with one generated field."""
        if not isinstance(generated, dict) or not generated:
            return body
        name = self._random.choice(sorted(generated, key=str))
        return {**body, name: generated[name]}


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
