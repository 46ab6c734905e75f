from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.crypto.domain import derive_key
from protocols.errors import ParameterError
from protocols.sums.masked import masks
from protocols.sums.masked.masks import Mask, add_mask, add_masks

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
DTYPES = (np.uint16, np.uint32, np.uint64)
STEP = masks._STEP


def stream(dtype: type, count: int, key: bytes = KEY, context: bytes = b"round") -> np.ndarray:
    """By the definition: AES-128-CTR from block 0, under the derived key."""
    aes = algorithms.AES(derive_key(key, "masked sum mask", context, length=16))
    width = np.dtype(dtype).itemsize
    body = Cipher(aes, modes.CTR(bytes(16))).encryptor().update(bytes(count * width))
    return np.array([int.from_bytes(body[i : i + width], "little") for i in range(0, len(body), width)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_stream_is_the_keystream(dtype: type) -> None:
    target = np.arange(1000, dtype=dtype)
    add_mask(target, KEY, b"round", 1)
    assert (target == np.arange(1000, dtype=dtype) + stream(dtype, 1000)).all()
    add_mask(target, KEY, b"round", -1)
    assert (target == np.arange(1000, dtype=dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@given(start=st.integers(0, 100), length=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_any_piece_can_be_sought(dtype: type, start: int, length: int) -> None:
    piece = np.zeros(length, dtype)
    add_mask(piece, KEY, b"round", 1, start)
    assert (piece == stream(dtype, 200)[start : start + length]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_pieces_threads_and_steps_make_no_difference(dtype: type, threads: int) -> None:
    """Over the edges of steps, and far into the stream."""
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
    far = np.zeros(3, dtype)
    add_mask(far, KEY, b"a", 1, 2**40)
    near = np.zeros(3, dtype)
    add_mask(near, KEY, b"a", 1)
    assert (far != near).any()


def test_more_streams_than_a_batch() -> None:
    """1,100 streams, of which 1,098 cancel."""
    plan: list[Mask] = [(KEY, number.to_bytes(2, "big"), 1) for number in range(550)]
    plan += [(KEY, number.to_bytes(2, "big"), -1) for number in range(1, 550)] + [(OTHER, b"last", 1)]
    target = np.zeros(50, np.uint32)
    add_masks(target, plan)
    rest = stream(np.uint32, 50, KEY, bytes(2)) + stream(np.uint32, 50, OTHER, b"last")
    assert len(plan) > 2 * masks._BATCH
    assert (target == rest).all()


def test_pairs_cancel_and_selves_are_left() -> None:
    total = np.zeros(500, np.uint32)
    for masks_of_one in ([(KEY, b"pair", 1)], [(KEY, b"pair", -1), (OTHER, b"self", 1)]):
        vector = np.zeros(500, np.uint32)
        add_masks(vector, masks_of_one)  # type: ignore[arg-type]
        total += vector
    assert (total == stream(np.uint32, 500, OTHER, b"self")).all()


def test_other_keys_and_contexts_other_streams() -> None:
    streams = []
    for key, context in ((KEY, b"a"), (OTHER, b"a"), (KEY, b"b"), (KEY, b"")):
        vector = np.zeros(64, np.uint16)
        add_mask(vector, key, context, 1)
        streams.append(vector)
    for i, one in enumerate(streams):
        for other in streams[:i]:
            assert (one != other).mean() > 0.9


def test_masks_are_uniform() -> None:
    """Every bit of a million elements is 1 half the time, within six deviations; so is every low width."""
    vector = np.zeros(1_000_000, np.uint32)
    add_mask(vector, KEY, b"uniform", 1)
    for bit in range(32):
        ones = int(((vector >> np.uint32(bit)) & np.uint32(1)).sum())
        assert abs(ones - 500_000) < 6 * 500
    counts = np.bincount(vector & np.uint32(1023), minlength=1024)
    assert abs(((counts - 1_000_000 / 1024) ** 2).sum() / (1_000_000 / 1024) - 1023) < 6 * np.sqrt(2 * 1023)


@pytest.mark.parametrize(
    ("target", "key", "sign", "threads", "start"),
    [
        (np.zeros(4, np.int32), KEY, 1, 1, 0),
        (np.zeros(4, np.float64), KEY, 1, 1, 0),
        (np.zeros(4, ">u4"), KEY, 1, 1, 0),
        (np.zeros((2, 2), np.uint32), KEY, 1, 1, 0),
        (np.zeros(8, np.uint32)[::2], KEY, 1, 1, 0),
        (np.zeros(4, np.uint32), KEY[:31], 1, 1, 0),
        (np.zeros(4, np.uint32), KEY, 2, 1, 0),
        (np.zeros(4, np.uint32), KEY, 1, 0, 0),
        (np.zeros(4, np.uint32), KEY, 1, 1, -1),
    ],
)
def test_what_cannot_be_masked(target: np.ndarray, key: bytes, sign: int, threads: int, start: int) -> None:
    with pytest.raises(ParameterError):
        add_masks(target, [(key, b"", sign)], threads, start)  # type: ignore[list-item]


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_masked_with_nothing(threads: int) -> None:
    add_masks(np.zeros(0, np.uint32), [(KEY, b"", 1)], threads)
    vector = np.ones(5, np.uint32)
    add_masks(vector, [], threads)
    assert (vector == 1).all()
