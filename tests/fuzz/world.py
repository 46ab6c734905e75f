"""A real aggregator under fuzz: every exchange passes through here, is checked, and updates what is known.

Tokens, invitations and tasks in answers are remembered, whoever asked for them, so that later calls can use them. The
number of examples and the seed: see docs/testing.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, Phase, settings

from tests.fuzz.judge import Answer, Judge, Known, operation_of, strings_in
from tests.support.api import Api, TestTask
from tests.support.server import AggregatorProcess

__all__ = ["AGAIN", "EXAMPLES", "NOBODY", "SEED", "Principal", "Rows", "World", "limits"]

_GIVEN: Final = os.environ.get("HUSHREC_FUZZ_EXAMPLES", "")
EXAMPLES: Final = int(_GIVEN or "60")
SEED: Final = int(os.environ.get("HUSHREC_SEED", "0")) or (Random().randrange(1, 2**31) if _GIVEN else 1)
"""Fixed in a plain run of the suite; random in longer runs."""
AGAIN: Final = f"HUSHREC_SEED={SEED} HUSHREC_FUZZ_EXAMPLES={EXAMPLES}"


def limits(examples: int, **changes: Any) -> settings:
    """Return settings without shrinking, database or deadline: the server keeps state, so failures may not repeat."""
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        **changes,
    )


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


class Rows:
    """The server's database, read from outside."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
        self._known: tuple[int, dict[str, str]] = (-1, {})

    def close(self) -> None:
        self._connection.close()

    def version(self) -> int:
        """Return a number that changes with every commit of the server."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def strict(self) -> dict[str, str]:
        """Return a digest of each set of rows that only requests change, by name."""
        version = self.version()
        if self._known[0] != version:
            self._known = version, {name: self._digest(query) for name, query in _STRICT.items()}
        return self._known[1]

    def _digest(self, query: str) -> str:
        found = hashlib.sha256()
        for row in self._connection.execute(query):
            found.update(repr(row).encode())
        return found.hexdigest()


@dataclass(frozen=True)
class Principal:
    """A caller with a token."""

    known: Known
    token: str

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


NOBODY: Final = Principal(Known("nobody"), "")


class World:
    """The server, the judge of its answers, and everything that is known from answers so far."""

    def __init__(self, server: AggregatorProcess) -> None:
        self.server = server
        self.judge = Judge(forbidden=(str(server.data_dir.parent), server.operator_token))
        self.rows = Rows(server.data_dir / "hushrec.db")
        self.api = Api(server.url, server.operator_token)
        self.api.http.event_hooks = {"request": [self._before_httpx], "response": [self._after_httpx]}
        self.admin = Principal(Known("admin"), server.operator_token)
        self.principals: dict[str, Principal] = {self.admin.token: self.admin}
        self.invitations: list[tuple[str, str, str]] = []
        """(task, role, invitation)"""
        self.identities: dict[str, Ed25519PrivateKey] = {}
        self.tasks: dict[str, TestTask] = {}
        self.names: list[str] = []
        """Operators' tokens that anybody may revoke."""
        self.story_tasks: set[str] = set()
        self.story_names: set[str] = set()
        self.open_tasks: list[str] = []
        """Tasks that anybody may do anything to."""
        self._in_story = False
        self.trail: list[str] = []
        """The latest exchanges, for the report of a failure."""
        self._was: dict[str, str] = {}

    def close(self) -> None:
        self.api.close()
        self.rows.close()

    def who(self, authorization: str) -> Known | None:
        """Return the caller with this header; None for a token that is not valid, or no longer."""
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            return NOBODY.known
        found = self.principals.get(token.strip()) if scheme.lower() == "bearer" else None
        return found.known if found is not None else Known("nobody")

    def of_kind(self, *kinds: str, task: str | None = None) -> list[Principal]:
        """Return all callers of these kinds; if `task` is given, only clients of that task."""
        found = [one for one in self.principals.values() if one.known.kind in kinds]
        return [one for one in found if task is None or one.known.task in (None, task)]

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Mark everything created in the context as a story's, which generated requests must not change."""
        self._in_story = True
        try:
            yield
        finally:
            self._in_story = False

    # exchanges of httpx (stories) and of requests (schemathesis) both call these methods

    def before(self) -> None:
        """Record the state before a request is sent."""
        self._was = self.rows.strict()

    def after(self, answer: Answer) -> None:
        """Check an answer, compare the database, and update what is known."""
        self.trail = [*self.trail[-30:], f"{answer.method} {answer.path} as {answer.who} -> {answer.status}"]
        self.judge.check(answer)
        now = self.rows.strict()
        if answer.status >= 400 or answer.method in ("GET", "HEAD"):
            changed = [name for name in now if now[name] != self._was.get(name, now[name])]
            assert not changed, f"it changed {changed}\n{answer}"
        elif answer.headers.get("content-type") == "application/json":
            self._record_created(answer, json.loads(answer.body))

    def answer_of(
        self, method: str, url: str, sent: Mapping[str, str], content: bytes, status: int, headers: Any, body: bytes
    ) -> Answer:
        """Return an exchange as an `Answer`. sent: the request's headers."""
        parts, names = urlsplit(url), {name.lower(): value for name, value in sent.items()}
        given = [unquote(part) for part in parts.path.split("/") if part]
        given += [value for _, value in parse_qsl(parts.query)]
        given += [str(value) for name, value in names.items() if name not in _ORDINARY]
        if "json" in names.get("content-type", ""):
            try:
                given += strings_in(json.loads(content))
            except (ValueError, RecursionError):
                given += [content.decode("latin-1")] if len(content) > 8 else []
        who = self.who(names.get("authorization", ""))
        lower = {name.lower(): value for name, value in dict(headers).items()}
        return Answer(method, unquote(parts.path), status, lower, body, who, [text for text in given if text])

    def _before_httpx(self, _request: httpx.Request) -> None:
        self.before()

    def _after_httpx(self, response: httpx.Response) -> None:
        request = response.request
        body = response.read()
        content = request.content if not isinstance(request.stream, Iterator) else b""
        answer = self.answer_of(
            request.method, str(request.url), request.headers, content, response.status_code, response.headers, body
        )
        answer.response = response
        self.after(answer)

    def _record_created(self, answer: Answer, body: Any) -> None:
        found = operation_of(answer.method, answer.path)
        match found and (answer.method, found[0]):
            case ("POST", "/v1/enrolments"):
                self._add(Principal(Known(body["role"], body["task_id"], body["client_id"]), body["token"]))
            case ("POST", "/v1/operators" | "/v1/operators/{name}/rotation"):
                self._add(Principal(Known(body["role"], name=body["name"]), body["token"]))
                self.story_names.add(body["name"]) if self._in_story else self.names.append(body["name"])
            case ("POST", "/v1/tasks/{task}/invitations") if not self._in_story:
                self.invitations.append((body["task_id"], body["role"], body["invitation"]))
            case ("DELETE", "/v1/operators/{name}"):
                self._drop(Known(body["role"], name=body["name"]))
            case ("DELETE", "/v1/tasks/{task}/members/{client}"):
                self._drop(Known(body["role"], found[1]["task"], body["client_id"]))  # type: ignore[index]
            case ("POST", "/v1/tasks"):
                self.tasks[body["task_id"]] = TestTask(self.api, body)
                self.story_tasks.add(body["task_id"]) if self._in_story else self.open_tasks.append(body["task_id"])

    def _add(self, principal: Principal) -> None:
        self._drop(principal.known)
        self.principals[principal.token] = principal

    def _drop(self, known: Known) -> None:
        """Forget a caller whose tokens are no longer valid."""
        self.principals = {token: one for token, one in self.principals.items() if one.known != known}
