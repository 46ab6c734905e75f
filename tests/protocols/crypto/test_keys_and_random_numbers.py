"""Domain separation, Ed25519 verification, public random numbers, and the table sampler of secret ones."""

from __future__ import annotations

import os
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.crypto.domain import derive_key, digest, domain_tag, repeatable_place
from protocols.crypto.keys import check_public_key, verifies
from protocols.crypto.random import cumulative_table, expanded, normals, symmetric_samples, uniforms, words
from protocols.errors import CodecError

PART = st.one_of(st.text(max_size=6), st.integers(), st.binary(max_size=6))
CONTEXT = st.lists(PART, max_size=4)


@given(st.text(min_size=1, max_size=5), CONTEXT, st.text(min_size=1, max_size=5), CONTEXT)
@settings(max_examples=50, deadline=None)
def test_tags_are_injective(left: str, left_context: list, right: str, right_context: list) -> None:
    def typed(context: list) -> list:
        return [(type(part), part) for part in context]

    alike = (left, typed(left_context)) == (right, typed(right_context))
    assert (domain_tag(left, *left_context) == domain_tag(right, *right_context)) == alike


def test_keys_differ_by_purpose_and_context_and_have_the_length_asked_for() -> None:
    keys = {
        derive_key(b"s" * 32, purpose, *context, length=48)
        for purpose in ("mask", "seal")
        for context in ((), ("1",), (1,), (b"1",), ("1", ""))
    }
    assert len(keys) == 10
    assert {len(key) for key in keys} == {48}


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
            check_public_key(key)


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
        samples = symmetric_samples(len(words), table, lambda count, words=words: joined(words)[:count])  # type: ignore[misc]
        assert samples.tolist() == [0, 0, *range(1, entries + 1), -entries, entries]


def test_pieces_join_without_a_seam() -> None:
    for count in (0, 1, 32767, 32768, 70_000):
        table, words = [2**61, 2**62], os.urandom(8 * count)
        samples = symmetric_samples(count, table, lambda wanted, words=words: words[:wanted])  # type: ignore[misc]
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
