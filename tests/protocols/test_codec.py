from __future__ import annotations

import itertools
import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.codec import Reader, b64decode, b64encode, exact, pack
from protocols.errors import CodecError


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_reader_undoes_pack(chunks: list[bytes]) -> None:
    reader = Reader(pack(*chunks))
    assert [reader.chunk(40) for _ in chunks] == chunks
    reader.finish()


@given(st.lists(st.binary(max_size=8), max_size=4), st.lists(st.binary(max_size=8), max_size=4))
def test_pack_is_injective(left: list[bytes], right: list[bytes]) -> None:
    assert (pack(*left) == pack(*right)) == (left == right)


@given(st.binary(max_size=60))
def test_base64_round_trip(body: bytes) -> None:
    text = b64encode(body)
    assert b64decode(text) == body
    assert b64decode(text, len(body)) == body
    assert not set(text) & set("+/=")


@given(st.text(max_size=12))
def test_base64_has_one_form_only(text: str) -> None:
    try:
        body = b64decode(text)
    except CodecError:
        return
    assert b64encode(body) == text


@pytest.mark.parametrize("count", [1, 2])
def test_base64_of_a_few_bytes_has_one_last_character_each(count: int) -> None:
    alphabet = string.ascii_letters + string.digits + "-_"
    written = {b64encode(bytes(count - 1) + bytes([last])) for last in range(256)}
    accepted = set()
    for end in itertools.product(alphabet, repeat=2):
        text = "A" * (count - 1) + "".join(end)
        with suppress(CodecError):
            if b64decode(text).startswith(bytes(count - 1)):
                accepted.add(text)
    assert accepted == written


@pytest.mark.parametrize("text", ["QQ==", "QR", "Q", "+/8", "Q Q", "QQ\n", "é"])
def test_base64_refuses_other_forms(text: str) -> None:
    with pytest.raises(CodecError):
        b64decode(text)


def test_base64_refuses_another_length() -> None:
    with pytest.raises(CodecError, match="expected 2 bytes, got 1"):
        b64decode("QQ", 2)


def test_exact_length() -> None:
    assert bytes(exact(memoryview(b"abcd").cast("H"), 4, "it")) == b"abcd"
    with pytest.raises(CodecError, match="a key must be exactly 3 bytes, got 4"):
        exact(b"abcd", 3, "a key")


def test_reader_refuses_what_does_not_fit() -> None:
    with pytest.raises(CodecError, match="expected 3 more bytes, 2 are left"):
        Reader(b"ab").fixed(3)
    with pytest.raises(CodecError, match="over the limit of 4"):
        Reader(pack(b"abcde")).chunk(4)
    with pytest.raises(CodecError):
        Reader(b"\xff" * 8).chunk(1 << 62)
    with pytest.raises(CodecError, match="1 trailing bytes"):
        Reader(b"a").finish()
