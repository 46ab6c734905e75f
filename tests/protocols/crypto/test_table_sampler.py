"""The table sampler: the tables, every edge of them, tables of any length, and where its random bytes come from."""

from __future__ import annotations

import os
from decimal import Decimal

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.table_sampler import cumulative_table, expanded, symmetric_samples


def by_hand(words: list[int], table: list[int]) -> list[int]:
    sizes = [sum(word >> 1 >= entry for entry in table) for word in words]
    return [-size if word & 1 else size for word, size in zip(words, sizes, strict=True)]


def joined(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


@given(
    words=st.lists(st.integers(0, 2**64 - 1), max_size=20),
    table=st.lists(st.integers(0, 2**63 - 2), min_size=1, max_size=30, unique=True).map(sorted),
)
def test_a_sample_is_the_number_of_entries_that_a_word_reaches(words: list[int], table: list[int]) -> None:
    words = [*words, *(2 * entry + sign for entry in table for sign in (0, 1)), *(max(0, 2 * e - 1) for e in table)]
    samples = symmetric_samples(len(words), table, lambda count: joined(words)[:count])
    assert samples.dtype == np.int64
    assert samples.tolist() == by_hand(words, table)


@pytest.mark.parametrize("entries", [254, 255, 256, 510, 511, 1000])
def test_more_entries_than_a_byte_counts(entries: int) -> None:
    table = [place * 2**50 for place in range(1, entries + 1)]
    words = [0, 1, *(2 * entry for entry in table), 2**64 - 1, 2**64 - 2]
    samples = symmetric_samples(len(words), table, lambda count: joined(words)[:count])
    assert samples.tolist() == [0, 0, *range(1, entries + 1), -entries, entries]


@pytest.mark.parametrize("count", [0, 1, 32767, 32768, 32769, 70_000])
def test_pieces_join_without_a_seam(count: int) -> None:
    table, words = [2**61, 2**62], os.urandom(8 * count)
    asked: list[int] = []

    def random(wanted: int) -> bytes:
        asked.append(wanted)
        return words

    samples = symmetric_samples(count, table, random)
    assert asked == [8 * count]
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
