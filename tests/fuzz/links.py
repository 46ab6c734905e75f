"""OpenAPI links, which the state machine follows: values in a response that are parameters of other operations."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["with_links"]

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
