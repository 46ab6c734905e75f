from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical_json import canonical_json
from protocols.errors import ParameterError


@pytest.mark.parametrize(
    ("pattern", "text"),
    [  # RFC 8785, appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_of_the_rfc(pattern: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(pattern))
    assert canonical_json(number).decode() == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_exactly(number: float) -> None:
    assert float(canonical_json(number)) == number


def test_names_are_ordered_by_code_units_of_utf_16() -> None:
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\u00f6"]  # RFC 8785, section 3.2.3
    ordered = json.loads(canonical_json(dict.fromkeys(names)))
    assert list(ordered) == ["\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, -(2**53), b"bytes", {1: 2}, "\udc00", {"a": {1, 2}}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(ParameterError):
        canonical_json([value])
