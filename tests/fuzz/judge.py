"""The rules that every answer of the aggregator must keep, for any request and any caller.

An `Answer` is what came back over HTTP, with the request that it answers; `Judge` knows the OpenAPI document, the table
of `docs/http-api.md`, and what must never be in an answer. The document gets links, which the state machine follows:
values in a response that are parameters of other operations.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import schemathesis

from protocols.messages.problem import PROBLEM_TYPES, ProblemDocument
from tests.support.promises import promised

__all__ = [
    "DOCUMENT",
    "INSIDES",
    "OPERATIONS",
    "SCHEMA",
    "Answer",
    "Judge",
    "Known",
    "operation_of",
    "strings_in",
    "with_links",
]

_TASK: Final = "/v1/tasks/{task}"
_ROUND: Final = _TASK + "/rounds/{number}"
_SAME_TASK: Final = {"task": "$request.path.task"}
_HANDED_OUT: Final = tuple(f"GET {_ROUND}/{what}" for what in ("roster", "inbox", "survivors", "confirmations"))
_OF_A_TASK: Final = (
    f"GET {_TASK}",
    f"POST {_TASK}/close",
    f"POST {_TASK}/resume",
    f"POST {_TASK}/invitations",
    f"GET {_TASK}/invitations",
    f"GET {_TASK}/members",
    f"GET {_TASK}/rounds",
    f"GET {_TASK}/sums/{{number}}",
    f"GET {_TASK}/rounds/current",
    f"GET {_TASK}/snapshots/latest",
    f"GET {_TASK}/ledger",
    f"GET {_TASK}/privacy",
    f"PUT {_TASK}/catalogue",
    f"GET {_TASK}/catalogue",
    f"PUT {_TASK}/revocations",
    f"GET {_TASK}/revocations",
    f"GET {_TASK}/committee",
    f"GET {_TASK}/snapshots/best",
)
_OF_A_CLIENT: Final = (
    f"GET {_TASK}",
    f"GET {_TASK}/keyring",
    f"GET {_TASK}/members",
    f"GET {_TASK}/members/me/ledger",
    f"GET {_TASK}/rounds/current",
    f"PUT {_TASK}/public-key",
    f"PUT {_TASK}/members/me/certificate",
)
_UPLOADS: Final = (
    f"PUT {_ROUND}/contributions/{{client}}",
    f"HEAD {_ROUND}/contributions/{{client}}",
    f"PATCH {_ROUND}/contributions/{{client}}",
    f"PUT {_ROUND}/stages/{{stage}}/{{client}}",
)
_OF_A_ROUND: Final = (
    f"GET {_ROUND}",
    f"GET {_ROUND}/cohort",
    f"GET {_ROUND}/aggregate",
    f"GET {_ROUND}/attestations",
    f"POST {_ROUND}/refusals",
    f"GET {_ROUND}/committee",
    f"GET {_ROUND}/statements",
    f"GET {_ROUND}/shares/{{client}}",
    f"POST {_ROUND}/bad-shares",
    f"PUT {_TASK}/committee/{{client}}/keys/{{number}}",
    f"POST {_ROUND}/extend",
    f"POST {_ROUND}/abort",
    f"GET {_TASK}/snapshots/{{number}}",
    f"PUT {_TASK}/snapshots/{{number}}",
    *_HANDED_OUT,
    *_UPLOADS,
)
_OF_AN_INVITATION: Final = (f"DELETE {_TASK}/invitations/{{invitation}}",)
_OF_AN_UPLOAD: Final = {name: f"$request.path.{name}" for name in ("task", "number", "client")}

_LINKS: Final[tuple[tuple[str, dict[str, str], tuple[str, ...]], ...]] = (
    ("POST /v1/tasks 201", {"task": "$response.body#/task_id"}, _OF_A_TASK),
    ("GET /v1/tasks 200", {"task": "$response.body#/tasks/0/task_id"}, _OF_A_TASK),
    (f"POST {_TASK}/invitations 201", {}, ("POST /v1/enrolments",)),
    (
        f"POST {_TASK}/invitations 201",
        {**_SAME_TASK, "invitation": "$response.body#/invitation_id"},
        _OF_AN_INVITATION,
    ),
    (
        f"GET {_TASK}/invitations 200",
        {**_SAME_TASK, "invitation": "$response.body#/invitations/0/invitation_id"},
        _OF_AN_INVITATION,
    ),
    ("POST /v1/enrolments 201", {"task": "$response.body#/task_id"}, _OF_A_CLIENT),
    ("POST /v1/enrolments 200", {"task": "$response.body#/task_id"}, _OF_A_CLIENT),
    ("POST /v1/enrolments 201", {"task": "$response.body#/task_id", "client": "$response.body#/client_id"}, _UPLOADS),
    (
        f"GET {_TASK}/members 200",
        {**_SAME_TASK, "client": "$response.body#/members/0/client_id"},
        (f"PUT {_TASK}/keyring/{{client}}", f"DELETE {_TASK}/members/{{client}}"),
    ),
    (f"PUT {_TASK}/public-key 201", _SAME_TASK, (f"GET {_TASK}/members",)),
    (f"PUT {_TASK}/keyring/{{client}} 201", _SAME_TASK, (f"GET {_TASK}/members",)),
    (f"GET {_TASK}/rounds 200", {**_SAME_TASK, "number": "$response.body#/rounds/0/number"}, _OF_A_ROUND),
    (f"GET {_TASK}/rounds/current 200", {**_SAME_TASK, "number": "$response.body#/number"}, _OF_A_ROUND),
    (
        f"GET {_TASK}/rounds/current 200",
        {**_SAME_TASK, "header.if-none-match": "$response.header.ETag"},
        (f"GET {_TASK}/rounds/current",),
    ),
    (
        f"GET {_ROUND}/cohort 200",
        {**_SAME_TASK, "number": "$response.body#/round", "client": "$response.body#/clients/0"},
        _UPLOADS,
    ),
    (
        f"PUT {_ROUND}/stages/{{stage}}/{{client}} 201",
        {**_SAME_TASK, "number": "$request.path.number"},
        _HANDED_OUT,
    ),
    (f"PUT {_ROUND}/contributions/{{client}} 201", _OF_AN_UPLOAD, _UPLOADS[:3]),
    (f"PATCH {_ROUND}/contributions/{{client}} 204", _OF_AN_UPLOAD, _UPLOADS[:3]),
    (f"HEAD {_ROUND}/contributions/{{client}} 204", _OF_AN_UPLOAD, _UPLOADS[:3]),
    (
        f"GET {_TASK}/snapshots/latest 200",
        {**_SAME_TASK, "number": "$response.body#/round"},
        (f"GET {_TASK}/snapshots/{{number}}",),
    ),
    (
        f"PUT {_TASK}/snapshots/{{number}} 201",
        {**_SAME_TASK, "number": "$request.path.number"},
        (f"GET {_TASK}/snapshots/{{number}}", f"GET {_TASK}/snapshots/latest"),
    ),
    (
        "POST /v1/operators 201",
        {"name": "$response.body#/name"},
        ("POST /v1/operators/{name}/rotation", "DELETE /v1/operators/{name}"),
    ),
    (
        "GET /v1/operators 200",
        {"name": "$response.body#/operators/0/name"},
        ("POST /v1/operators/{name}/rotation", "DELETE /v1/operators/{name}"),
    ),
)
"""(response as "METHOD path status", parameters and where the response has their values, target operations)."""


def with_links(document: dict[str, Any]) -> dict[str, Any]:
    """Add the links to an OpenAPI document, and return it. `KeyError` if a link names an operation that it lacks."""
    for answer, given, targets in _LINKS:
        method, path, status = answer.split(" ")
        response = document["paths"][path][method.lower()]["responses"][status]
        for target in targets:
            operation = _operation(document, target)
            taken = {name: value for name, value in given.items() if _has_parameter(operation, name)}
            link = {"operationId": operation["operationId"], "description": operation["summary"], "parameters": taken}
            response.setdefault("links", {})[_name(operation["summary"])] = link
    return document


def _operation(document: dict[str, Any], named: str) -> dict[str, Any]:
    method, path = named.split(" ")
    found: dict[str, Any] = document["paths"][path][method.lower()]
    return found


def _has_parameter(operation: dict[str, Any], name: str) -> bool:
    place, _, plain = name.rpartition(".")
    return any(one["name"] == plain and (not place or one["in"] == place) for one in operation.get("parameters", []))


def _name(summary: str) -> str:
    """Return a summary as a component key, which may hold only letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", summary.lower()).strip("-")


