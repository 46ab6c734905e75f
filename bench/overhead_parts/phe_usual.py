"""Top-K the ordinary way: phe, one floating-point value a ciphertext, as the paper did it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey, generate_paillier_keypair

from bench.overhead_parts.ckks import vector_of
from bench.overhead_parts.rows import Row
from bench.overhead_parts.steps import Steps, medians

__all__ = ["KEY_BITS", "PheUsual"]

KEY_BITS: Final = 3072
"""The paper does not say; its 837 bytes a value fit this key (768 bytes) and a serialiser's overhead."""

_EXPONENT: Final = struct.Struct("<i")
_CIPHERTEXT_BYTES: Final = 2 * KEY_BITS // 8


@lru_cache(maxsize=1)
def _keys() -> tuple[PaillierPublicKey, PaillierPrivateKey]:
    public, private = generate_paillier_keypair(n_length=KEY_BITS)
    return public, private


class PheUsual:
    """Measures `sample` values and multiplies; every value of a row where `sample` is None.

    What is sent is as short as it can be without changing what phe does: each ciphertext at the modulus's width and its
    exponent in 4 bytes (phe's own documentation sends decimal digits in JSON, 2.4 times as long).
    """

    def __init__(self, sample: int | None) -> None:
        self._sample = sample
        self._per_value: dict[int, Steps] = {}

    def __call__(self, row: Row, _clients: int, repetitions: int) -> Steps:
        """Steps of a row; the sample itself is measured once."""
        count = row.values if self._sample is None else min(self._sample, row.values)
        if count not in self._per_value:
            self._per_value[count] = _measure(count, 0 if self._sample is None else repetitions)
        steps = self._per_value[count]
        times = row.values / count
        return Steps(
            encrypt=steps.encrypt * times,
            serialise=steps.serialise * times,
            decrypt=steps.decrypt * times,
            deserialise=steps.deserialise * times,
            fold=steps.fold * times,
            ciphertext_bytes=steps.ciphertext_bytes // count * row.values,
            scaled=count < row.values,
        )


def _measure(count: int, repetitions: int) -> Steps:
    """Medians of `repetitions`; with none, every step once and nothing before it, which takes long enough."""
    public, private = _keys()
    values = [float(value) for value in vector_of(count)]
    made = [public.encrypt(value) for value in values]
    bodies = [_to_bytes(number) for number in made]
    sums = [number + number for number in made]
    moves: dict[str, Callable[[], object]] = {
        "encrypt": lambda: [public.encrypt(value) for value in values],
        "serialise": lambda: [_to_bytes(number) for number in made],
        "decrypt": lambda: [private.decrypt(number) for number in sums],
        "deserialise": lambda: [_from_bytes(public, body) for body in bodies],
        "fold": lambda: [total + number for total, number in zip(sums, made, strict=True)],
    }
    times = medians(moves, max(1, repetitions), warm=repetitions > 0)
    return Steps(**times, ciphertext_bytes=sum(len(body) for body in bodies))


def _to_bytes(number: EncryptedNumber) -> bytes:
    return int(number.ciphertext()).to_bytes(_CIPHERTEXT_BYTES, "big") + _EXPONENT.pack(number.exponent)


def _from_bytes(public: PaillierPublicKey, body: bytes) -> EncryptedNumber:
    (exponent,) = _EXPONENT.unpack_from(body, _CIPHERTEXT_BYTES)
    return EncryptedNumber(public, int.from_bytes(body[:_CIPHERTEXT_BYTES], "big"), exponent)
