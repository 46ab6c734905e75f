"""Parts of the OpenAPI document that the routes' types do not say: schemas by recipe and mechanism, and signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from aggregator_service.problems import responses
from protocols.messages.plans import PLANS, OtherPlanView
from protocols.recipes.registry import recipe_entry, recipes
from protocols.sums.masked.parameters import MIN_CLIENTS as FEWEST_MASKED
from protocols.sums.oneshot.parameters import MIN_CLIENTS as FEWEST_ONESHOT
from protocols.sums.registry import mechanisms, parameters_of

__all__ = ["add_schemas"]

_REF: Final = "#/components/schemas/{model}"
_FEWEST: Final = {"masked": FEWEST_MASKED, "oneshot": FEWEST_ONESHOT}
"""Mechanism -> smallest `min_clients` of a task; other mechanisms have the schema's own minimum."""
_SIGNATURE: Final = {
    "signatureInput": (
        "Signature-Input",
        'What a client\'s signature covers (RFC 9421): components, `created`, `keyid` and `tag="hushrec"`, in the '
        "form of docs/wire/requests.md.",
    ),
    "signature": ("Signature", "A client's Ed25519 signature of the request (RFC 9421)."),
}


def add_schemas(document: dict[str, Any]) -> None:
    """Complete an OpenAPI document in place."""
    schemas = document["components"]["schemas"]
    schemas["ResolvedRecipe"] = _choices(schemas, {name: recipe_entry(name).parameters for name in recipes()})
    schemas["ResolvedMechanism"] = _choices(schemas, {name: parameters_of(name) for name in mechanisms()})
    schemas["SumPlan"] = _plans(schemas)
    resolved = schemas["ResolvedTask"]["properties"]
    resolved["recipe"], resolved["mechanism"] = _ref("ResolvedRecipe"), _ref("ResolvedMechanism")
    del schemas["ResolvedChoice"]
    for message in ("SumView", "TaskView"):
        schemas[message]["properties"]["plan"] = _ref("SumPlan")
    _state_minima(schemas["TaskRequest"])
    _add_signatures(document)
    _add_wrong_methods(document)


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


def _state_minima(request: dict[str, Any]) -> None:
    """Say how many clients each mechanism needs at least; its parameters may demand more."""
    request["allOf"] = [
        {
            "if": {"properties": {"mechanism": {"properties": {"name": {"const": name}}, "required": ["name"]}}},
            "then": {
                "properties": {
                    "schedule": {"properties": {"min_clients": {"minimum": least}, "cohort_size": {"minimum": least}}}
                }
            },
        }
        for name, least in sorted(_FEWEST.items())
    ]


def _add_signatures(document: dict[str, Any]) -> None:
    """Add the two headers of a client's signature as security schemes: a client sends them beside its token."""
    for name, (header, text) in _SIGNATURE.items():
        scheme = {"type": "apiKey", "in": "header", "name": header, "description": text}
        document["components"]["securitySchemes"][name] = scheme
    for operation in _operations(document):
        if any("bearer" in one for one in operation.get("security", [])):
            operation["security"] = [{"bearer": []}, {"bearer": [], **dict.fromkeys(_SIGNATURE, [])}]


def _add_wrong_methods(document: dict[str, Any]) -> None:
    """Say of every path how it answers methods that it does not have."""
    answer = responses("method-not-allowed")[405]
    answer["headers"] = {"Allow": {"description": "Every method of the path.", "schema": {"type": "string"}}}
    for operation in _operations(document):
        operation["responses"]["405"] = answer


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]
