"""Places in the cohorts of a repeatable task."""

from __future__ import annotations

from protocols.crypto.domain import digest, repeatable_place


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