DOCUMENT: Final = Path(__file__).parents[2] / "openapi" / "openapi.json"
_TEXT: Final = DOCUMENT.read_text(encoding="utf-8")
SCHEMA: Final = schemathesis.openapi.from_dict(with_links(json.loads(_TEXT)))
_PATHS: Final[dict[str, dict[str, Any]]] = json.loads(_TEXT)["paths"]
OPERATIONS: Final = sorted((method.upper(), path) for path, methods in _PATHS.items() for method in methods)

INSIDES: Final = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|aggregator_service|protocols\.|client_sdk|sqlalchemy|sqlite|psycopg|"
    r"alembic|pydantic|fastapi|starlette|uvicorn|h11|httptools|SELECT |INSERT |UPDATE |DELETE FROM|NoneType|"
    r"<class|object at 0x|\b(?:Key|Value|Type|Attribute|Index|Runtime|Assertion|Overflow|Recursion|Unicode\w*)Error\b|"
    r"\bpython\b",
    re.IGNORECASE,
)
_NOT_OPERATIONS: Final = frozenset({"/", "/openapi.json"})
"""What answers beside the operations of the document: the page for people, and the document itself."""
_ALWAYS: Final = (
    "x-content-type-options",
    "referrer-policy",
    "content-security-policy",
    "cache-control",
    "x-request-id",
)
_NEVER: Final = ("server", "x-powered-by", "via")
_OWN_WORDS: Final = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER: Final = re.compile(r"[-+0-9.eE]+")
_FIELD: Final = re.compile(r"[A-Za-z0-9_]{1,40}")
_SHOW: Final = 600
_TOKENS: Final = re.compile(r"hr[oci]_[A-Za-z0-9_-]{16,}")
SHOWN_ONCE: Final = frozenset(
    {
        ("POST", "/v1/enrolments"),
        ("POST", "/v1/operators"),
        ("POST", "/v1/operators/{name}/rotation"),
        ("POST", "/v1/tasks/{task}/invitations"),
    }
)
"""The only operations whose answers contain a token or an invitation."""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "([^/]+)", path.replace(".", r"\.")) + "$")


