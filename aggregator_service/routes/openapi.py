"""What the OpenAPI document says, for client generators in other languages: routes, examples and schemas.

It is made when it is first asked for, and committed as openapi/openapi.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.routing import BaseRoute

from aggregator_service.problems import responses
from aggregator_service.routes.common import ETAG_TEXT, headers_of
from protocols.messages import (
    CohortView,
    Enrolment,
    EnrolmentRequest,
    Invitation,
    InvitationPage,
    InvitationRequest,
    LedgerPage,
    MemberPage,
    OperatorRequest,
    OperatorToken,
    ProblemDocument,
    RoundPage,
    RoundView,
    SnapshotView,
    TaskPage,
    TaskRequest,
    TaskView,
    UploadReceipt,
)
from protocols.messages.tasks import PLANS, OtherPlanView
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.groups import MIN_CLIENTS, GroupedParameters
from protocols.sums.registry import mechanisms, parameters_of

_REF: Final = "#/components/schemas/{model}"
_COUNTS: Final = ("min_clients", "cohort_size")
_SIGNATURE_HEADERS: Final = {
    "signatureInput": {
        "name": "Signature-Input",
        "description": "What a client's signature covers (RFC 9421): components, `created`, `keyid` and "
        '`tag="hushrec"`, in the form of docs/wire/requests.md.',
    },
    "signature": {"name": "Signature", "description": "A client's Ed25519 signature of the request (RFC 9421)."},
}
"""Security schemes: a client sends these headers beside its token."""

_IF_NONE_MATCH: Final = {
    "name": "if-none-match",
    "in": "header",
    "required": False,
    "schema": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": ETAG_TEXT, "title": "If-None-Match"},
    "description": ETAG_TEXT,
}


def make_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the document of these routes."""
    document = get_openapi(
        title="HushRec aggregator",
        version=metadata.version("hushrec").partition(".dev")[0],  # builds of one version have one document
        description=_DESCRIPTION,
        routes=routes,
        tags=_TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    _complete_schemas(document["components"]["schemas"])
    for name, header in _SIGNATURE_HEADERS.items():
        document["components"]["securitySchemes"][name] = {"type": "apiKey", "in": "header", **header}
    wrong_method = responses("method-not-allowed")[405]
    wrong_method["headers"] = headers_of({"Allow": "Every method of the path."})
    for operation in [operation for path in document["paths"].values() for operation in path.values()]:
        operation["responses"]["405"] = wrong_method
        if "304" in operation["responses"] and _IF_NONE_MATCH not in operation["parameters"]:
            operation["parameters"].append(_IF_NONE_MATCH)  # `routes.common.Answer` reads it
        # FastAPI's own body of the 422 responses: the service answers with a problem document
        operation["responses"].get("422", {}).get("content", {}).pop("application/json", None)
        if any("bearer" in one for one in operation.get("security", [])):
            operation["security"] = [{"bearer": []}, {"bearer": [], **dict.fromkeys(_SIGNATURE_HEADERS, [])}]
    return document


def _complete_schemas(schemas: dict[str, Any]) -> None:
    """Complete the schemas in place, which FastAPI makes of the routes' messages."""
    for leftover in ("HTTPValidationError", "ValidationError", "ResolvedChoice"):
        schemas.pop(leftover, None)
    schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
    for message, example in _EXAMPLES.items():
        schemas[message.__name__]["examples"] = [example]
    schemas["ResolvedRecipe"] = _choices(schemas, {name: recipe_entry(name).parameters for name in recipes()})
    schemas["ResolvedMechanism"] = _choices(schemas, {name: parameters_of(name) for name in mechanisms()})
    schemas["SumPlan"] = _plans(schemas)
    resolved = schemas["ResolvedTask"]["properties"]
    resolved["recipe"], resolved["mechanism"] = _ref("ResolvedRecipe"), _ref("ResolvedMechanism")
    for message_name in ("SumView", "TaskView"):
        schemas[message_name]["properties"]["plan"] = _ref("SumPlan")
    # how many clients each mechanism needs at least; its parameters may demand more
    schemas["TaskRequest"]["allOf"] = [
        {
            "if": {"properties": {"mechanism": {"properties": {"name": {"const": name}}, "required": ["name"]}}},
            "then": {"properties": {"schedule": {"properties": dict.fromkeys(_COUNTS, {"minimum": MIN_CLIENTS})}}},
        }
        for name in mechanisms()
        if issubclass(parameters_of(name) or BaseModel, GroupedParameters)  # others have the schema's own minimum
    ]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(model=name)}


