"""Parameters as text: `name=value` pairs, and a pydantic validation error as one line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from re import fullmatch
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocols.errors import ParameterError

_WHOLE: Final = "must be a whole number"
_NUMBER: Final = "must be a number"
_TRUTH: Final = "must be true or false"
_LIST: Final = "must be a list"
_OBJECT: Final = "must be an object with names and values"
_TEXTS: Final = {
    "bool_parsing": _TRUTH,
    "bool_type": _TRUTH,
    "dict_type": _OBJECT,
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_type": _WHOLE,
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": _LIST,
    "literal_error": "must be {expected}",
    "missing": "is required",
    "model_attributes_type": _OBJECT,
    "model_type": _OBJECT,
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a text",
    "too_long": "must have {max_length} or fewer entries",
    "too_short": "must have {min_length} or more entries",
    "tuple_type": _LIST,
}


def fault_text(fault: ErrorDetails) -> str:
    """Return the text of one error, without its location and without the input's value.

    The text of a validator of ours is returned as it is, and pydantic's own for a rule that has no text here.
    """
    text = _TEXTS.get(fault["type"])
    return fault["msg"].removeprefix("Value error, ") if text is None else text.format_map(fault.get("ctx", {}))


def cause_text(error: Exception) -> str | None:
    """Return the text of the validation error that caused `error`, without its location; None if none did."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return None
    return fault_text(cause.errors(include_url=False, include_input=False)[0])


def first_fault(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Return the first error as one line without the input's value; unknown names come before other errors.

    known: the valid names, which the text lists after an unknown name.
    """
    faults = error.errors(include_url=False, include_input=False)
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = "".join(f"{_printable(part)}: " for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = ", ".join(known)
        return f"{where}unknown name" + (f"; choose from: {names}" if names else "")
    return where + fault_text(first)


Model = TypeVar("Model", bound=BaseModel)


def validated(
    whose: str, model: type[Model], given: Mapping[str, Any], context: Mapping[str, Any] | None = None
) -> Model:
    """Return the `given` parameters as a `model`; `ParameterError` names `whose` they are, and the first fault."""
    try:
        return model.model_validate(dict(given), context=context)
    except ValidationError as error:
        raise ParameterError(f"{whose}: {first_fault(error, model.model_fields)}") from None


def _printable(part: int | str) -> str:
    """Return a part of a location if it is a plain name or number; other text from the request is not repeated."""
    return str(part) if fullmatch(r"[A-Za-z0-9_]{1,40}", str(part)) else "(invalid name)"


def named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the values of `name=value` pairs by name; a value is parsed as JSON if it is valid JSON, else it is text.

    Raises `ParameterError` for a pair without a name or without "=", and for a name given twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (name and separator):
            raise ParameterError(f"a parameter must have the form name=value, got {pair!r}")
        if name in found:
            raise ParameterError(f"the parameter {name!r} is given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
