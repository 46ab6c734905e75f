from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.codec import pack
from protocols.crypto.keyring import STATE_KEY_BYTES, Keyring, decode_keyring, encode_keyring
from protocols.errors import CodecError, KeyringError

KEYRING = Keyring("ckks", bytes(range(32)), b"public", b"secret", bytes(STATE_KEY_BYTES))
OTHER = replace(KEYRING, secret_key=b"another")


@given(st.tuples(*[st.binary(max_size=40)] * 3), st.binary(min_size=32, max_size=32))
def test_a_keyring_comes_back_from_its_bytes(keys: tuple[bytes, bytes, bytes], state_key: bytes) -> None:
    keyring = Keyring("paillier", *keys, state_key)
    assert decode_keyring(encode_keyring(keyring)) == keyring


def test_keyrings_are_equal_when_all_their_keys_are() -> None:
    assert decode_keyring(encode_keyring(KEYRING)) == KEYRING
    assert OTHER != KEYRING
    assert encode_keyring(KEYRING) != KEYRING


def test_members_with_the_same_keys_see_the_same_fingerprint() -> None:
    assert len(KEYRING.fingerprint) == 32
    assert len({KEYRING, decode_keyring(encode_keyring(KEYRING)), OTHER}) == 2
    assert replace(KEYRING, state_key=b"\1" * STATE_KEY_BYTES).fingerprint != KEYRING.fingerprint


def test_a_keyring_shows_no_key() -> None:
    assert repr(KEYRING) == f"<Keyring ckks {KEYRING.fingerprint}>"


def test_a_state_key_of_another_length_is_refused() -> None:
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring("ckks", b"", b"", b"", bytes(31))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "version"),
        (b"hushrec keyring 2\n" + encode_keyring(KEYRING)[18:], "version"),
        (encode_keyring(KEYRING)[:-1], "bytes"),
        (encode_keyring(KEYRING) + b"\0", "trailing"),
        (b"hushrec keyring 3\n" + pack(b"\xff", b"", b"", b"", bytes(32)), "ASCII"),
    ],
    ids=["empty", "another version", "too short", "too long", "mechanism"],
)
def test_bytes_that_are_no_keyring_are_refused(body: bytes, fault: str) -> None:
    with pytest.raises(CodecError, match=fault):
        decode_keyring(body)