def _add_model(schemas: dict[str, Any], model: type[BaseModel], name: str) -> None:
    """Add the schema of what the server writes of `model`, where every field is present."""
    schema = model.model_json_schema(mode="serialization", ref_template=_REF)
    for other, definition in schema.pop("$defs", {}).items():
        schemas.setdefault(other, definition)
    schemas[name] = schema | {"title": name}


def _choices(schemas: dict[str, Any], models: Mapping[str, type[BaseModel] | None]) -> dict[str, Any]:
    """Return the schema of a name with its parameters: one of several objects, told apart by the name."""
    targets = {}
    for name, model in sorted(models.items()):
        title = _title(name)
        parameters: dict[str, Any] = {"type": "object", "maxProperties": 0}
        if model is not None:
            _add_model(schemas, model, f"{title}Parameters")
            parameters = _ref(f"{title}Parameters")
        schemas[f"Resolved{title}"] = {
            "type": "object",
            "title": f"Resolved{title}",
            "required": ["name", "parameters"],
            "additionalProperties": False,
            "properties": {"name": {"const": name}, "parameters": parameters},
        }
        targets[name] = f"Resolved{title}"
    return _one_of(targets, "name")


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _plans(schemas: dict[str, Any]) -> dict[str, Any]:
    targets = {}
    for name in sorted({*PLANS, *mechanisms()}):
        model = PLANS.get(name, OtherPlanView)
        targets[name] = model.__name__ if name in PLANS else f"{_title(name)}PlanView"
        _add_model(schemas, model, targets[name])
        if name not in PLANS:  # of another package, which may state more
            schemas[targets[name]]["properties"]["mechanism"] = {"const": name}
    return _one_of(targets, "mechanism")


def _one_of(targets: dict[str, str], by: str) -> dict[str, Any]:
    mapping = {value: _REF.format(model=target) for value, target in targets.items()}
    return {
        "oneOf": [_ref(target) for target in targets.values()],
        "discriminator": {"propertyName": by, "mapping": mapping},
    }


_DESCRIPTION: Final = """\
Secure aggregation and homomorphic encryption for federated recommenders: clients keep their interactions, and the
server learns only sums.

Control messages are JSON; vectors are raw bytes. Bytes inside JSON are base64url without padding. Errors are problem
documents (RFC 9457); `docs/problems.md` explains each type. Long polls take `wait` (seconds, up to 30).
"""

_TAGS: Final = [
    {"name": "tasks", "description": "Tasks: recipe, mechanism and schedule that operators and clients agree on."},
    {"name": "enrolment", "description": "How a client becomes a member of a task."},
    {"name": "members", "description": "Members of a task, and their keyring envelopes."},
    {"name": "rounds", "description": "Rounds: each makes one sum. Cohort, state, aggregate."},
    {"name": "stages", "description": "The stages of masked rounds: keys, shares, survivors, confirmations."},
    {"name": "contributions", "description": "Uploads of one client's part of a sum."},
    {"name": "snapshots", "description": "Model states for clients that join late."},
    {"name": "ledger", "description": "Released sums, and those that contain a client's data."},
    {"name": "operators", "description": "Operators' tokens with names and roles, for admins."},
    {"name": "health", "description": "For load balancers and monitoring."},
]

_KEY: Final = "9v3Kq0bC2mX8rT5yWzL1aN7dF4hJ6pQsUeGiOkVxBtA"
_TASK: Final = "t_0f3a9c5b7d1e2f4a6b8c"
_CLIENT: Final = "c_9b1d3f5a7c2e4f6a8b0d"
_SIGNATURE: Final = _KEY + _KEY
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

