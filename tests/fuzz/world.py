"""A real aggregator under fuzz: every exchange passes through here, is judged, and updates what is known.

Tokens, invitations and tasks in answers are remembered, whoever asked for them, so that later calls can use them. The
number of examples and the seed: see docs/testing.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.judge import Answer, Caller, judge, operation_of, strings_in
from tests.support.api import Api, TestTask
from tests.support.server import AggregatorProcess

_GIVEN: Final = os.environ.get("HUSHREC_FUZZ_EXAMPLES", "")
EXAMPLES: Final = int(_GIVEN or "30")
SEED: Final = int(os.environ.get("HUSHREC_SEED", "0")) or (Random().randrange(1, 2**31) if _GIVEN else 1)
"""Fixed in a plain run of the suite; random in longer runs."""


def each(examples: int, strategy: st.SearchStrategy[Any], use: Callable[[Any], object], begin: int = SEED) -> None:
    """Call `use` with so many examples. A failure says how to get it again.

    Without shrinking, database or deadline: the server keeps state, so failures may not repeat.
    """

    @seed(begin)
    @settings(
        max_examples=max(1, examples),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(example=strategy)
    def call(example: Any) -> None:
        use(example)

    try:
        call()
    except AssertionError as error:
        pytest.fail(f"{error}\nagain: HUSHREC_SEED={SEED} HUSHREC_FUZZ_EXAMPLES={EXAMPLES}", pytrace=False)


_ORDINARY: Final = frozenset(
    {"host", "accept", "accept-encoding", "connection", "content-length", "content-type", "transfer-encoding"}
)
"""Headers whose values are not secret: an error may repeat `application/json`."""
_STRICT: Final = {
    "operators": "SELECT * FROM operators ORDER BY name",
    "invitations": "SELECT * FROM invitations ORDER BY token_hash",
    "clients": "SELECT id, token_hash, mailbox_key, certificate, envelope_key, revoked_at FROM clients",
    "tasks": "SELECT id, name, public_key, seed FROM tasks ORDER BY id",
    "contributions": "SELECT round_id, client_id, digest FROM contributions ORDER BY round_id, client_id",
    "messages": "SELECT round_id, stage, client_id, digest FROM stage_messages ORDER BY round_id, stage, client_id",
}
"""Tables and columns that only requests change; the round engine writes the others too."""


class World:
    def __init__(self, server: AggregatorProcess) -> None:
        self.server = server
        self.api = Api(server.url, server.operator_token)
        self.api.http.event_hooks = {"request": [self._before], "response": [self._after]}
        self._forbidden = (str(server.data_dir.parent), server.operator_token)
        self._database = sqlite3.connect(f"file:{server.data_dir / 'hushrec.db'}?mode=ro", uri=True, timeout=30)
        self._known: tuple[int, dict[str, str]] = (-1, {})
        self._was: dict[str, str] = {}
        self.admin = Caller("admin", server.operator_token)
        self.callers: dict[str, Caller] = {self.admin.token: self.admin}
        self.invitations: list[str] = []
        self.tasks: dict[str, TestTask] = {}
        self.honest: set[str] = set()
        """Tasks that generated calls must not change, and names of operators that they must not revoke."""
        self.open_tasks: list[str] = []
        """Tasks that anybody may do anything to."""
        self.names: list[str] = []
        """Operators whom anybody may revoke."""
        self._between: Callable[[], None] | None = None
        self.trail: deque[str] = deque(maxlen=30)
        """The latest exchanges, for the report of a failure."""
        self.seen: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        """How often each operation had each status."""

    def close(self) -> None:
        self.api.close()
        self._database.close()

    def of_kind(self, *kinds: str, task: str | None = None) -> list[Caller]:
        found = [one for one in self.callers.values() if one.kind in kinds]
        return [one for one in found if task is None or one.task in (None, task)]

    @contextmanager
    def honestly(self, between: Callable[[], None]) -> Iterator[None]:
        """Within the block requests are of honest clients; `between` them come the calls that it makes.

        What they fetched with an entity tag they ask for again: the answer is that nothing has changed, or another one.
        """
        self._between = between
        yield
        self._between = None

    def rows(self) -> dict[str, str]:
        """Return a digest of each set of rows that only requests change, by name."""
        version = int(self._database.execute("PRAGMA data_version").fetchone()[0])  # changes with every commit
        if self._known[0] != version:
            found = {name: self._database.execute(query).fetchall() for name, query in _STRICT.items()}
            self._known = (
                version,
                {name: hashlib.sha256(repr(rows).encode()).hexdigest() for name, rows in found.items()},
            )
        return self._known[1]

    def begin(self) -> None:
        self._was = self.rows()

    def check(self, answer: Answer) -> None:
        self.trail.append(f"{answer.method} {answer.path} as {answer.who} -> {answer.status}")
        judge(answer, self._forbidden)
        found = operation_of(answer.method, answer.path)
        if found is not None:
            self.seen[answer.method, found[0]][answer.status] += 1
        if answer.status >= 400 or answer.method in ("GET", "HEAD"):
            now = self.rows()
            changed = [name for name in now if now[name] != self._was.get(name, now[name])]
            assert not changed, f"it changed {changed}\n{answer}"
        elif found is not None and answer.headers.get("content-type") == "application/json":
            self._record(answer.method, found[0], found[1], json.loads(answer.body))

    def _before(self, _request: httpx.Request) -> None:
        self.begin()

    def _after(self, response: httpx.Response) -> None:
        request, body = response.request, response.read()
        parts = urlsplit(str(request.url))
        given = [unquote(part) for part in parts.path.split("/")] + [value for _, value in parse_qsl(parts.query)]
        given += [value for name, value in request.headers.items() if name not in _ORDINARY]
        if "json" in request.headers.get("content-type", ""):
            try:
                given += strings_in(json.loads(request.content))
            except (ValueError, RecursionError):
                given += [request.content.decode("latin-1")] if len(request.content) > 8 else []
        path, who = unquote(parts.path), self._who(request.headers.get("authorization", ""))
        texts = [text for text in given if text]
        headers = dict(response.headers)
        self.check(Answer(request.method, path, response.status_code, headers, body, who, texts, response))
        if self._between is not None:
            between, self._between = self._between, None
            self._ask_again(request, response)
            between()
            self._between = between

    def _ask_again(self, request: httpx.Request, response: httpx.Response) -> None:
        tag = response.headers.get("etag")
        if request.method != "GET" or response.status_code != 200 or tag is None:
            return
        kept = {"Authorization": request.headers["authorization"], "If-None-Match": tag}
        again = self.api.http.get(request.url, headers=kept)
        assert again.status_code == 304 or again.headers["etag"] != tag, f"{request.url} is sent again"

    def _who(self, authorization: str) -> Caller:
        scheme, _, token = authorization.partition(" ")
        return self.callers.get(token.strip(), Caller()) if scheme.lower() == "bearer" else Caller()

    def _record(self, method: str, template: str, parameters: Mapping[str, str], body: Any) -> None:
        match method, template:
            case "POST", "/v1/enrolments":
                self._add(Caller(body["role"], body["token"], body["task_id"], body["client_id"]))
            case "POST", "/v1/operators" | "/v1/operators/{name}/rotation":
                self._add(Caller(body["role"], body["token"], name=body["name"]))
                self._keep(body["name"], self.names)
            case "POST", "/v1/tasks/{task}/invitations":
                self.invitations += [body["invitation"]] if self._between is None else []
            case "DELETE", "/v1/operators/{name}":
                self._drop(Caller(name=body["name"]))
            case "DELETE", "/v1/tasks/{task}/members/{client}":
                self._drop(Caller(task=parameters["task"], client=body["client_id"]))
            case "POST", "/v1/tasks/{task}/members/{client}/erasure":
                self._drop(Caller(task=parameters["task"], client=parameters["client"]))
            case "DELETE", "/v1/tasks/{task}":
                self.tasks.pop(body["task_id"], None)
                self.open_tasks = [task for task in self.open_tasks if task != body["task_id"]]
                self.callers = {t: one for t, one in self.callers.items() if one.task != body["task_id"]}
            case "POST", "/v1/tasks":
                self.tasks[body["task_id"]] = TestTask(self.api, body)
                self._keep(body["task_id"], self.open_tasks)

    def _keep(self, name: str, names: list[str]) -> None:
        names.append(name) if self._between is None else self.honest.add(name)

    def _add(self, caller: Caller) -> None:
        self._drop(caller)
        self.callers[caller.token] = caller

    def _drop(self, gone: Caller) -> None:
        """Forget a caller whose tokens are no longer valid."""
        whose = gone.task, gone.client, gone.name
        self.callers = {t: one for t, one in self.callers.items() if (one.task, one.client, one.name) != whose}
