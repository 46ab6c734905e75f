"""CKKS by the text of docs/wire/encrypted.md, with made-up randomness: the second implementation beside SEAL's."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.domain import digest

__all__ = ["Ring", "expand_seed", "noise", "ternary"]

_BUFFER = 4096
_MOST = 2**64 - 1


_IV = (
    *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
)
_ORDERS = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)
_MIXED = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONAL = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _turned(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (words >> np.uint64(bits)) | (words << np.uint64(64 - bits))


def _leaves(root: bytes, count: int) -> bytes:
    """Return BLAKE2b of `root` for `count` leaves at once; hashlib does not take their depth of 0."""
    message = [np.uint64(word) for word in struct.unpack("<8Q", root)] + [np.uint64(0)] * 8
    heads = [np.full(count, word, np.uint64) for word in _IV]
    heads[0] ^= np.uint64(64 | 64 << 32)  # digest length, leaf length
    heads[1] ^= np.arange(count, dtype=np.uint64) | np.uint64(_BUFFER << 32)  # place of the leaf, length of the whole
    heads[2] ^= np.uint64(64 << 8)  # inner length
    v = [*(head.copy() for head in heads), *(np.full(count, word, np.uint64) for word in _IV)]
    v[12] ^= np.uint64(len(root))
    v[14] = ~v[14]
    for number in range(12):
        order = _ORDERS[number % 10]
        for place, (a, b, c, d) in enumerate((*_MIXED, *_DIAGONAL)):
            for word, (first, second) in zip(order[2 * place : 2 * place + 2], ((32, 24), (16, 63)), strict=True):
                v[a] = v[a] + v[b] + message[word]
                v[d] = _turned(v[d] ^ v[a], first)
                v[c] = v[c] + v[d]
                v[b] = _turned(v[b] ^ v[c], second)
    return np.stack([head ^ v[i] ^ v[i + 8] for i, head in enumerate(heads)], axis=1).astype("<u8").tobytes()


def _blake2xb(seed: bytes, number: int) -> bytes:
    """Return 4096 bytes of BLAKE2Xb with the key `seed` (64 bytes) over the uint64 `number`."""
    root = hashlib.blake2b(struct.pack("<Q", number), key=seed, node_offset=_BUFFER << 32).digest()
    return _leaves(root, _BUFFER // 64)


def _words(seed: bytes) -> Iterator[int]:
    number = 0
    while True:
        yield from struct.unpack("<512Q", _blake2xb(seed, number))
        number += 1


def expand_seed(seed: bytes, modulus: int, degree: int) -> list[int]:
    """Return the residues that SEAL draws from a seed (64 bytes) for the second polynomial of a ciphertext."""
    words = _words(seed)
    drawn = [next(words) for _ in range(degree)]
    limit = _MOST - _MOST % modulus - 1
    for place, word in enumerate(drawn):
        while word >= limit:
            word = next(words)
        drawn[place] = word % modulus
    return drawn


class Ring:
    """Polynomials modulo X^degree + 1 and a prime, as coefficients or as residues in SEAL's order."""

    def __init__(self, degree: int, modulus: int) -> None:
        self.degree, self.modulus, self.bits = degree, modulus, degree.bit_length() - 1
        power = (modulus - 1) // (2 * degree)
        first = next(r for base in range(2, 99) if pow(r := pow(base, power, modulus), degree, modulus) == modulus - 1)
        self.root = min(pow(first, odd, modulus) for odd in range(1, 2 * degree, 2))
        powers = [1]
        for _ in range(degree - 1):
            powers.append(powers[-1] * self.root % modulus)
        self._turned = [powers[self._reversed(place)] for place in range(degree)]

    def _reversed(self, place: int) -> int:
        return int(format(place, f"0{self.bits}b")[::-1], 2)

    def residues(self, coefficients: Sequence[int]) -> list[int]:
        """Return the values at the odd powers of the root: number i is that at 2 r + 1, r the reversed bits of i."""
        a, q, gap, groups = [c % self.modulus for c in coefficients], self.modulus, self.degree, 1
        while groups < self.degree:
            gap //= 2
            for group in range(groups):
                factor = self._turned[groups + group]
                for place in range(2 * group * gap, 2 * group * gap + gap):
                    low, high = a[place], a[place + gap] * factor % q
                    a[place], a[place + gap] = (low + high) % q, (low - high) % q
            groups *= 2
        return a

    def encode(self, slots: NDArray[np.complex128], scale: float) -> list[int]:
        """Return the coefficients of the polynomial with these values at z^(3^j), times `scale`, rounded."""
        n = self.degree
        powers = np.array([pow(3, j, 2 * n) for j in range(n // 2)])
        spectrum = np.zeros(2 * n, np.complex128)
        spectrum[powers] = slots
        return [round(float(x)) for x in np.fft.fft(spectrum)[:n].real * (2 * scale / n)]


def _drawn(label: str, count: int) -> bytes:
    blocks = (digest("vector ckks", label, block) for block in range(-(-count // 32)))
    return b"".join(blocks)[:count]


def ternary(label: str, degree: int) -> list[int]:
    """Return made-up coefficients -1, 0 and 1."""
    return [byte % 3 - 1 for byte in _drawn(label, degree)]


def noise(label: str, degree: int) -> list[int]:
    """Return made-up errors from -4 to 4."""
    return [(byte & 15).bit_count() - (byte >> 4).bit_count() for byte in _drawn(label, degree)]
