"""Measure Top-K the usual way: phe with one floating-point value per ciphertext, as in the paper."""

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
"""The paper does not state the key size; its 837 bytes per value fit this key (768 bytes) plus serialisation."""

_EXPONENT: Final = struct.Struct("<i")
_CIPHERTEXT_BYTES: Final = 2 * KEY_BITS // 8


@lru_cache(maxsize=1)
def _keys() -> tuple[PaillierPublicKey, PaillierPrivateKey]:
    public, private = generate_paillier_keypair(n_length=KEY_BITS)
    return public, private


class PheUsual:
    """Measures `sample` values and multiplies the result; measures every value of a row if `sample` is None.

    The encoding is the shortest that leaves phe unchanged: each ciphertext at the width of the modulus and its exponent
    in 4 bytes. (phe's documentation sends decimal digits in JSON, 2.4 times as long.)
    """

    def __init__(self, sample: int | None) -> None:
        self._sample = sample
        self._per_value: dict[int, Steps] = {}

    def __call__(self, row: Row, _clients: int, repetitions: int) -> Steps:
        """Measure the steps of `row`. A sample is measured once and reused for all rows."""
        count = row.values if self._sample is None else min(self._sample, row.values)
        if count not in self._per_value:
            self._per_value[count] = _measure(count, 0 if self._sample is None else repetitions)
        steps = self._per_value[count]
        times = row.values / count
        return Steps(
            seal=steps.seal * times,
            open=steps.open * times,
            fold=steps.fold * times,
            ciphertext_bytes=steps.ciphertext_bytes // count * row.values,
            scaled=count < row.values,
        )


def _measure(count: int, repetitions: int) -> Steps:
    """Medians of `repetitions`; with 0, measure every step once, without a warm-up."""
    public, private = _keys()
    values = [float(value) for value in vector_of(count)]
    bodies = [_to_bytes(public.encrypt(value)) for value in values]
    sums = [_from_bytes(public, body) for body in bodies]
    functions: dict[str, Callable[[], object]] = {
        "seal": lambda: [_to_bytes(public.encrypt(value)) for value in values],
        "open": lambda: [private.decrypt(_from_bytes(public, body)) for body in bodies],
        "fold": lambda: [total + _from_bytes(public, body) for total, body in zip(sums, bodies, strict=True)],
    }
    times = medians(functions, max(1, repetitions), warm=repetitions > 0)
    return Steps(**times, ciphertext_bytes=sum(len(body) for body in bodies))


def _to_bytes(number: EncryptedNumber) -> bytes:
    return int(number.ciphertext()).to_bytes(_CIPHERTEXT_BYTES, "big") + _EXPONENT.pack(number.exponent)


def _from_bytes(public: PaillierPublicKey, body: bytes) -> EncryptedNumber:
    (exponent,) = _EXPONENT.unpack_from(body, _CIPHERTEXT_BYTES)
    return EncryptedNumber(public, int.from_bytes(body[:_CIPHERTEXT_BYTES], "big"), exponent)
