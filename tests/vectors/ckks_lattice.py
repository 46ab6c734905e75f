"""CKKS by the text of docs/wire/encrypted.md, with made-up randomness; SEAL itself expands the seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.sums.ckks.wire import MemoryFile, seal_context
from tests.vectors.common import drawn_for


def expand_seed(name: str, degree: int, seed: bytes) -> list[int]:
    """Return the second polynomial of a ciphertext that SEAL loads with this seed (64 bytes), for a set by its name."""
    context = seal_context(name, degree)
    prefix, zeros = context.ciphertext_prefix(1.0, 1), np.zeros(degree, np.uint64)
    ciphertext = sealapi.Ciphertext()
    with MemoryFile() as file:
        context.load(file, ciphertext, context.stream(prefix, zeros, context.seed_marker() + seed))
        residues, _ = file.saved(ciphertext, context.ciphertext_prefix(1.0, 2), 2 * degree, 0)
        return [int(residue) for residue in residues[degree:]]


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


def ternary(label: str, degree: int) -> list[int]:
    """Return made-up coefficients -1, 0 and 1."""
    return [byte % 3 - 1 for byte in drawn_for("vector ckks", label)(degree)]


def noise(label: str, degree: int) -> list[int]:
    """Return made-up errors from -4 to 4."""
    return [(byte & 15).bit_count() - (byte >> 4).bit_count() for byte in drawn_for("vector ckks", label)(degree)]
