"""The canonical form of JSON values, by RFC 8785 (JSON Canonicalization Scheme): equal values have equal bytes.

Implementations in other languages agree on it, numbers included: 600 and 600.0 are the same number, so both are `600`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from protocols.errors import ParameterError

__all__ = ["canonical_json"]

_LARGEST_EXACT: Final = 2**53 - 1
_PLAIN_ABOVE: Final = 21
_PLAIN_BELOW: Final = -7


def canonical_json(value: Any) -> bytes:
    """Return the canonical form of a JSON value, UTF-8.

    value: None, booleans, numbers, strings, and lists and mappings of these, with strings as keys. Raises
    `ParameterError` for anything else: a whole number beyond 2^53 - 1, which other languages round, a number that is
    not finite, or a string with a lone surrogate.
    """
    try:
        return _text(value).encode()
    except UnicodeEncodeError:
        raise ParameterError("a string has no canonical form: it holds half of a surrogate pair") from None


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        # RFC 8785, section 3.2.3: names are ordered by their UTF-16 code units
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_text(name)}:{_text(value[name])}" for name in names) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ",".join(map(_text, value)) + "]"
    raise ParameterError(f"a {type(value).__name__} has no canonical JSON form")


def _number(value: int | float) -> str:
    """Return a number as ECMAScript's Number::toString writes it: the shortest digits that read back exactly."""
    if isinstance(value, int):
        if abs(value) > _LARGEST_EXACT:
            raise ParameterError("a whole number beyond 2^53 - 1 has no canonical JSON form: write it as a string")
        return str(value)
    if not isfinite(value):
        raise ParameterError("a number that is not finite has no JSON form")
    if not value:
        return "0"
    sign, digit_list, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    digits, count = "".join(map(str, digit_list)), len(digit_list)
    point = int(exponent) + count  # the decimal point is behind so many digits
    if count <= point <= _PLAIN_ABOVE:
        text = digits + "0" * (point - count)
    elif 0 < point <= _PLAIN_ABOVE:
        text = f"{digits[:point]}.{digits[point:]}"
    elif _PLAIN_BELOW < point - 1 < 0:
        text = "0." + "0" * -point + digits
    else:
        power = point - 1
        mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
        text = f"{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"
    return f"-{text}" if value < 0 else text
