from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.codec import pack
from protocols.crypto.keyring import STATE_KEY_BYTES, Keyring, decode_keyring, encode_keyring
from protocols.errors import CodecError, KeyringError

HOLDER = Keyring("ckks", bytes(range(32)), b"public", b"secret", bytes(STATE_KEY_BYTES))
MEMBER = HOLDER.without_secret_key()


@given(st.tuples(*[st.binary(max_size=40)] * 3), st.binary(min_size=32, max_size=32))
def test_a_keyring_comes_back_from_its_bytes(keys: tuple[bytes, bytes, bytes], state_key: bytes) -> None:
    keyring = Keyring("paillier", *keys, state_key)
    assert decode_keyring(encode_keyring(keyring)) == keyring


def test_keyrings_are_equal_when_all_their_keys_are() -> None:
    assert decode_keyring(encode_keyring(HOLDER)) == HOLDER
    assert MEMBER != HOLDER
    assert encode_keyring(HOLDER) != HOLDER


def test_a_member_and_the_holder_see_the_same_fingerprint() -> None:
    assert MEMBER.fingerprint == HOLDER.fingerprint
    assert len(HOLDER.fingerprint) == 32
    assert len({HOLDER, decode_keyring(encode_keyring(HOLDER)), MEMBER}) == 2
    other = Keyring("ckks", HOLDER.parameter_id, b"public", b"secret", b"\1" * STATE_KEY_BYTES)
    assert other.fingerprint != HOLDER.fingerprint


def test_a_keyring_shows_no_key() -> None:
    assert repr(HOLDER) == f"<Keyring ckks {HOLDER.fingerprint} holder>"
    assert repr(MEMBER) == f"<Keyring ckks {HOLDER.fingerprint} public>"


def test_a_state_key_of_another_length_is_refused() -> None:
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring("ckks", b"", b"", b"", bytes(31))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "version"),
        (b"hushrec keyring 1\n" + encode_keyring(HOLDER)[18:], "version"),
        (encode_keyring(HOLDER)[:-1], "bytes"),
        (encode_keyring(HOLDER) + b"\0", "trailing"),
        (b"hushrec keyring 2\n" + pack(b"\xff", b"", b"", b"", bytes(32), b""), "ASCII"),
    ],
    ids=["empty", "another version", "too short", "too long", "mechanism"],
)
def test_bytes_that_are_no_keyring_are_refused(body: bytes, fault: str) -> None:
    with pytest.raises(CodecError, match=fault):
        decode_keyring(body)


def test_a_digest_of_another_length_is_refused() -> None:
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring("ckks", b"", b"", b"", bytes(STATE_KEY_BYTES), b"short")


def test_a_round_adds_its_keys_to_the_tasks_keyring() -> None:
    task = HOLDER.without_keys()
    assert (task.public_key, task.secret_key, task.secret_digest) == (b"", b"", b"")
    assert task.state_key == HOLDER.state_key
    holder, member = task.for_round(b"new public", b"new secret"), task.for_round(b"new public")
    assert (holder.public_key, holder.secret_key) == (b"new public", b"new secret")
    assert (member.public_key, member.secret_key) == (b"new public", b"")
    assert len({task.fingerprint, holder.fingerprint, HOLDER.fingerprint}) == 3
