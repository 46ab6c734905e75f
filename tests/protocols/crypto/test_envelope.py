"""Sealed envelopes, snapshots and keyrings: they open only for the right party, and any change is detected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.codec import pack
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.domain import domain_tag
from protocols.crypto.envelope import (
    EnvelopeSender,
    enrolment_message,
    open_envelope,
    open_snapshot,
    seal_envelope,
    seal_snapshot,
    sealed_bytes,
)
from protocols.crypto.keys import STATE_KEY_BYTES, Keyring, decode_keyring, encode_keyring
from protocols.errors import CertificateError, CodecError, EnvelopeError, KeyringError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "envelope.json").read_text())


def mailbox() -> tuple[X25519PrivateKey, bytes]:
    key = X25519PrivateKey.generate()
    return key, key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


SENDER = EnvelopeSender(Ed25519PrivateKey.generate(), b"m" * 32, bytes(range(81)))


def anybody(*_: bytes) -> None:
    """A check that accepts every sender."""


def test_an_envelope_opens_for_its_recipient_and_task_alone_and_tells_its_sender() -> None:
    (key, public), (stranger, _) = mailbox(), mailbox()
    sealed, seen = seal_envelope(b"keys", public, "t_1", SENDER), []
    assert open_envelope(sealed, key, "t_1", lambda *sender: seen.append(sender)) == b"keys"
    assert seen == [(SENDER.signing_key.public_key().public_bytes_raw(), SENDER.mailbox_key, SENDER.certificate)]
    for who, task in ((stranger, "t_1"), (key, "t_2")):
        with pytest.raises(EnvelopeError, match="does not verify"):
            open_envelope(sealed, who, task, anybody)
    assert seal_envelope(b"keys", public, "t_1", SENDER) != sealed

    def refuse(*_: bytes) -> None:
        raise CertificateError("not the holder")

    with pytest.raises(CertificateError, match="not the holder"):
        open_envelope(sealed, key, "t_1", refuse)
    # another's signature under the sender's keys and certificate: noticed before the sender is looked at
    forger = EnvelopeSender(Ed25519PrivateKey.generate(), SENDER.mailbox_key, SENDER.certificate)
    with pytest.raises(EnvelopeError, match="does not verify"):
        open_envelope(sealed[:32] + seal_envelope(b"other", public, "t_1", forger)[32:], key, "t_1", refuse)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_every_changed_bit_is_noticed(data: st.DataObject) -> None:
    key, public = mailbox()
    sealed = bytearray(seal_envelope(b"keys of the task", public, "t_1", SENDER))
    place = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[place // 8] ^= 1 << place % 8
    with pytest.raises(EnvelopeError):
        open_envelope(bytes(sealed), key, "t_1", anybody)
    with pytest.raises((EnvelopeError, CodecError)):
        open_envelope(bytes(sealed)[: place // 8], key, "t_1", anybody)


def test_what_is_signed_and_does_not_open_is_refused() -> None:
    """The holder's own signature over a public key of small order."""
    key, public = mailbox()
    sealed = bytes(32) + bytes(12) + bytes(20)
    head = SENDER.signing_key.public_key().public_bytes_raw() + SENDER.mailbox_key + SENDER.certificate
    statement = domain_tag("signed keyring envelope", "t_1", public, head, sealed)
    with pytest.raises(EnvelopeError, match="does not open"):
        open_envelope(head + SENDER.signing_key.sign(statement) + sealed, key, "t_1", anybody)


def test_an_enrolment_message_cannot_be_cut_another_way() -> None:
    assert enrolment_message("ab", b"c", b"d") != enrolment_message("a", b"bc", b"d")
    groups = {enrolment_message("ab", b"c", b"d", group) for group in (None, 0, 1, 10)}
    renewed = {enrolment_message("ab", b"c", b"d", group, None, 1) for group in (None, 0, 1, 10)}
    assert len(groups | renewed) == 8
    certified = {enrolment_message("ab", b"c", b"d", group, b"x") for group in (None, 0, 1, 10)}
    assert len(groups | certified) == 8


