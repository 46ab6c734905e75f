"""Domain separation, Ed25519, random numbers; envelopes, snapshots and keyrings, in which every change is detected."""

from __future__ import annotations

import os
from dataclasses import replace
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.codec import pack
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.envelope import (
    EnvelopeSender,
    enrolment_message,
    open_envelope,
    open_snapshot,
    seal_envelope,
    seal_snapshot,
    sealed_bytes,
)
from protocols.crypto.keys import (
    STATE_KEY_BYTES,
    Keyring,
    decode_keyring,
    digest,
    domain_tag,
    encode_keyring,
    repeatable_place,
    verifies,
)
from protocols.crypto.random import cumulative_table, expanded, normals, symmetric_samples, uniforms, words
from protocols.crypto.sealing import SEALED_OVERHEAD, SealingKey, check_agreement_key
from protocols.errors import CertificateError, CodecError, EnvelopeError, KeyringError

CONTEXT = st.lists(st.one_of(st.text(max_size=6), st.integers(), st.binary(max_size=6)), max_size=4)


@given(st.text(min_size=1, max_size=5), CONTEXT, st.text(min_size=1, max_size=5), CONTEXT)
@settings(max_examples=50, deadline=None)
def test_tags_are_injective(left: str, left_context: list, right: str, right_context: list) -> None:
    def typed(context: list) -> list:
        return [(type(part), part) for part in context]

    alike = (left, typed(left_context)) == (right, typed(right_context))
    assert (domain_tag(left, *left_context) == domain_tag(right, *right_context)) == alike


KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2))
PUBLIC, OTHER_PUBLIC = (key.public_key().public_bytes_raw() for key in (KEY, OTHER))
SIGNATURE = KEY.sign(b"message")


def test_only_the_message_under_its_key_verifies() -> None:
    """Also when the key was used before. Malformed keys and signatures raise nothing."""
    for _ in range(2):
        assert verifies(PUBLIC, SIGNATURE, b"message")
        assert not verifies(PUBLIC, SIGNATURE, b"another")
        assert not verifies(OTHER_PUBLIC, SIGNATURE, b"message")
        assert not verifies(PUBLIC, OTHER.sign(b"message"), b"message")
    for key, signature in product((b"", bytes(31), bytes(33), bytes(32), b"\xff" * 32), (SIGNATURE, b"", bytes(64))):
        assert not verifies(key, signature, b"message")
        assert not verifies(PUBLIC, signature[:63], b"message")


def test_points_of_low_order_are_no_keys() -> None:
    for key in (bytes(32), (1).to_bytes(32, "little"), (2**255 - 19).to_bytes(32, "little")):
        with pytest.raises(CodecError, match="low order"):
            check_agreement_key(key)


SEED = bytes(range(32))


