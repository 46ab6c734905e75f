"""The rules that every answer of the aggregator must keep, for any request and any caller.

They follow from the OpenAPI document, from the table of `docs/http-api.md`, and from what must never be in an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from protocols.messages.base import PROBLEM_TYPES, ProblemDocument
from tests.support.callers import promised

_TEXT: Final = (Path(__file__).parents[2] / "openapi" / "openapi.json").read_text(encoding="utf-8")
_PATHS: Final[dict[str, dict[str, Any]]] = json.loads(_TEXT)["paths"]
OPERATIONS: Final = sorted((method.upper(), path) for path, methods in _PATHS.items() for method in methods)
PROMISED: Final = promised()
INSIDES: Final = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|aggregator_service|protocols\.|client_sdk|sqlalchemy|sqlite|psycopg|"
    r"alembic|pydantic|fastapi|starlette|uvicorn|h11|httptools|SELECT |INSERT |UPDATE |DELETE FROM|NoneType|"
    r"<class|object at 0x|\b(?:Key|Value|Type|Attribute|Index|Runtime|Assertion|Overflow|Recursion|Unicode\w*)Error\b|"
    r"\bpython\b",
    re.IGNORECASE,
)
_NOT_OPERATIONS: Final = frozenset({"/", "/openapi.json"})
"""What answers beside the operations of the document: the page for people, and the document itself."""
_ALWAYS: Final = {
    "x-content-type-options",
    "referrer-policy",
    "content-security-policy",
    "cache-control",
    "x-request-id",
}
_NEVER: Final = {"server", "x-powered-by", "via"}
_DEMANDED: Final = {401: "www-authenticate", 405: "allow", 429: "retry-after"}
_OWN_WORDS: Final = frozenset(re.findall(r"[A-Za-z0-9_-]+", _TEXT))
_NUMBER: Final = re.compile(r"[-+0-9.eE]+")
_TOKENS: Final = re.compile(r"hr[oci]_[A-Za-z0-9_-]{16,}")
_SHOW_ONCE: Final = frozenset(
    {
        ("POST", "/v1/enrolments"),
        ("POST", "/v1/operators"),
        ("POST", "/v1/operators/{name}/rotation"),
        ("POST", "/v1/tasks/{task}/invitations"),
    }
)
"""The only operations whose answers contain a token or an invitation."""


@cache
def schema() -> Any:
    """Return the document as schemathesis has it, imported by the process that needs it: this takes a second."""
    import schemathesis

    schemathesis.serializer.alias("application/partial-upload", "application/octet-stream")
    return schemathesis.openapi.from_dict(json.loads(_TEXT))


@dataclass(frozen=True)
class Caller:
    """The sender of a request: its kind, its token, its task and id if it is a client, its name if an operator."""

    kind: str = "nobody"
    token: str = ""
    task: str | None = None
    client: str | None = None
    name: str | None = None

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass
class Answer:
    """A request and its answer."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes
    who: Caller | None = None
    given: list[str] = field(default_factory=list)
    """Strings of the request that no error may repeat."""
    response: Any = None
    """The response object of the HTTP library, for schemathesis."""

    def __str__(self) -> str:
        text = self.body[:600].decode("utf-8", "replace")
        return f"{self.method} {self.path} as {self.who} -> {self.status} {dict(self.headers)}\n{text}"


# Literal segments win over parameters, as they do in the service.
_ROUTES: Final = [
    (re.compile(re.sub(r"\{\w+\}", "([^/]+)", path.replace(".", r"\.")) + "$"), path)
    for path in sorted(_PATHS, key=lambda path: (path.count("{"), path))
]