_REQUEST: Final[dict[str, Any]] = {
    "name": "movies",
    "recipe": {"name": "colr", "parameters": {"items": 3706, "dim": 64, "rank": 4, "clip": 0.1}},
    "mechanism": {"name": "ckks", "parameters": {"set": "standard"}},
    "schedule": {"rounds": 100, "cohort_size": 20, "min_clients": 3, "collect_seconds": 600},
}
_ROUND: Final[dict[str, Any]] = (
    {"task_id": _TASK, "number": 7, "step": 7, "state": "collecting", "seed": _KEY, "seconds_left": 412.5}
    | {"cohort": 20, "received": 12, "survivors": 0, "folded": 0, "contribution_bytes": 96548}
    | {"aggregate_bytes": None, "aggregate_digest": None, "failure": None}
    | {"in_cohort": True, "expected": True, "delivered": False, "contributed": False}
)
_VIEW: Final[dict[str, Any]] = (
    _REQUEST
    | {"task_id": _TASK, "state": "open", "seed": _KEY, "opened_by": "members"}
    | {"schedule": _REQUEST["schedule"] | {"start_clients": 0, "sampling": "uniform", "max_failed_rounds": 5}}
    | {"plan": {"mechanism": "ckks", "set": "standard", "security_bits": 128}}
    | {"members": 60, "keyed_members": 60, "able_members": [60], "completed_rounds": 6, "failed_rounds": 0}
    | {"warnings": ["Members share one secret key: any member together with the server can open every contribution."]}
)
_SUM: Final[dict[str, Any]] = {
    "round": 7,
    "step": 7,
    "recipe": "privirec-k",
    "mechanism": "masked",
    "data_set": "ratings-2026",
} | {"survivors": 20, "survivors_digest": _DIGEST, "released_at": 1790000000.0, "contribution_digest": _DIGEST}
_INVITED: Final[dict[str, Any]] = {"role": "member", "uses": 100}
_INVITATION: Final[dict[str, Any]] = {**_INVITED, "invitation_id": "i_4c6e8a0b2d4f6a8c0e2b"}
_LISTED: Final = _INVITATION | {"state": "open", "used": 42, "age_seconds": 3600.0, "expires_seconds": 82800.0}
_CODE: Final = "hri_example-shown-once"
_KEYS: Final[dict[str, Any]] = {
    "identity_key": _KEY,
    "sealing_key": "A" * 1622,
    "certificate": "AG" + "A" * 106,
    "group": 0,
}
_MEMBER: Final = _KEYS | {
    "client_id": _CLIENT,
    "role": "member",
    "mailbox_key": _KEY,
    "keyed": False,
}
_READER: Final[dict[str, Any]] = {"name": "grafana", "role": "read-only"}

_EXAMPLES: Final[dict[type, dict[str, Any]]] = {
    LedgerPage: {"entries": [_SUM], "more": False},
    OperatorRequest: {**_READER, "expires_seconds": 7776000},
    OperatorToken: {**_READER, "age_seconds": 0.0, "expires_seconds": 7776000.0, "token": "hro_example-shown-once"},
    TaskRequest: _REQUEST,
    TaskView: _VIEW,
    TaskPage: {"tasks": [_VIEW]},
    InvitationRequest: {**_INVITED, "expires_seconds": 86400},
    Invitation: {**_INVITATION, "task_id": _TASK, "invitation": _CODE, "expires_seconds": 86400},
    InvitationPage: {"invitations": [_LISTED], "next": None},
    EnrolmentRequest: {
        **_KEYS,
        "invitation": _CODE,
        "signature": _KEY + _KEY,
        "renewal": 0,
    },
    Enrolment: {
        "task_id": _TASK,
        "client_id": _CLIENT,
        "token": "hrc_example-shown-once",
        "role": "member",
        "group": 0,
    },
    MemberPage: {"members": [_MEMBER], "next": None},
    RoundView: _ROUND,
    RoundPage: {"rounds": [_ROUND], "more": False},
    CohortView: {"round": 7, "clients": [_CLIENT]},
    UploadReceipt: {"round": 7, "client_id": _CLIENT, "bytes": 96548, "digest": _DIGEST, "signature": _SIGNATURE},
    SnapshotView: {"round": 6, "bytes": 948764, "digest": _DIGEST, "author": _CLIENT},
}


def describe(app: FastAPI) -> None:
    """Set the OpenAPI document of `app`: tags, examples, and problem documents for errors."""
    app.openapi = cache(lambda: make_document(app.routes))  # type: ignore[method-assign]


def document_text(app: FastAPI) -> str:
    """Return the document as JSON text, in the form in which it is committed: sorted keys, indented."""
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