def test_long_arrays_hold_what_one_piece_after_the_other_would() -> None:
    """Arrays of more than one piece, and of an odd length, against the definition on the words themselves."""
    count = 2 * 65_536 * 2 + 65_537
    half = (count + 1) // 2
    u = ((words(SEED, "n", 2 * half) >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    np.testing.assert_array_equal(uniforms(SEED, "n", 2 * half), u)
    radius, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    np.testing.assert_allclose(normals(SEED, "n", count), expected, rtol=1e-12, atol=1e-12)


def test_places_follow_from_the_seed_and_the_key_alone() -> None:
    """The first 62 bits of a digest: operators and clients of other versions must find the same places."""
    expected = int.from_bytes(digest("round-robin place", b"s" * 32, b"k" * 32)[:8], "big") >> 2
    assert repeatable_place(b"s" * 32, b"k" * 32) == expected < 2**62


def by_hand(words: list[int], table: list[int]) -> list[int]:
    sizes = [sum(word >> 1 >= entry for entry in table) for word in words]
    return [-size if word & 1 else size for word, size in zip(words, sizes, strict=True)]


def joined(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


@settings(max_examples=30, deadline=None)
@given(
    words=st.lists(st.integers(0, 2**64 - 1), max_size=20),
    table=st.lists(st.integers(0, 2**63 - 2), min_size=1, max_size=30, unique=True).map(sorted),
)
def test_a_sample_is_the_number_of_entries_that_a_word_reaches(words: list[int], table: list[int]) -> None:
    words = [*words, *(2 * entry + sign for entry in table for sign in (0, 1)), *(max(0, 2 * e - 1) for e in table)]
    samples = symmetric_samples(len(words), table, lambda count: joined(words)[:count])
    assert samples.dtype == np.int64
    assert samples.tolist() == by_hand(words, table)


def test_more_entries_than_a_byte_counts() -> None:
    for entries in (254, 255, 256, 511):
        table = [place * 2**50 for place in range(1, entries + 1)]
        words = [0, 1, *(2 * entry for entry in table), 2**64 - 1, 2**64 - 2]
        samples = symmetric_samples(len(words), table, lambda count, words=words: joined(words)[:count])
        assert samples.tolist() == [0, 0, *range(1, entries + 1), -entries, entries]


def test_pieces_join_without_a_seam() -> None:
    for count in (0, 1, 32767, 32768, 70_000):
        table, words = [2**61, 2**62], os.urandom(8 * count)
        samples = symmetric_samples(count, table, lambda wanted, words=words: words[:wanted])
        values = np.frombuffer(words, "<u8")
        sizes = (values >> 1 >= 2**61).astype(int) + (values >> 1 >= 2**62)
        assert np.array_equal(samples, np.where(values & 1, -sizes, sizes))


def test_tables_end_before_the_last_word() -> None:
    halves = [Decimal(1), Decimal(1)]
    assert cumulative_table(halves) == (2**62,)  # the second entry would be 2^63
    assert cumulative_table([Decimal(3), Decimal(1), Decimal(0)]) == (3 * 2**61,)
    table = cumulative_table([Decimal(2) ** -k for k in range(100)])
    assert list(table) == sorted(set(table))
    assert table[-1] < 2**63 - 1


def test_a_source_is_expanded_by_aes_over_all_calls() -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    source = expanded(random)
    stream = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16))).encryptor().update(bytes(100))
    assert source(8) + source(0) + source(31) + source(61) == stream
    assert asked == [32]


def mailbox() -> tuple[SealingKey, bytes]:
    key = SealingKey.generate()
    return key, key.public


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
    key, _ = mailbox()
    sealed = bytes(32) + bytes(SEALED_OVERHEAD)
    head = SENDER.signing_key.public_key().public_bytes_raw() + SENDER.mailbox_key + SENDER.certificate
    statement = domain_tag("signed keyring envelope", "t_1", key.name, head, sealed)
    with pytest.raises(EnvelopeError, match="does not open"):
        open_envelope(head + SENDER.signing_key.sign(statement) + sealed, key, "t_1", anybody)


def test_an_enrolment_message_cannot_be_cut_another_way() -> None:
    assert enrolment_message("ab", b"c", b"d") != enrolment_message("a", b"bc", b"d")
    groups = {enrolment_message("ab", b"c", b"d", group) for group in (None, 0, 1, 10)}
    renewed = {enrolment_message("ab", b"c", b"d", group, None, 1) for group in (None, 0, 1, 10)}
    assert len(groups | renewed) == 8
    certified = {enrolment_message("ab", b"c", b"d", group, b"x") for group in (None, 0, 1, 10)}
    assert len(groups | certified) == 8


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
    others = [replace(KEYRING, **{name: value}) for name, value in changes.items()]
    again = decode_keyring(encode_keyring(KEYRING))
    assert again == KEYRING != encode_keyring(KEYRING)
    assert len({KEYRING, again, *others}) == len({one.fingerprint for one in (KEYRING, again, *others)}) == 6


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
