"""Content-Digest and Repr-Digest: what is written can be read, and nothing malformed is read as a digest."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.http_signature import format_digest, format_digests, parse_digest, parse_digests
from protocols.errors import CodecError

DIGEST = hashlib.sha256(b'{"hello": "world"}\n').digest()
FIELD = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
"""The example of RFC 9530, appendix D."""


def test_the_example_of_the_standard() -> None:
    assert format_digest(DIGEST) == FIELD
    assert parse_digest(FIELD) == DIGEST


@given(st.binary(min_size=32, max_size=32))
def test_fields_round_trip(digest: bytes) -> None:
    assert parse_digest(format_digest(digest)) == digest


@pytest.mark.parametrize(
    "value",
    [
        f"sha-512=:AAAA:, {FIELD}",
        f"{FIELD},sha-512=:AAAA:",
        f"  {FIELD}  ",
        f"{FIELD};parameter=1",
        f"{FIELD} ; parameter, md5=:AAAA:",
        f"{FIELD}, sha-256=:AAAA:",
    ],
)
def test_a_sha_256_is_found_among_other_members_and_parameters(value: str) -> None:
    assert parse_digest(value) == DIGEST


@pytest.mark.parametrize("value", ["", ",", "sha-512=:AAAA:", "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:", FIELD.upper()])
def test_other_algorithms_are_no_digest(value: str) -> None:
    assert parse_digest(value) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("sha-256", "between colons"),
        ("sha-256=", "between colons"),
        ("sha-256=:", "between colons"),
        ("sha-256=abc", "between colons"),
        (FIELD[:-1], "between colons"),
        (f"{FIELD}x", "between colons"),
        ("sha-256=:####:", "base64"),
        ("sha-256=:\xff\xff\xff\xff:", "base64"),
        ("sha-256=:AAAA=:", "base64"),
        ("sha-256=:AAA:", "base64"),
        (f"{FIELD[:-1]}=:", "base64"),
        ("sha-256=::", "32 bytes, not 0"),
        ("sha-256=:AAAA:", "32 bytes, not 3"),
        (f"sha-256=:{base64.b64encode(bytes(33)).decode()}:", "32 bytes, not 33"),
        (f"sha-256=:AAAA:, {FIELD}", "32 bytes, not 3"),
    ],
)
def test_malformed_fields_are_refused(value: str, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        parse_digest(value)


def test_digests_by_name_round_trip() -> None:
    digests = {"terms": DIGEST, "round": bytes(32)}
    assert parse_digests(format_digests(digests)) == digests
    many = format_digests({f"part-{number}": DIGEST for number in range(9)})
    assert len(parse_digests(many)) == 8
    with pytest.raises(CodecError, match="between colons"):
        parse_digests("terms")
