"""Encryption of values to ciphertexts in wire form, and decryption of an aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.crypto.keyring import Keyring
from protocols.errors import CodecError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.ckks.keys import load_secret_key
from protocols.sums.ckks.packing import pack_blocks, unpack_block
from protocols.sums.ckks.planner import SEED_BYTES, CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, SealContext, seal_context
from protocols.sums.ckks.wire import Planes, WireBuffer, check_range, join_planes, view_planes

__all__ = ["open_aggregate", "seal_blocks"]


def seal_blocks(plan: CkksPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None) -> bytes:
    """Return a contribution of `plan.contribution_bytes(route)` bytes; see `protocols.sums.base.Mechanism.seal`."""
    slots = pack_blocks(plan.layout.contribution_blocks(route), blocks, plan.degree)
    context = seal_context(plan.parameters.set, plan.degree)
    wire = WireBuffer.empty(plan.parameter_set, len(slots), plan.degree, seeded=plan.seeded)
    with MemoryFile() as file:
        encryptor = sealapi.Encryptor(context.seal, load_secret_key(plan, context, file, keyring))
        write = _write_seeded if plan.seeded else _write_expanded
        write(plan, context, encryptor, file, slots, wire)
    return bytes(wire.body)


def _write_seeded(
    plan: CkksPlan,
    context: SealContext,
    encryptor: Any,
    file: MemoryFile,
    slots: NDArray[np.complex128],
    wire: WireBuffer,
) -> None:
    prefix, marker = context.ciphertext_prefix(plan.scale, 1), context.seed_marker()
    plaintext = sealapi.Plaintext()
    for index, row in enumerate(slots):
        context.encoder.encode(row.tolist(), plan.scale, plaintext)
        ciphertext = encryptor.encrypt_symmetric(plaintext)
        residues, tail = file.saved(ciphertext, prefix, plan.degree, len(marker) + SEED_BYTES)
        if not tail.startswith(marker):
            raise CodecError("SEAL saved a seed in an unknown form")
        wire.put(index, residues)
        wire.seeds[index] = np.frombuffer(tail, np.uint8, SEED_BYTES, len(marker))


def _write_expanded(
    plan: CkksPlan,
    context: SealContext,
    encryptor: Any,
    file: MemoryFile,
    slots: NDArray[np.complex128],
    wire: WireBuffer,
) -> None:
    prefix = context.ciphertext_prefix(plan.scale, 2)
    plaintext, ciphertext = sealapi.Plaintext(), sealapi.Ciphertext()
    for index, row in enumerate(slots):
        context.encoder.encode(row.tolist(), plan.scale, plaintext)
        encryptor.encrypt_symmetric(plaintext, ciphertext)
        residues, _ = file.saved(ciphertext, prefix, 2 * plan.degree, 0)
        wire.put(index, residues)


def open_aggregate(plan: CkksPlan, aggregate: Buffer, keyring: Keyring | None) -> NDArray[np.float64]:
    """Return the sum, float64 (layout.length,), counts rounded.

    The sum contains the encryption's own noise, from which the key can be computed (IND-CPA-D: Li and Micciancio,
    EUROCRYPT 2021): show an opened sum to holders of the key only. Raises `CodecError` for a malformed aggregate,
    `KeyringError` for a missing or wrong key.
    """
    planes = view_planes(aggregate, plan.parameter_set, plan.ciphertexts, 2, plan.degree)
    wrong = check_range(planes, plan.parameter_set.modulus)
    if wrong is not None:
        raise CodecError(f"ciphertext {wrong} of the aggregate holds a residue that is not below the modulus")
    slots = _decrypt(plan, planes, keyring)
    parts = [
        unpack_block(block, slots[start : start + count])
        for block, start, count in zip(plan.layout.blocks, plan.block_starts, plan.block_ciphertexts, strict=True)
    ]
    for block, values in zip(plan.layout.blocks, parts, strict=True):
        np.rint(values, out=values, where=block.integral_mask())
    return np.concatenate(parts)


def _decrypt(plan: CkksPlan, planes: Planes, keyring: Keyring | None) -> NDArray[np.complex128]:
    context = seal_context(plan.parameters.set, plan.degree)
    prefix = context.ciphertext_prefix(plan.scale, 2)
    slots = np.zeros((plan.ciphertexts, plan.degree // 2), np.complex128)
    plaintext, ciphertext = sealapi.Plaintext(), sealapi.Ciphertext()
    with MemoryFile() as file:
        decryptor = sealapi.Decryptor(context.seal, load_secret_key(plan, context, file, keyring))
        for index in range(plan.ciphertexts):
            residues = join_planes(tuple(plane[index] for plane in planes))
            if not residues.any():
                continue  # no client contributed to this part of the sum: it is zero
            if not residues[1].any():
                raise CodecError(f"ciphertext {index} of the aggregate is transparent: it is not a sum of ciphertexts")
            context.load(file, ciphertext, context.stream(prefix, residues))
            decryptor.decrypt(ciphertext, plaintext)
            slots[index] = context.encoder.decode_complex(plaintext)
    return slots
