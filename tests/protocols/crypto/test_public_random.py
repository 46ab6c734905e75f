"""Public random numbers, and the places in the cohorts of a repeatable task that follow from them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.domain import digest, repeatable_place
from protocols.crypto.public_random import normals, permutation, uniforms, words

SEED = bytes(range(32))


def test_known_answers() -> None:
    """Other implementations depend on these values: they must not change."""
    assert words(SEED, "vector", 3).tolist() == KNOWN_WORDS
    np.testing.assert_array_equal(uniforms(SEED, "vector", 3), ((np.array(KNOWN_WORDS, np.uint64) >> 11) + 1.0) / 2**53)
    assert permutation(SEED, "vector", 8).tolist() == KNOWN_PERMUTATION


KNOWN_WORDS = [16689434543398755980, 10965133306410392796, 2022294336782764796]
KNOWN_PERMUTATION = [4, 2, 1, 7, 3, 6, 5, 0]


@given(st.binary(min_size=32, max_size=32), st.integers(0, 50))
def test_a_permutation_holds_everyone_once(seed: bytes, count: int) -> None:
    assert sorted(permutation(seed, "p", count)) == list(range(count))


def test_streams_differ_by_seed_and_purpose_and_extend_one_another() -> None:
    streams = [words(s, p, 4).tolist() for s in (SEED, SEED[::-1]) for p in ("a", "b")]
    assert len({tuple(s) for s in streams}) == 4
    assert words(SEED, "a", 9).tolist()[:4] == streams[0]


def test_uniforms_and_normals_look_the_part() -> None:
    u, z = uniforms(SEED, "u", 100_000), normals(SEED, "n", 99_999)
    assert u.min() > 0.0
    assert u.max() <= 1.0
    assert abs(u.mean() - 0.5) < 0.005
    assert z.shape == (99_999,)
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 1.0) < 0.02
    assert abs((z**4).mean() - 3.0) < 0.15


def test_long_arrays_hold_what_one_piece_after_the_other_would() -> None:
    """Arrays of more than one piece, and of an odd length, against the definition on the words themselves."""
    count = 2 * 65_536 * 2 + 65_537
    half = (count + 1) // 2
    u = ((words(SEED, "n", 2 * half) >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    np.testing.assert_array_equal(uniforms(SEED, "n", 2 * half), u)
    radius, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    np.testing.assert_allclose(normals(SEED, "n", count), expected, rtol=1e-12, atol=1e-12)


# --- places in the cohorts of a repeatable task -----------------------------------------------------------------------


def test_places_follow_from_the_seed_and_the_key_alone() -> None:
    keys = [bytes([number]) * 32 for number in range(50)]
    places = [repeatable_place(b"s" * 32, key) for key in keys]
    assert places == [repeatable_place(b"s" * 32, key) for key in keys]
    assert len(set(places)) == len(keys)
    assert all(0 <= place < 2**62 for place in places)
    assert [repeatable_place(b"t" * 32, key) for key in keys] != places


def test_a_place_is_the_first_62_bits_of_a_digest() -> None:
    """Operators and clients of other versions must find the same places."""
    expected = int.from_bytes(digest("round-robin place", b"s" * 32, b"k" * 32)[:8], "big") >> 2
    assert repeatable_place(b"s" * 32, b"k" * 32) == expected
