"""Ed25519 verification: only the signed message under the signer's key, also when the key was used before."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.keys import verifies

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
