"""Sealed envelopes, membership proofs and snapshots: they open only for the right party, and any change is detected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.envelope import (
    check_membership,
    enrolment_message,
    membership_proof,
    open_envelope,
    open_snapshot,
    seal_envelope,
    seal_snapshot,
    sealed_bytes,
)
from protocols.crypto.keyring import Keyring, decode_keyring, encode_keyring
from protocols.errors import CodecError, EnvelopeError, KeyringError, ParameterError

CODE, OTHER_CODE = bytes(range(32)), bytes(range(1, 33))
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "envelope.json").read_text())


def mailbox() -> tuple[X25519PrivateKey, bytes]:
    key = X25519PrivateKey.generate()
    return key, key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def keyring(**changes: object) -> Keyring:
    parts = {"mechanism": "ckks", "parameter_id": b"p" * 32, "public_key": b"pub", "secret_key": b"sec"}
    return Keyring(**{**parts, "state_key": b"s" * 32, **changes})  # type: ignore[arg-type]


# --- envelopes ----------------------------------------------------------------------------------------------------


@given(body=st.binary(max_size=300))
def test_an_envelope_opens_for_its_recipient(body: bytes) -> None:
    key, public = mailbox()
    assert open_envelope(seal_envelope(body, public, CODE, "t_1"), key, CODE, "t_1") == body


def test_an_envelope_opens_for_nobody_else() -> None:
    key, public = mailbox()
    stranger, _ = mailbox()
    sealed = seal_envelope(b"keys", public, CODE, "t_1")
    for who, code, task in ((stranger, CODE, "t_1"), (key, OTHER_CODE, "t_1"), (key, CODE, "t_2")):
        with pytest.raises(EnvelopeError, match="cannot open"):
            open_envelope(sealed, who, code, task)


@given(data=st.data())
def test_every_changed_bit_is_noticed(data: st.DataObject) -> None:
    key, public = mailbox()
    sealed = bytearray(seal_envelope(b"keys of the task", public, CODE, "t_1"))
    place = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[place // 8] ^= 1 << place % 8
    with pytest.raises(EnvelopeError):
        open_envelope(bytes(sealed), key, CODE, "t_1")


def test_even_the_ignored_bit_of_the_public_key_is_bound() -> None:
    key, public = mailbox()
    sealed = bytearray(seal_envelope(b"keys", public, CODE, "t_1"))
    sealed[31] ^= 0x80
    with pytest.raises(EnvelopeError):
        open_envelope(bytes(sealed), key, CODE, "t_1")


@pytest.mark.parametrize("length", [0, 31, 43, 44, 59])
def test_what_is_too_short_is_refused(length: int) -> None:
    key, _ = mailbox()
    with pytest.raises((EnvelopeError, CodecError)):
        open_envelope(bytes(length), key, CODE, "t_1")


def test_a_public_key_of_small_order_is_refused() -> None:
    key, _ = mailbox()
    with pytest.raises(EnvelopeError):
        open_envelope(bytes(32) + bytes(12) + bytes(20), key, CODE, "t_1")


def test_two_envelopes_of_the_same_keys_differ() -> None:
    _, public = mailbox()
    assert seal_envelope(b"keys", public, CODE, "t") != seal_envelope(b"keys", public, CODE, "t")


# --- membership ---------------------------------------------------------------------------------------------------


def test_only_the_membership_secret_makes_a_proof() -> None:
    proof = membership_proof(CODE, b"i" * 32, b"m" * 32)
    assert check_membership(CODE, b"i" * 32, b"m" * 32, proof)
    assert not check_membership(OTHER_CODE, b"i" * 32, b"m" * 32, proof)
    assert not check_membership(CODE, b"j" * 32, b"m" * 32, proof)
    assert not check_membership(CODE, b"i" * 32, b"n" * 32, proof)
    assert not check_membership(CODE, b"i" * 32, b"m" * 32, None)
    with pytest.raises(ParameterError, match="32 bytes"):
        membership_proof(CODE[:-1], b"i" * 32, b"m" * 32)


def test_an_enrolment_message_cannot_be_cut_another_way() -> None:
    assert enrolment_message("ab", b"c", b"d") != enrolment_message("a", b"bc", b"d")
    groups = {enrolment_message("ab", b"c", b"d", group) for group in (None, 0, 1, 10)}
    assert len(groups) == 4


@pytest.mark.parametrize("case", VECTORS["membership"])
def test_membership_vectors(case: dict[str, str]) -> None:
    code, identity, box = (bytes.fromhex(case[name]) for name in ("group_code", "identity_key", "mailbox_key"))
    assert check_membership(code, identity, box, bytes.fromhex(case["proof"])) is case["valid"]


@pytest.mark.parametrize("case", VECTORS["envelopes"])
def test_envelope_vectors(case: dict[str, str]) -> None:
    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(case["mailbox_secret"]))
    sealed, code = bytes.fromhex(case["envelope"]), bytes.fromhex(case["group_code"])
    if "error" in case:
        with pytest.raises(EnvelopeError) as caught:
            open_envelope(sealed, key, code, case["task"])
        assert type(caught.value).__name__ == case["error"]
    else:
        assert open_envelope(sealed, key, code, case["task"]).hex() == case["body"]


@pytest.mark.parametrize("case", VECTORS["snapshots"])
def test_snapshot_vectors(case: dict[str, str | int]) -> None:
    sealed, key = bytes.fromhex(str(case["sealed"])), bytes.fromhex(str(case["state_key"]))
    if "error" in case:
        with pytest.raises(EnvelopeError):
            open_snapshot(sealed, key, str(case["task"]), int(case["round"]))
    else:
        assert open_snapshot(sealed, key, str(case["task"]), int(case["round"])).hex() == case["state"]


# --- snapshots ----------------------------------------------------------------------------------------------------


@given(state=st.binary(max_size=200))
def test_a_snapshot_opens_for_its_task_and_round_alone(state: bytes) -> None:
    sealed = seal_snapshot(state, b"k" * 32, "t_1", 7)
    assert len(sealed) == sealed_bytes(len(state))
    assert open_snapshot(sealed, b"k" * 32, "t_1", 7) == state
    for key, task, number in ((b"l" * 32, "t_1", 7), (b"k" * 32, "t_2", 7), (b"k" * 32, "t_1", 8)):
        with pytest.raises(EnvelopeError, match="not sealed by a member"):
            open_snapshot(sealed, key, task, number)


# --- keyrings -----------------------------------------------------------------------------------------------------


def test_a_keyring_round_trip_and_its_failing_cases() -> None:
    body = encode_keyring(keyring())
    assert decode_keyring(body) == keyring()
    for bad in (b"", body[:-1], body + b"\0", b"x" + body, body.replace(b"keyring 1", b"keyring 2")):
        with pytest.raises(CodecError):
            decode_keyring(bad)
    with pytest.raises(CodecError):
        decode_keyring(encode_keyring(keyring(mechanism="ckks")).replace(b"ckks", b"\xff\xfeks"))
    with pytest.raises(KeyringError, match="32 bytes"):
        keyring(state_key=b"short")


def test_a_keyring_shows_no_key() -> None:
    whole, public = keyring(secret_key=b"SECRET" * 9), keyring(secret_key=b"SECRET" * 9).without_secret_key()
    assert "SECRET" not in repr(whole) + str(whole) + f"{whole!r}"
    assert whole.fingerprint == public.fingerprint
    assert public.secret_key == b""
    assert "holder" in repr(whole)
    assert whole != public
    assert keyring(state_key=b"t" * 32).fingerprint != whole.fingerprint


@pytest.mark.parametrize("low", [bytes(32), b"\x01" + bytes(31)])
def test_a_mailbox_key_that_nothing_can_be_sealed_to_proves_nothing(low: bytes) -> None:
    """A mailbox key of low order with a valid membership proof is rejected, so that it cannot block the key holder."""
    proof = membership_proof(CODE, b"i" * 32, low)
    assert not check_membership(CODE, b"i" * 32, low, proof)
