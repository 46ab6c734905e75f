"""Parameters as people type them: `name=value`, one a pair."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from protocols.errors import ParameterError

__all__ = ["named_values"]


def named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` pairs; a value is read as JSON where it is, and as text otherwise.

    Raises `ParameterError` for a pair without a name or a sign of equality, and for a name given twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (name and separator):
            raise ParameterError(f"a parameter has the form name=value, not {pair!r}")
        if name in found:
            raise ParameterError(f"the parameter {name!r} is given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
