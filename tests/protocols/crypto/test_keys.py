"""Domain separation, and Ed25519 verification."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.domain import derive_key, derive_seed, digest, domain_tag
from protocols.crypto.keys import verifies
from protocols.errors import ParameterError

PART = st.one_of(st.text(max_size=6), st.integers(), st.binary(max_size=6))
CONTEXT = st.lists(PART, max_size=4)


@given(st.text(min_size=1, max_size=5), CONTEXT, st.text(min_size=1, max_size=5), CONTEXT)
def test_tags_are_injective(left: str, left_context: list, right: str, right_context: list) -> None:
    def typed(context: list) -> list:
        return [(type(part), part) for part in context]

    alike = (left, typed(left_context)) == (right, typed(right_context))
    assert (domain_tag(left, *left_context) == domain_tag(right, *right_context)) == alike


def test_a_tag_needs_a_purpose() -> None:
    with pytest.raises(ParameterError):
        domain_tag("", "task")


def test_keys_differ_by_purpose_and_context_and_have_the_length_asked_for() -> None:
    keys = {
        derive_key(b"s" * 32, purpose, *context, length=48)
        for purpose in ("mask", "seal")
        for context in ((), ("1",), (1,), (b"1",), ("1", ""))
    }
    assert len(keys) == 10
    assert {len(key) for key in keys} == {48}


def test_digest_is_sha256_of_the_tag() -> None:
    assert digest("p", 7, b"x") == hashlib.sha256(domain_tag("p", 7, b"x")).digest()
    assert derive_seed(b"seed", "p", "c") == digest("p", b"seed", "c")


# --- ed25519 verification: only the signed message under the signer's key, also when the key was used before ----------

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2))
PUBLIC, OTHER_PUBLIC = (key.public_key().public_bytes_raw() for key in (KEY, OTHER))
SIGNATURE = KEY.sign(b"message")


@pytest.mark.parametrize("_", range(2))
def test_only_the_message_under_its_key_verifies(_: int) -> None:
    assert verifies(PUBLIC, SIGNATURE, b"message")
    assert not verifies(PUBLIC, SIGNATURE, b"another")
    assert not verifies(OTHER_PUBLIC, SIGNATURE, b"message")
    assert not verifies(PUBLIC, OTHER.sign(b"message"), b"message")


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytes(32), b"\xff" * 32], ids=range(5))
@pytest.mark.parametrize("signature", [SIGNATURE, b"", bytes(64), b"\xff" * 64], ids=range(4))
def test_malformed_keys_and_signatures_are_refused_without_an_exception(key: bytes, signature: bytes) -> None:
    assert not verifies(key, signature, b"message")
    assert not verifies(PUBLIC, signature[:63], b"message")
