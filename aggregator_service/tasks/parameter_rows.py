"""The parameters that an operator chooses from, as rows for people: name, type, default, bounds and meaning."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from protocols.advice import DEGREES_SPLIT_BY_ITSELF, RECOMMENDED, SPLIT_BY_ITSELF, is_split_by_itself
from protocols.messages import Schedule
from protocols.recipes.registry import recipe_entry
from protocols.sums.groups import GroupedParameters
from protocols.sums.registry import parameters_of

_WIDTH: Final = 100
_INDENT: Final = " " * 6
_WORDS: Final = {int: "whole number", float: "number", str: "text", bool: "true or false", bytes: "base64url"}
_SIGNS: Final = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
_LENGTHS: Final = (("min_length", "at least"), ("max_length", "at most"))


@dataclass(frozen=True)
class ParameterRow:
    """One parameter."""

    name: str
    type: str
    default: str
    """As it is written on the command line, "required" if there is none."""
    bounds: str
    """In words, "" for none."""
    meaning: str
    declared_in: str
    """Module of the class that declares the parameter in its present form."""
    recommended: str | None = None
    """What a new task gets where its maker names no value, None if that is the default."""


def parameter_rows(model: type[BaseModel], recommended: Mapping[str, Any] | None = None) -> list[ParameterRow]:
    """Return a row for each field of `model`, in its order. recommended: values that differ from the defaults."""
    values = recommended or {}
    return [
        ParameterRow(
            name=name,
            type=_type(field.annotation),
            default="required" if field.is_required() else _value(field.get_default(call_default_factory=True)),
            bounds=_bounds(field),
            meaning=field.description or "",
            declared_in=_declaring_module(model, name),
            recommended=_value(values[name]) if name in values else None,
        )
        for name, field in model.model_fields.items()
    ]


def as_text(rows: Iterable[ParameterRow]) -> str:
    """Return the rows as plain text for a terminal: a line of facts and an indented meaning for each."""
    lines: list[str] = []
    for row in rows:
        default = row.default if row.default == "required" else f"default {row.default}"
        recommended = f"new tasks get {row.recommended}" if row.recommended is not None else ""
        facts = "; ".join(fact for fact in (row.type, row.bounds, default, recommended) if fact)
        lines += [
            f"  {row.name}: {facts}",
            *textwrap.wrap(row.meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
        ]
    return "\n".join(lines)


def parameter_help(recipe: str, mechanism: str) -> str:
    """Return the rows of the page of parameters for this choice as text; `ParameterError` for an unknown name."""
    own = recipe_entry(recipe).parameters
    sums = mechanism_rows(mechanism)
    parts = [
        f"Recipe {recipe}, -r name=value:",
        as_text(parameter_rows(own, RECOMMENDED.get(recipe))),
        f"Mechanism {mechanism}, -m name=value:",
        as_text(sums) if sums else "  no parameters",
        "Schedule, -s name=value:",
        as_text(parameter_rows(Schedule)),
    ]
    return "\n\n".join(f"{parts[i]}\n{parts[i + 1]}" for i in range(0, len(parts), 2))


def mechanism_rows(mechanism: str) -> list[ParameterRow]:
    """Return the rows of a mechanism's parameters; none where it has no parameters."""
    model = parameters_of(mechanism)
    if model is None:
        return []
    if not issubclass(model, GroupedParameters):
        return parameter_rows(model)
    split = SPLIT_BY_ITSELF if is_split_by_itself(mechanism) else DEGREES_SPLIT_BY_ITSELF
    return parameter_rows(model, {"groups": split})


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else _type(part) for part in parts)
    if origin is Literal:
        return ", ".join(str(part) for part in parts)
    if origin is Annotated:
        return _type(parts[0])
    if origin is dict:
        return f"object, name to {_type(parts[1])}"
    if origin is tuple:
        return f"list of {_type(parts[0])}s"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"object ({', '.join(annotation.model_fields)})"
    return _WORDS.get(annotation, str(annotation))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _bounds(field: FieldInfo) -> str:
    found = {sign: getattr(rule, sign) for rule in field.metadata for sign, _ in _SIGNS if hasattr(rule, sign)}
    words = [f"{word} {_number(found[sign])}" for sign, word in _SIGNS if sign in found]
    for rule in field.metadata:
        words += [f"{word} {getattr(rule, sign)} entries" for sign, word in _LENGTHS if hasattr(rule, sign)]
    return ", ".join(words)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _declaring_module(model: type[BaseModel], name: str) -> str:
    return next(kind.__module__ for kind in model.__mro__ if name in kind.__dict__.get("__annotations__", {}))
