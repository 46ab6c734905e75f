"""Sealing: one message opens for its receiver, sender and context; neither X25519 nor ML-KEM alone opens it."""

from __future__ import annotations

import os

import pytest
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.crypto import sealing
from protocols.crypto.keys import derive_key, digest, domain_tag
from protocols.crypto.sealing import (
    ENCAPSULATED_BYTES,
    SEALED_OVERHEAD,
    SEALING_KEY_BYTES,
    SealingKey,
    check_sealing_key,
    key_name,
    seal,
)
from protocols.errors import CodecError, ParameterError
from tests.support.ml_kem import encapsulate, given_coins
from tests.support.quantum import SealingBreaker

SENDER = X25519PrivateKey.generate()
PUBLIC = SENDER.public_key().public_bytes_raw()


@given(plain=st.binary(max_size=200), context=st.lists(st.text(max_size=4) | st.integers(), max_size=3))
@settings(max_examples=30, deadline=None)
def test_a_message_opens_for_its_receiver_sender_purpose_and_context_alone(
    plain: bytes, context: list[str | int]
) -> None:
    own, other = SealingKey.generate(), SealingKey.generate()
    sealed = seal(SENDER, own.public, plain, "test", *context)
    assert len(sealed) == len(plain) + SEALED_OVERHEAD
    assert own.open(PUBLIC, sealed, "test", *context) == plain
    strange = X25519PrivateKey.generate().public_key().public_bytes_raw()
    for key, sender, purpose, parts in (
        (other, PUBLIC, "test", context),
        (own, strange, "test", context),
        (own, PUBLIC, "tests", context),
        (own, PUBLIC, "test", [*context, 0]),
    ):
        with pytest.raises(CodecError, match="does not open"):
            key.open(sender, sealed, purpose, *parts)


@given(place=st.integers(0, 8 * (SEALED_OVERHEAD + 5) - 1))
@settings(max_examples=60, deadline=None)
def test_every_changed_bit_and_every_cut_is_noticed(place: int) -> None:
    own = SealingKey(bytes(32))
    sealed = bytearray(seal(SENDER, own.public, b"plain", "test"))
    sealed[place // 8] ^= 1 << place % 8
    for body in (bytes(sealed), bytes(sealed)[: place // 8]):
        with pytest.raises(CodecError):
            own.open(PUBLIC, body, "test")


def test_the_same_message_is_sealed_anew_each_time() -> None:
    own = SealingKey.generate()
    assert seal(SENDER, own.public, b"plain", "test") != seal(SENDER, own.public, b"plain", "test")


def test_keys_that_nothing_can_be_sealed_to() -> None:
    good = SealingKey.generate().public
    check_sealing_key(good)
    for bad, why in (
        (good[:1184] + bytes(32), "low order"),
        (b"\xff\xff" + good[2:], "not reduced"),
        (good[:-1], "1216 bytes"),
        (good + b"\0", "1216 bytes"),
        (b"", "1216 bytes"),
    ):
        for refuse in (check_sealing_key, lambda key: seal(SENDER, key, b"plain", "test")):
            with pytest.raises(CodecError, match=why):
                refuse(bad)
    for seed in (b"", bytes(31), bytes(33)):
        with pytest.raises(ParameterError, match="32 bytes"):
            SealingKey(seed)


def test_a_key_follows_from_its_seed_as_in_the_draft_and_shows_nothing() -> None:
    """The first test vector of draft-connolly-cfrg-xwing-kem."""
    key = SealingKey(bytes.fromhex("7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26"))
    assert key.public.hex().startswith("e2236b35a8c24b39b10aa1323a96a919a2ced88400633a7b")
    assert len(key.public) == SEALING_KEY_BYTES
    assert key.name == key_name(key.public) == digest("sealing key", key.public)
    assert key.seed.hex() not in repr(key)


def test_a_library_without_ml_kem_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking:
        @staticmethod
        def from_seed_bytes(_: bytes) -> None:
            raise UnsupportedAlgorithm("ML-KEM-768 is not supported")

    monkeypatch.setattr(sealing, "MLKEM768PrivateKey", Lacking)
    with pytest.raises(ParameterError, match="lacks ML-KEM-768: install its wheel"):
        SealingKey.generate()


def test_the_library_encapsulates_as_fips_203_says() -> None:
    """The encapsulation of the vectors, written from the standard, decapsulates with the library, and the other way."""
    for number in range(10):
        own, coins = SealingKey(digest("test", number)), os.urandom(32)
        secret, body = encapsulate(own.public[:1184], coins)
        assert SealingBreaker(own).decapsulated(body) == secret
    with given_coins(lambda _: coins):
        assert seal(SENDER, own.public, b"", "test")[:ENCAPSULATED_BYTES] == body
    secret, body = MLKEM768PublicKey.from_public_bytes(own.public[:1184]).encapsulate()
    assert SealingBreaker(own).decapsulated(body) == secret


@pytest.mark.parametrize("broken", ["X25519", "ML-KEM-768"])
def test_attack_one_of_the_two_secrets_is_known(broken: str) -> None:
    """With both, the attacker opens the message, so it computes what it should; with one and any guess, it does not."""
    own = SealingKey.generate()
    sealed = seal(SENDER, own.public, b"plain", "test", 7)
    attacker = SealingBreaker(own)
    encapsulated, body = sealed[:ENCAPSULATED_BYTES], sealed[ENCAPSULATED_BYTES:]
    classical, lattice = attacker.agreed(PUBLIC), attacker.decapsulated(encapsulated)
    transcript = digest("sealed message", PUBLIC, own.name, encapsulated)

    def attempt(lattice: bytes, classical: bytes) -> bytes:
        key = derive_key(lattice + classical, "test", transcript, 7)
        return AESGCM(key).decrypt(bytes(12), body, domain_tag("test", transcript, 7))

    assert attempt(lattice, classical) == b"plain"
    ephemeral = X25519PrivateKey.generate()
    guesses = (
        bytes(32),
        os.urandom(32),
        ephemeral.exchange(X25519PublicKey.from_public_bytes(PUBLIC)),
        lattice,
        classical,
    )
    for guess in guesses:
        known = (guess, classical) if broken == "X25519" else (lattice, guess)
        if known != (lattice, classical):
            with pytest.raises(InvalidTag):
                attempt(*known)