# Literal segments win over parameters, as they do in the service.
_ROUTES: Final = [(_pattern(path), path) for path in sorted(_PATHS, key=lambda path: (path.count("{"), path))]


def operation_of(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """Return the path template and path parameters of the operation that a request is for; None if there is none."""
    for pattern, template in _ROUTES:
        found = pattern.match(path)
        if found is not None and documented_method(method, template).lower() in _PATHS[template]:
            return template, dict(zip(re.findall(r"\{(\w+)\}", template), found.groups(), strict=True))
    return None


def documented_method(method: str, template: str) -> str:
    """Return the method whose operation answers: HEAD is answered wherever GET is, if it is no operation of its own."""
    return "GET" if method == "HEAD" and "head" not in _PATHS[template] else method


def strings_in(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, and every key that is not a plain word (errors name plain unknown fields)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (key for key in value if not _FIELD.fullmatch(key))
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)


@dataclass(frozen=True)
class Known:
    """The sender of a request: kind of caller, task of a client, name of an operator."""

    kind: str
    task: str | None = None
    client: str | None = None
    name: str | None = None


@dataclass
class Answer:
    """A request and its answer. headers: lower-case names. given: strings of the request that no error may repeat."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    who: Known | None = None
    given: list[str] = field(default_factory=list)
    response: Any = None
    """The response object of the HTTP library, for schemathesis."""

    def __str__(self) -> str:
        text = self.body[:_SHOW].decode("utf-8", "replace")
        return f"{self.method} {self.path} as {self.who} -> {self.status} {dict(self.headers)}\n{text}"


class Judge:
    """Checks answers, and records the statuses of each operation."""

    def __init__(self, forbidden: tuple[str, ...] = ()) -> None:
        """forbidden: strings that no answer may contain, such as the server's data directory."""
        self.seen: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._forbidden = forbidden
        self._promised = promised()

    def check(self, answer: Answer) -> None:
        """Raise `AssertionError` with the exchange unless the answer keeps every rule."""
        try:
            self._check(answer)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{answer}") from None

    def _check(self, answer: Answer) -> None:
        found = operation_of(answer.method, answer.path)
        assert answer.status < 500, "a server error"
        self._check_headers(answer)
        if answer.status >= 400:
            self._check_problem(answer)
        if found is None:
            assert answer.status >= 400 or answer.path in _NOT_OPERATIONS, "no such operation"
            return
        template, parameters = found
        self.seen[answer.method, template][answer.status] += 1
        self._check_document(answer, template)
        if answer.status < 400:
            self._check_caller(answer, template, parameters)
        if answer.status >= 400 or (answer.method, template) not in SHOWN_ONCE:
            assert not _TOKENS.search(answer.body.decode("utf-8", "replace")), "a token"

    def _check_headers(self, answer: Answer) -> None:
        for name in _ALWAYS:
            assert name in answer.headers, f"no header {name}"
        for name in _NEVER:
            assert name not in answer.headers, f"a header {name}"
        assert answer.headers["x-content-type-options"] == "nosniff"
        wanted = {401: "www-authenticate", 405: "allow", 429: "retry-after"}.get(answer.status)
        assert wanted is None or wanted in answer.headers, f"no header {wanted}"
        for name, value in answer.headers.items():
            assert not any(text in value for text in self._forbidden), f"{name} reveals internals"

    def _check_problem(self, answer: Answer) -> None:
        assert answer.headers.get("content-type") == "application/problem+json", "not a problem document"
        if answer.method == "HEAD":
            assert not answer.body
            return
        document = json.loads(answer.body)
        slug = ProblemDocument.model_validate(document).slug
        assert slug in PROBLEM_TYPES, "an unknown type"
        assert (document["status"], document["title"]) == PROBLEM_TYPES[slug] and document["status"] == answer.status
        assert document["detail"] and document["fault"] == "client", "nobody's fault"
        text = answer.body.decode()
        inside = INSIDES.search(text)
        assert inside is None, f"reveals internals: {inside.group()!r}"  # type: ignore[union-attr]
        assert not any(hidden in text for hidden in self._forbidden), "reveals internals"
        words = set(_OWN_WORDS.findall(_TEXT))
        for given in answer.given:
            told_aloud = len(given) < 8 or given in words or _NUMBER.fullmatch(given)
            repeated = not told_aloud and given in text
            assert not repeated, f"repeats what was sent: {given[:80]!r}"

    def _check_document(self, answer: Answer, template: str) -> None:
        responses = _PATHS[template][documented_method(answer.method, template).lower()]["responses"]
        assert str(answer.status) in responses, f"{answer.status} is not documented"
        documented = responses[str(answer.status)]
        content = documented.get("content", {})
        if answer.method != "HEAD" and answer.status >= 400:
            slug = ProblemDocument.model_validate_json(answer.body).slug
            examples = content["application/problem+json"]["examples"]
            assert slug in examples, f"{slug} is not documented"
        elif content and answer.method != "HEAD":
            media_type = answer.headers.get("content-type", "").partition(";")[0]
            assert media_type in content, f"{media_type} is not documented"
        elif not content:
            assert not answer.body, "a body that is not documented"
        if answer.status < 400:
            for name in documented.get("headers", {}):
                assert name.lower() in answer.headers, f"no header {name}"
            if "application/json" in content and answer.response is not None and answer.method != "HEAD":
                SCHEMA[template][answer.method].validate_response(answer.response)

    def _check_caller(self, answer: Answer, template: str, parameters: Mapping[str, str]) -> None:
        """Check that only callers that docs/http-api.md allows succeed, and that no client reaches another's data."""
        who = answer.who
        if who is None:
            return
        method = documented_method(answer.method, template)
        assert who.kind in self._promised[method, template], f"{who.kind} is let in"
        if who.task is None:
            return
        assert parameters.get("task", who.task) == who.task, "let into another task"
        if "/contributions/" in template or "/stages/" in template:
            assert parameters["client"] == who.client, "let into what is another client's"