@pytest.mark.parametrize("case", VECTORS["envelopes"])
def test_envelope_vectors(case: dict[str, str]) -> None:
    key, sealed = (
        X25519PrivateKey.from_private_bytes(bytes.fromhex(case["mailbox_secret"])),
        bytes.fromhex(case["envelope"]),
    )
    seen: list[bytes] = []
    if "error" in case:
        with pytest.raises(EnvelopeError) as caught:
            open_envelope(sealed, key, case["task"], anybody)
        assert type(caught.value).__name__ == case["error"]
    else:
        assert open_envelope(sealed, key, case["task"], lambda *sender: seen.extend(sender)).hex() == case["body"]
        assert seen[0].hex() == case["sender"]


@pytest.mark.parametrize("case", VECTORS["snapshots"])
def test_snapshot_vectors(case: dict[str, str | int]) -> None:
    sealed, key = bytes.fromhex(str(case["sealed"])), bytes.fromhex(str(case["state_key"]))
    if "error" in case:
        with pytest.raises(EnvelopeError):
            open_snapshot(sealed, key, str(case["task"]), int(case["round"]))
    else:
        state, chain = open_snapshot(sealed, key, str(case["task"]), int(case["round"]))
        assert (state.hex(), chain.encode().hex()) == (case["state"], case["chain"])


@given(state=st.binary(max_size=200))
@settings(max_examples=20, deadline=None)
def test_a_snapshot_opens_for_its_task_and_round_alone(state: bytes) -> None:
    chain = AggregateChain(b"b" * 32, b"d" * 32)
    sealed = seal_snapshot(state, chain, b"k" * 32, "t_1", 7)
    assert len(sealed) == sealed_bytes(len(state))
    assert open_snapshot(sealed, b"k" * 32, "t_1", 7) == (state, chain)
    for key, task, number in ((b"l" * 32, "t_1", 7), (b"k" * 32, "t_2", 7), (b"k" * 32, "t_1", 8)):
        with pytest.raises(EnvelopeError, match="not sealed by a member"):
            open_snapshot(sealed, key, task, number)


KEYRING = Keyring("ckks", bytes(range(32)), b"public", b"SECRET" * 9, bytes(STATE_KEY_BYTES))


def test_keyrings_are_equal_when_all_their_keys_are_and_show_none() -> None:
    assert repr(KEYRING) == str(KEYRING) == f"<Keyring ckks {KEYRING.fingerprint}>"
    assert len(bytes.fromhex(KEYRING.fingerprint)) == 16
    changes = {"state_key": b"t" * 32, "secret_key": b"x", "public_key": b"y", "parameter_id": b"z", "mechanism": "o"}
    others = [replace(KEYRING, **{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    again = decode_keyring(encode_keyring(KEYRING))
    assert again == KEYRING != encode_keyring(KEYRING)
    assert len({KEYRING, again, *others}) == len({one.fingerprint for one in (KEYRING, again, *others)}) == 6


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.binary(max_size=40)] * 3), st.binary(min_size=32, max_size=32))
def test_a_keyring_comes_back_from_its_bytes(keys: tuple[bytes, bytes, bytes], state_key: bytes) -> None:
    keyring = Keyring("paillier", *keys, state_key)
    assert decode_keyring(encode_keyring(keyring)) == keyring


def test_bytes_that_are_no_keyring_are_refused() -> None:
    good = encode_keyring(KEYRING)
    no_name = b"hushrec keyring 3\n" + pack(b"\xff", b"", b"", b"", bytes(32))
    old = b"hushrec keyring 2\n" + good[18:]
    for body, fault in ((b"", "version"), (old, "version"), (good[:-1], "bytes"), (good + b"\0", "trailing")):
        with pytest.raises(CodecError, match=fault):
            decode_keyring(body)
    with pytest.raises(CodecError, match="ASCII"):
        decode_keyring(no_name)
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring("ckks", b"", b"", b"", bytes(31))