def operation_of(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """Return the path template and path parameters of the operation that a request is for; None if there is none."""
    for pattern, template in _ROUTES:
        found = pattern.match(path)
        if found is not None and _documented(method, template).lower() in _PATHS[template]:
            return template, dict(zip(re.findall(r"\{(\w+)\}", template), found.groups(), strict=True))
    return None


def _documented(method: str, template: str) -> str:
    """Return the method whose operation answers: HEAD is answered wherever GET is, if it is no operation of its own."""
    return "GET" if method == "HEAD" and "head" not in _PATHS[template] else method


def strings_in(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, and every key that is not a plain word (errors name plain unknown fields)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (key for key in value if not re.fullmatch(r"[A-Za-z0-9_]{1,40}", key))
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)


def judge(answer: Answer, forbidden: tuple[str, ...] = ()) -> None:
    """Raise `AssertionError` with the exchange unless the answer keeps every rule.

    forbidden: strings that no answer may contain, such as the server's data directory.
    """
    try:
        assert answer.status < 500, "a server error"
        _judge_headers(answer, forbidden)
        if answer.status >= 400:
            _judge_problem(answer, forbidden)
        found = operation_of(answer.method, answer.path)
        if found is None:
            assert answer.status >= 400 or answer.path in _NOT_OPERATIONS, "no such operation"
            return
        template, parameters = found
        _judge_document(answer, template)
        if answer.status < 400 and answer.who is not None:
            _judge_caller(answer.who, _documented(answer.method, template), template, parameters)
        if answer.status >= 400 or (answer.method, template) not in _SHOW_ONCE:
            assert not _TOKENS.search(answer.body.decode("utf-8", "replace")), "a token"
    except AssertionError as error:
        raise AssertionError(f"{error}\n{answer}") from None


def _judge_headers(answer: Answer, forbidden: tuple[str, ...]) -> None:
    assert answer.headers.keys() >= _ALWAYS, "a missing header"
    assert not answer.headers.keys() & _NEVER, "a header too many"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert _DEMANDED.get(answer.status, "x-request-id") in answer.headers, "the header of its status is missing"
    for name, value in answer.headers.items():
        assert not any(text in value for text in forbidden), f"{name} reveals internals"


def _judge_problem(answer: Answer, forbidden: tuple[str, ...]) -> None:
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
    assert inside is None, f"reveals internals: {inside.group()!r}"
    assert not any(hidden in text for hidden in forbidden), "reveals internals"
    for own in (document["type"], document["title"]):  # of every such answer, whatever was sent
        text = text.replace(own, "")
    for given in answer.given:
        told_aloud = len(given) < 8 or given in _OWN_WORDS or _NUMBER.fullmatch(given)
        assert told_aloud or given not in text, f"repeats what was sent: {given[:80]!r}"


def _judge_document(answer: Answer, template: str) -> None:
    method = _documented(answer.method, template)
    responses = _PATHS[template][method.lower()]["responses"]
    assert str(answer.status) in responses, f"{answer.status} is not documented"
    documented = responses[str(answer.status)]
    content = documented.get("content", {})
    if answer.method != "HEAD" and answer.status >= 400:
        slug = ProblemDocument.model_validate_json(answer.body).slug
        assert slug in content["application/problem+json"]["examples"], f"{slug} is not documented"
    elif content and answer.method != "HEAD":
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        assert media_type in content, f"{media_type} is not documented"
    elif not content:
        assert not answer.body, "a body that is not documented"
    if answer.status < 400:
        for name, header in documented.get("headers", {}).items():
            assert name.lower() in answer.headers or not header.get("required"), f"no header {name}"
        if "application/json" in content and answer.response is not None and answer.method != "HEAD":
            schema()[template][answer.method].validate_response(answer.response)


def _judge_caller(who: Caller, method: str, template: str, parameters: Mapping[str, str]) -> None:
    """Check that only callers that docs/http-api.md allows succeed, and that no client reaches another's data."""
    assert who.kind in PROMISED[method, template], f"{who.kind} is let in"
    if who.task is not None:
        assert parameters.get("task", who.task) == who.task, "let into another task"
        if "/contributions/" in template or "/stages/" in template:
            assert parameters["client"] == who.client, "let into what is another client's"
