"""Random numbers: public ones from a broadcast seed, and secret ones from a table.

*Public.* Words, uniforms and permutations are the same on every machine, bit for bit. Normals are so up to the last
bits of a float64, in which the logarithm and the cosine of mathematics libraries differ. numpy guarantees the raw
stream of a BitGenerator across versions, but not the output of `Generator`. Uniforms and normals are therefore computed
here from Philox's raw 64-bit words.

*Secret.* Symmetric integers from a cumulative table, in constant time; the source of randomness is an argument.
Peikert, "An Efficient and Parallel Gaussian Sampler for Lattices" (CRYPTO 2010), section 4.1: a word of 63 random bits
is compared with EVERY entry of the table, and the size of the sample is the number of entries that it reaches; the 64th
bit is the sign. No branch and no address depends on the sample. A table of entries floor(2^63 Pr[|X| <= k]) gives a
distribution within 2^-57 (statistical distance) of that of X, tail included, for up to 64 entries, and within
entries * 2^-63 for longer ones. `fine_samples` compares 127 bits, and is within entries * 2^-127.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from protocols.crypto.keys import KEY_BYTES, derive_seed

Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; `os.urandom` except in tests and test vectors."""

_PIECE: Final = 1 << 16
"""Values computed at a time."""


def words(seed: bytes, purpose: str, count: int) -> NDArray[np.uint64]:
    """Return `count` uint64 words of Philox4x64-10 (Salmon et al., SC'11), keyed by 128 bits of (seed, purpose)."""
    key = np.frombuffer(derive_seed(seed, purpose)[:16], dtype="<u8").astype(np.uint64)
    return np.random.Philox(key=key).random_raw(count).astype(np.uint64, copy=False)


def uniforms(seed: bytes, purpose: str, count: int) -> NDArray[np.float64]:
    """Return `count` float64 values, uniform in (0, 1], with 53 bits each."""
    drawn = words(seed, purpose, count)
    values = drawn.view(np.float64)  # in the same memory: a task's first model may take most of what there is
    for start in range(0, count, _PIECE):
        piece = slice(start, start + _PIECE)
        values[piece] = ((drawn[piece] >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    return values


def normals(seed: bytes, purpose: str, count: int) -> NDArray[np.float64]:
    """Return `count` standard normal values, float64, by Box and Muller (1958): everywhere alike up to rounding."""
    half = (count + 1) // 2
    u = uniforms(seed, purpose, 2 * half)
    first, second = u[:half], u[half:]
    for start in range(0, half, _PIECE):
        piece = slice(start, start + _PIECE)
        radius, angle = np.sqrt(-2.0 * np.log(first[piece])), 2.0 * np.pi * second[piece]
        first[piece], second[piece] = radius * np.cos(angle), radius * np.sin(angle)
    return u[:count]


def permutation(seed: bytes, purpose: str, count: int) -> NDArray[np.int64]:
    """Return a uniform permutation of range(count), int64: the order of `count` random words (ties are negligible)."""
    return np.argsort(words(seed, purpose, count), kind="stable")


_WORD_BITS: Final = 63
FINE_BITS: Final = 127
_LOW_BITS: Final = 20
_SAMPLES: Final = 32768
"""Samples at a time, so that words and counts stay in the processor's cache."""
_COUNTED: Final = 255
"""Entries whose comparisons are counted in one byte a sample, which takes a third of the time of two bytes."""


def expanded(random: Randomness) -> Randomness:
    """Return a source of the AES-256-CTR keystream of 32 bytes of `random`, counted from 0 over all calls.

    Ten times as fast as the operating system's, which matters for hundreds of thousands of samples.
    """
    stream = Cipher(algorithms.AES(random(KEY_BYTES)), modes.CTR(bytes(16))).encryptor()
    return lambda count: stream.update(bytes(count))


def cumulative_table(weights: Iterable[Decimal], bits: int = _WORD_BITS) -> tuple[int, ...]:
    """Return floor(2^bits * Pr[|X| <= k]) for k = 0, 1, ... up to the last entry below 2^bits - 1.

    weights: proportional to Pr[|X| = k], k = 0, 1, ..., so many that the rest of the tail is below 2^-(bits + 1).
    """
    listed = list(weights)
    whole, table, reached = sum(listed), [], Decimal(0)
    for weight in listed:
        reached += weight
        table.append(int(2**bits * reached / whole))
    return tuple(entry for entry in table if entry < 2**bits - 1)


def symmetric_samples(count: int, table: Sequence[int], random: Randomness) -> NDArray[np.int64]:
    """Return `count` samples, int64, at most len(table) in size; takes 8 bytes each of `random`."""
    words = np.frombuffer(random(8 * count), "<u8")
    return _signed(words, _reached(words, np.array(table, np.int64)))


def fine_samples(count: int, table: Sequence[int], random: Randomness) -> NDArray[np.int64]:
    """Return what `symmetric_samples` does, from a table with `FINE_BITS` bits; takes 8 or 16 bytes each of `random`.

    The 63 bits of a sample decide, unless they equal the first 63 bits of an entry. Then 64 more bits do, from a second
    word. Every sample whose last `_LOW_BITS` bits are those of such an entry takes one, so that who takes one says
    nothing about the sizes: these depend on the first bits.
    """
    words = np.frombuffer(random(8 * count), "<u8")
    high = np.array([entry >> 64 for entry in table], np.int64)
    low = np.array([entry & (2**64 - 1) for entry in table], np.uint64)
    sizes = _reached(words, high[high < 2**_WORD_BITS - 1])  # the others are reached by samples with a second word
    is_near = np.zeros(2**_LOW_BITS, np.bool_)
    is_near[high % 2**_LOW_BITS] = True
    near = np.flatnonzero(is_near[(words >> np.uint64(1)) % np.uint64(2**_LOW_BITS)])
    values, second = (words[near] >> np.uint64(1)).view(np.int64), np.frombuffer(random(8 * near.size), "<u8")
    sizes[near] = 0
    for first, rest in zip(high, low, strict=True):
        sizes[near] += (values > first) | ((values == first) & (second >= rest))
    return _signed(words, sizes)


def _signed(words: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return samples of these sizes, negative where a word is odd."""
    signs = (words & np.uint64(1)).view(np.int64)
    return (sizes ^ -signs) + signs


def _reached(words: NDArray[np.uint64], entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each word how many entries its first 63 bits reach."""
    found = np.empty(words.size, np.int64)
    parts = [entries[start : start + _COUNTED] for start in range(0, entries.size, _COUNTED)]
    for start in range(0, words.size, _SAMPLES):
        piece = words[start : start + _SAMPLES]
        values, sizes = (piece >> np.uint64(1)).view(np.int64), np.zeros(piece.size, np.int64)
        reached, counts = np.empty(piece.size, np.bool_), np.empty(piece.size, np.uint8)
        ones = reached.view(np.uint8)
        for part in parts:
            counts[:] = 0
            for entry in part:
                np.greater_equal(values, entry, out=reached)
                np.add(counts, ones, out=counts)
            sizes += counts
        found[start : start + _SAMPLES] = sizes
    return found
