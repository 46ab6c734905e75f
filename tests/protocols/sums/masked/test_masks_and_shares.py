"""The streams of masks, and Shamir's shares of their secrets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocols.crypto.domain import derive_key
from protocols.errors import CodecError, ParameterError
from protocols.sums.masked import masks
from protocols.sums.masked.masks import Mask, add_mask, add_masks
from protocols.sums.masked.shamir import PRIME, SHARE_BYTES, combine, split

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
DTYPES = (np.uint16, np.uint32, np.uint64)
STEP = masks._STEP


def stream(dtype: type, count: int, key: bytes = KEY, context: bytes = b"round") -> np.ndarray:
    """By the definition: AES-128-CTR from block 0, under the derived key."""
    aes = algorithms.AES(derive_key(key, "masked sum mask", context, length=16))
    width = np.dtype(dtype).itemsize
    body = Cipher(aes, modes.CTR(bytes(16))).encryptor().update(bytes(count * width))
    return np.array([int.from_bytes(body[i : i + width], "little") for i in range(0, len(body), width)], dtype)


@given(dtype=st.sampled_from(DTYPES), start=st.integers(0, 100), length=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_any_piece_can_be_sought(dtype: type, start: int, length: int) -> None:
    piece = np.zeros(length, dtype)
    add_mask(piece, KEY, b"round", 1, start)
    assert (piece == stream(dtype, 200)[start : start + length]).all()


@pytest.mark.parametrize(("dtype", "threads"), [(np.uint16, 1), (np.uint32, 2), (np.uint64, 3)])
def test_pieces_threads_and_steps_make_no_difference(dtype: type, threads: int) -> None:
    """Over the edges of steps."""
    width = np.dtype(dtype).itemsize
    count = 2 * STEP // width + 7
    plan: list[Mask] = [(KEY, b"a", 1), (OTHER, b"a", -1), (KEY, b"b", 1)]
    whole = np.zeros(count, dtype)
    for key, context, sign in plan:
        add_mask(whole, key, context, sign)
    together = np.zeros(count, dtype)
    add_masks(together, plan, threads)
    assert (together == whole).all()
    pieces = np.zeros(count, dtype)
    edges = [0, 1, STEP // width - 1, STEP // width + 3, count - 1, count]
    for start, end in zip(edges, edges[1:], strict=False):
        add_masks(pieces[start:end], plan, threads, start)
    assert (pieces == whole).all()


def test_more_streams_than_a_batch() -> None:
    """1,100 streams, of which 1,098 cancel."""
    plan: list[Mask] = [(KEY, number.to_bytes(2, "big"), 1) for number in range(550)]
    plan += [(KEY, number.to_bytes(2, "big"), -1) for number in range(1, 550)] + [(OTHER, b"last", 1)]
    target = np.zeros(50, np.uint32)
    add_masks(target, plan)
    rest = stream(np.uint32, 50, KEY, bytes(2)) + stream(np.uint32, 50, OTHER, b"last")
    assert len(plan) > 2 * masks._BATCH
    assert (target == rest).all()


def test_masks_are_uniform() -> None:
    """Every bit of a million elements is 1 half the time, within six deviations; so is every low width."""
    vector = np.zeros(1_000_000, np.uint32)
    add_mask(vector, KEY, b"uniform", 1)
    for bit in range(32):
        ones = int(((vector >> np.uint32(bit)) & np.uint32(1)).sum())
        assert abs(ones - 500_000) < 6 * 500
    counts = np.bincount(vector & np.uint32(1023), minlength=1024)
    assert abs(((counts - 1_000_000 / 1024) ** 2).sum() / (1_000_000 / 1024) - 1023) < 6 * np.sqrt(2 * 1023)


def test_what_cannot_be_masked() -> None:
    good = np.zeros(4, np.uint32)
    for target in (np.zeros(4, np.int32), np.zeros(4, ">u4"), np.zeros((2, 2), np.uint32), np.zeros(8, np.uint32)[::2]):
        with pytest.raises(ParameterError, match="contiguous"):
            add_masks(target, [(KEY, b"", 1)])  # type: ignore[arg-type]
    for key, sign in ((KEY[:31], 1), (KEY, 2)):
        with pytest.raises(ParameterError, match="32 bytes and the sign"):
            add_masks(good, [(key, b"", sign)])  # type: ignore[list-item]
    for threads, start in ((0, 0), (1, -1)):
        with pytest.raises(ParameterError, match="threads"):
            add_masks(good, [(KEY, b"", 1)], threads, start)
    add_masks(np.zeros(0, np.uint32), [(KEY, b"", 1)], 2)
    add_masks(good, [], 2)
    assert not good.any()


SECRET = bytes(range(32))


def shares_of(secret: bytes, threshold: int, points: list[int]) -> dict[int, bytes]:
    return dict(zip(points, split(secret, threshold, points), strict=True))


def test_the_field_is_one() -> None:
    """Strong probable prime for the first thirteen bases, and the least of its size."""

    def passes(n: int, base: int) -> bool:
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        x = pow(base, odd, n)
        return x in (1, n - 1) or any(pow(x, 2**i, n) == n - 1 for i in range(1, twos))

    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    assert PRIME > 2**256
    assert all(passes(PRIME, base) for base in bases)
    assert not any(all(passes(n, base) for base in bases) for n in range(2**256 + 1, PRIME, 2))


@given(secret=st.binary(min_size=32, max_size=32), threshold=st.integers(1, 6), extra=st.integers(0, 4))
@example(bytes(32), 3, 0)
@example(b"\xff" * 32, 3, 0)
@settings(max_examples=30, deadline=None)
def test_any_t_shares_give_the_secret(secret: bytes, threshold: int, extra: int) -> None:
    points = [3, 1, 7, 2**31 - 1, 10, 2, 100, 5, 6, 4][: threshold + extra]
    shares = shares_of(secret, threshold, points)
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    for chosen in combinations(points, threshold):
        assert combine({point: shares[point] for point in chosen}, threshold) == secret
    assert combine(shares, threshold) == secret


def test_coefficients_are_uniform_and_fresh() -> None:
    """Candidates from 2^257 - 1 down are thrown away until one is below p: no modulo, no bias."""

    def drawing(*values: int) -> Callable[[int], bytes]:
        left = iter(values)
        return lambda length: (next(left) << 7 | 0x55).to_bytes(length, "little")

    for last in (PRIME - 1, 0):
        drawn = split(SECRET, 2, [1, 2], drawing(PRIME, PRIME + 1, 2**257 - 1, last))
        assert drawn == split(SECRET, 2, [1, 2], drawing(last)) != split(SECRET, 2, [1, 2], drawing(7))
    assert split(SECRET, 2, [1, 2]) != split(SECRET, 2, [1, 2])


def test_exactly_t_of_the_lowest_points_are_used() -> None:
    shares = shares_of(SECRET, 3, [1, 2, 3, 4, 5])
    assert combine(shares | {4: bytes(33), 5: bytes(33)}, 3) == SECRET
    assert combine(shares | {3: bytes(33)}, 3) != SECRET


def test_what_cannot_be_split_or_combined() -> None:
    """2^256 is in the field but does not fit 32 bytes."""
    for secret, threshold, points in (
        (SECRET[:31], 2, [1, 2]),
        *((SECRET, threshold, points) for threshold, points in ((0, [1, 2]), (3, [1, 2]), (1, []))),
        *((SECRET, 2, points) for points in ([1, 1], [0, 1], [1, 2**31], [-1, 1])),
    ):
        with pytest.raises(ParameterError):
            split(secret, threshold, points)
    shares = shares_of(SECRET, 3, [1, 2, 3])
    for share in (b"", bytes(32), bytes(34), PRIME.to_bytes(33, "little"), b"\xff" * 33):
        with pytest.raises(CodecError, match="point 2"):
            combine(shares | {2: share}, 3)
    with pytest.raises(ParameterError, match="3 shares are needed, got 2"):
        combine({1: shares[1], 3: shares[3]}, 3)
    with pytest.raises(CodecError, match="wrong"):
        combine({1: (2**256).to_bytes(SHARE_BYTES, "little")}, 1)
