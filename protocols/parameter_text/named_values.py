"""Parameters on the command line: `name=value` pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from protocols.errors import ParameterError

__all__ = ["named_values"]


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
