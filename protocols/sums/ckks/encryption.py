"""Keys, packing, encryption and decryption of CKKS sums.

*Keys* are made by SEAL and stored as fixed-length planes of residues: a secret key is one polynomial in the byte planes
of `wire`. Keys are bound to (N, q) through `Keyring.parameter_id`; using one with a plan of other parameters raises
`KeyringError`.

*Packing* is complex: N real values in the N/2 complex slots of one ciphertext, for whole arrays at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.crypto.keys import STATE_KEY_BYTES, Keyring
from protocols.errors import CodecError, KeyringError
from protocols.layout import Block, Route
from protocols.sums.base import Buffer, require_keyring
from protocols.sums.ckks.plan import SEED_BYTES, CkksPlan, ParameterSet
from protocols.sums.ckks.wire import (
    MemoryFile,
    Planes,
    SealContext,
    WireBuffer,
    check_range,
    join_planes,
    seal_context,
    split_residues,
    view_planes,
)


def generate_keyring(plan: CkksPlan) -> Keyring:
    """Return a new secret key from SEAL's generator, which the OS seeds, and a new state key."""
    context = seal_context(plan.parameters.set, plan.degree)
    generator = sealapi.KeyGenerator(context.seal)
    with MemoryFile() as file:
        residues, _ = file.saved(generator.secret_key(), context.plaintext_prefix(1.0), plan.degree, 0)
        body = bytearray(plan.degree * plan.parameter_set.residue_bytes)
        split_residues(residues, view_planes(body, plan.parameter_set, 1, 1, plan.degree))
    return Keyring(plan.mechanism, plan.parameter_id, b"", bytes(body), secrets.token_bytes(STATE_KEY_BYTES))


def load_secret_key(plan: CkksPlan, context: SealContext, file: MemoryFile, keyring: Keyring | None) -> Any:
    """Return the SEAL secret key of `keyring`; `KeyringError` if it is missing, of other parameters, or malformed."""
    residues = _key_residues(
        require_keyring(plan.mechanism, plan.parameter_id, keyring).secret_key, plan.parameter_set, plan.degree
    )
    key = sealapi.SecretKey()
    context.load(file, key, context.stream(context.plaintext_prefix(1.0), residues))
    return key


def _key_residues(body: bytes, parameter_set: ParameterSet, degree: int) -> NDArray[np.uint64]:
    try:
        planes = view_planes(body, parameter_set, 1, 1, degree)
    except CodecError:
        raise KeyringError("the secret key does not have the length that its parameters imply") from None
    if check_range(planes, parameter_set.modulus) is not None:
        raise KeyringError("the secret key has residues that are not below the modulus")
    return join_planes(planes)


def pack_blocks(blocks: Sequence[Block], vectors: Sequence[NDArray[np.float64]], degree: int) -> NDArray[np.complex128]:
    """Return the values divided by their clips, complex128 (ciphertexts, degree/2), blocks padded to whole ciphertexts.

    Values 2j and 2j+1 of a ciphertext are the real and the imaginary part of slot j. vectors: as
    `VectorLayout.check_contribution` accepts them.
    """
    lengths = [-(-block.length // degree) * degree for block in blocks]
    padded = np.zeros(sum(lengths))
    start = 0
    for block, vector, length in zip(blocks, vectors, lengths, strict=True):
        np.divide(vector, block.bounds(), out=padded[start : start + block.length])
        start += length
    return padded.view(np.complex128).reshape(-1, degree // 2)


def seal_blocks(plan: CkksPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None) -> bytes:
    """Return a contribution of `plan.contribution_bytes(route)` bytes; see `protocols.sums.base.OneMessage.seal`."""
    slots = pack_blocks(plan.layout.check_contribution(route, blocks), blocks, plan.degree)
    context, polynomials = seal_context(plan.parameters.set, plan.degree), 1 if plan.seeded else 2
    prefix, marker = context.ciphertext_prefix(plan.scale, polynomials), context.seed_marker()
    suffix = len(marker) + SEED_BYTES if plan.seeded else 0
    wire = WireBuffer.empty(plan.parameter_set, len(slots), plan.degree, seeded=plan.seeded)
    plaintext, ciphertext = sealapi.Plaintext(), sealapi.Ciphertext()
    with MemoryFile() as file:
        encryptor = sealapi.Encryptor(context.seal, load_secret_key(plan, context, file, keyring))
        for index, row in enumerate(slots):
            context.encoder.encode(row.tolist(), plan.scale, plaintext)
            if plan.seeded:
                ciphertext = encryptor.encrypt_symmetric(plaintext)
            else:
                encryptor.encrypt_symmetric(plaintext, ciphertext)
            residues, tail = file.saved(ciphertext, prefix, polynomials * plan.degree, suffix)
            wire.put(index, residues)
            if plan.seeded:
                if not tail.startswith(marker):
                    raise CodecError("SEAL saved a seed in an unknown form")
                wire.seeds[index] = np.frombuffer(tail, np.uint8, SEED_BYTES, len(marker))
    return bytes(wire.body)


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
        slots[start : start + count].view(np.float64).reshape(-1)[: block.length] * block.bounds()
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
