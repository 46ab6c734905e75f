"""Encapsulation of ML-KEM-768 with given coins, written from FIPS 203: for vectors, and to check the library by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_Q, _K, _DU, _DV = 3329, 3, 10, 4


def _reversed(index: int) -> int:
    return int(f"{index:07b}"[::-1], 2)


_ZETAS = [pow(17, _reversed(i), _Q) for i in range(128)]
_GAMMAS = np.array([pow(17, 2 * _reversed(i) + 1, _Q) for i in range(128)])


def _ntt(values: Ints) -> Ints:
    """Algorithm 9."""
    f, at, length = values.copy() % _Q, 1, 128
    while length >= 2:
        for start in range(0, 256, 2 * length):
            low, high = f[start : start + length].copy(), f[start + length : start + 2 * length]
            turned = _ZETAS[at] * high % _Q
            f[start + length : start + 2 * length], f[start : start + length] = (low - turned) % _Q, (low + turned) % _Q
            at += 1
        length //= 2
    return f


def _inverse(values: Ints) -> Ints:
    """Algorithm 10."""
    f, at, length = values.copy(), 127, 2
    while length <= 128:
        for start in range(0, 256, 2 * length):
            low, high = f[start : start + length].copy(), f[start + length : start + 2 * length].copy()
            f[start : start + length] = (low + high) % _Q
            f[start + length : start + 2 * length] = _ZETAS[at] * (high - low) % _Q
            at -= 1
        length *= 2
    return f * 3303 % _Q


def _product(a: Ints, b: Ints) -> Ints:
    """Algorithm 11."""
    even = (a[0::2] * b[0::2] + a[1::2] * b[1::2] % _Q * _GAMMAS) % _Q
    return np.stack([even, (a[0::2] * b[1::2] + a[1::2] * b[0::2]) % _Q], axis=1).ravel()


def _uniform(seed: bytes) -> Ints:
    """Algorithm 7; 1,008 bytes are enough but for one seed in 2^38."""
    stream = np.frombuffer(hashlib.shake_128(seed).digest(1008), np.uint8).astype(np.int64).reshape(-1, 3)
    drawn = np.stack([stream[:, 0] + 256 * (stream[:, 1] % 16), stream[:, 1] // 16 + 16 * stream[:, 2]], axis=1).ravel()
    return drawn[drawn < _Q][:256]


def _bits(body: bytes, width: int) -> Ints:
    bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little").reshape(-1, width)
    return bits.astype(np.int64) @ (1 << np.arange(width))


def _bytes(values: Ints, width: int) -> bytes:
    return np.packbits((values[:, None] >> np.arange(width) & 1).astype(np.uint8).ravel(), bitorder="little").tobytes()


def _noise(seed: bytes, number: int) -> Ints:
    """Algorithm 8 for eta = 2."""
    pairs = _bits(hashlib.shake_256(seed + bytes([number])).digest(128), 1).reshape(256, 2, 2).sum(axis=2)
    return pairs[:, 0] - pairs[:, 1]


def _compressed(values: Ints, width: int) -> bytes:
    return _bytes(((values % _Q << width) * 2 + _Q) // (2 * _Q) % (1 << width), width)


def encapsulate(public: bytes, coins: bytes) -> tuple[bytes, bytes]:
    """Return shared secret and ciphertext (algorithms 14 and 17) for a public key (1,184 bytes) and coins (32)."""
    both = hashlib.sha3_512(coins + hashlib.sha3_256(public).digest()).digest()
    t, rho = [_bits(public[384 * i : 384 * (i + 1)], 12) for i in range(_K)], public[384 * _K :]
    y = [_ntt(_noise(both[32:], i)) for i in range(_K)]
    body = b""
    for i in range(_K):
        row = [_product(_uniform(rho + bytes([i, j])), y[j]) for j in range(_K)]
        body += _compressed(_inverse(np.sum(row, axis=0) % _Q) + _noise(both[32:], _K + i), _DU)
    message = (_bits(coins, 1) * _Q + 1) // 2
    last = _inverse(np.sum([_product(a, b) for a, b in zip(t, y, strict=True)], axis=0) % _Q)
    return both[:32], body + _compressed(last + _noise(both[32:], 2 * _K) + message, _DV)


@contextmanager
def given_coins(coins: Callable[[bytes], bytes]) -> Iterator[None]:
    """Make every encapsulation take its coins, 32 bytes, from a function of the key that it is to."""

    def drawn(key: MLKEM768PublicKey) -> tuple[bytes, bytes]:
        public = key.public_bytes_raw()
        return encapsulate(public, coins(public))

    with pytest.MonkeyPatch.context() as patch:
        target: Any = "protocols.crypto.sealing.encapsulate"
        patch.setattr(target, drawn)
        yield
