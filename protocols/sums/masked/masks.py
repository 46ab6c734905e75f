"""The masks of a round: their keys, and the streams that these expand to.

*Keys.* A client makes two sealing keys per round. The shares of its neighbours are sealed to the one, the secrets of
pairs to the other, the mask key. They are separate because the mask key of a client that drops out is reconstructed by
the server, which must not be able to decrypt the shares that were sent to that client. The secret of a pair follows
from the mask key of the member that is earlier in the roster, which seals it to the mask key of the other: whoever
reconstructs one of the two mask keys has it, as with a Diffie-Hellman key of both in the papers.

*Streams* are AES-128-CTR keystreams read as ring elements, starting at any element. Every stream has its own key, HKDF
of a client's or pair's secret bound to the round by `context`, so the counter starts at block 0 and a stream is never
used twice. Element i is bytes i*w to (i+1)*w of the keystream, little-endian, for a ring dtype of w bytes: uniform in
[0, 2^(8w)), hence uniform modulo 2^bits too. AES-128 is up to a fifth faster than AES-256, and each key is used for one
stream of one round.

Additions are limited by memory bandwidth, not by AES. The keystream is therefore generated in steps that stay in the
processor's cache, and several streams are added to one step of the target before the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from protocols.crypto.keys import derive_key, digest
from protocols.crypto.sealing import SealingKey
from protocols.errors import ParameterError
from protocols.sums.masked.plan import RoundContext
from protocols.sums.wire import Ring

Sign = Literal[1, -1]
Mask = tuple[bytes, bytes, Sign]
"""Secret (32 bytes), context, and whether the stream is added or subtracted."""

SECRET_BYTES: Final = 32

_PURPOSE: Final = "masked sum mask"
_KEY: Final = 16
_BLOCK: Final = 16
_STEP: Final = 128 * 1024
"""Bytes per step; its zeros, keystream and target fit into the second-level cache together."""

_BATCH: Final = 512
"""Streams at a time; the state of one takes about 1 kB."""


def is_mask_secret(secret: bytes, public: bytes) -> bool:
    """Return whether `secret` (32 bytes) is the seed of the mask key whose public key is `public`."""
    return SealingKey(secret).public == public


def pair_secret(secret: bytes, roster_digest: bytes, owner: int, peer: int) -> bytes:
    """Return the secret (32 bytes) of the mask that two members (places in the roster) have in common.

    secret: the seed of the mask key of `owner`, the earlier of the two.
    """
    return derive_key(secret, "masked pair", roster_digest, owner, peer)


def seed_commitment(seed: bytes) -> bytes:
    """Return the commitment (32 bytes) to a self-mask seed (32 bytes): hiding and binding."""
    return digest("masked seed commitment", seed)


def mask_context(context: RoundContext, roster_digest: bytes, sharers: bytes) -> bytes:
    """Return the context (32 bytes) of every mask stream of a round; clients with different inputs share no mask.

    sharers: the encoded set of clients that sent shares, as places in the roster with digest `roster_digest`.
    """
    return digest("masked stream", context.binding, roster_digest, sharers)


def add_masks(target: Ring, masks: Sequence[Mask], threads: int = 1, start: int = 0) -> None:
    """Add (or subtract) elements `start`, `start`+1, ... of each mask's stream to `target`, in place.

    target: a contiguous vector of the ring's dtype, uint16, uint32 or uint64. Adding streams in pieces gives the same
    result. `threads` threads each work on one piece of it: AES and additions release the GIL. Memory: the AES states of
    a batch of streams and two steps of 128 KiB per thread. Raises `ParameterError` for another target, a secret of
    another length or another sign.
    """
    _check(target, masks, threads, start)
    keys = [derive_key(key, _PURPOSE, context, length=_KEY) for key, context, _ in masks]
    signs = [sign for _, _, sign in masks]
    edges = [target.size * piece // threads for piece in range(threads + 1)]
    if threads == 1:
        _add_piece(target, keys, signs, start)
        return
    with ThreadPoolExecutor(threads) as pool:
        pieces = [pool.submit(_add_piece, target[a:b], keys, signs, start + a) for a, b in pairwise(edges)]
        for piece in pieces:
            piece.result()


def _check(target: Ring, masks: Sequence[Mask], threads: int, start: int) -> None:
    if target.dtype not in (np.uint16, np.uint32, np.uint64) or target.ndim != 1 or not target.flags.c_contiguous:
        raise ParameterError("a masked vector must be contiguous and of dtype uint16, uint32 or uint64")
    if any(len(key) != SECRET_BYTES or sign not in (1, -1) for key, _, sign in masks):
        raise ParameterError(f"a mask has a secret of {SECRET_BYTES} bytes and the sign 1 or -1")
    if threads < 1 or start < 0:
        raise ParameterError(f"threads must be at least 1 and start at least 0, got {threads} and {start}")


def _add_piece(target: Ring, keys: Sequence[bytes], signs: Sequence[int], start: int) -> None:
    """Add all streams to `target`, batch by batch and step by step, with reused buffers."""
    size = min(_STEP, target.nbytes)
    zeros, keystream = memoryview(bytes(size)), memoryview(bytearray(size))
    words = np.frombuffer(keystream, target.dtype.newbyteorder("<"))
    for first in range(0, len(keys), _BATCH):
        streams = [_stream(key, start * target.itemsize) for key in keys[first : first + _BATCH]]
        operations = [np.add if sign == 1 else np.subtract for sign in signs[first : first + _BATCH]]
        for place in range(0, target.size, max(words.size, 1)):
            part = target[place : place + words.size]
            source, output, elements = zeros[: part.nbytes], keystream[: part.nbytes], words[: part.size]
            for stream, operation in zip(streams, operations, strict=True):
                stream.update_into(source, output)
                operation(part, elements, out=part)


def _stream(key: bytes, position: int) -> CipherContext:
    """Return the keystream from byte `position` on."""
    block, skipped = divmod(position, _BLOCK)
    stream = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(_BLOCK, "big"))).encryptor()
    if skipped:
        stream.update(bytes(skipped))
    return stream
