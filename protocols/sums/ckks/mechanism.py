"""The CKKS mechanism: keys, packing, encryption and decryption by SEAL, and sums without a key.

*Keys* are made by SEAL and stored as fixed-length planes of residues: a secret key is one polynomial in the byte planes
of `wire`. Keys are bound to (N, q) through `Keyring.parameter_id`; using one with a plan of other parameters raises
`KeyringError`.

*Packing* is complex: N real values in the N/2 complex slots of one ciphertext, for whole arrays at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.crypto.keys import STATE_KEY_BYTES, Keyring
from protocols.errors import CodecError, KeyringError
from protocols.layout import Block, Floats, Route, VectorLayout, spans_of
from protocols.sums.base import Blocks, Buffer, OneMessage, SumPlan
from protocols.sums.ckks.fold import ExpandedSum, SeededSum, add_sum, sum_of
from protocols.sums.ckks.plan import SEED_BYTES, CkksPlan, make_plan
from protocols.sums.ckks.wire import (
    MemoryFile,
    SealContext,
    WireBuffer,
    check_expanded,
    check_range,
    check_seeded,
    join_planes,
    seal_context,
    split_residues,
    view_planes,
)
from protocols.sums.wire import PartialSum, read_count

_BYTE: Final = np.dtype(np.uint8)


class CkksMechanism(OneMessage):
    """Sums of CKKS ciphertexts (Cheon, Kim, Kim and Song, ASIACRYPT 2017); members share the secret key."""

    name: ClassVar[str] = "ckks"
    needs_keyring: ClassVar[bool] = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> CkksPlan:
        return make_plan(parameters, layout, max_contributions)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Return a new secret key from SEAL's generator, which the OS seeds, and a new state key."""
        own = CkksPlan.of(plan)
        context = seal_context(own.parameters.set, own.degree)
        generator = sealapi.KeyGenerator(context.seal)
        with MemoryFile() as file:
            residues, _ = file.saved(generator.secret_key(), context.plaintext_prefix(1.0), own.degree, 0)
            body = bytearray(own.degree * own.parameter_set.residue_bytes)
            split_residues(residues, view_planes(body, own.parameter_set, 1, 1, own.degree))
        return Keyring(own.mechanism, own.parameter_id, b"", bytes(body), secrets.token_bytes(STATE_KEY_BYTES))

    def seal(self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None) -> bytes:
        own = CkksPlan.of(plan)
        slots = pack_blocks(own.layout.check_contribution(route, blocks), blocks, own.degree)
        context, polynomials = seal_context(own.parameters.set, own.degree), 1 if own.seeded else 2
        prefix, marker = context.ciphertext_prefix(own.scale, polynomials), context.seed_marker()
        suffix = len(marker) + SEED_BYTES if own.seeded else 0
        wire = WireBuffer.empty(own.parameter_set, len(slots), own.degree, seeded=own.seeded)
        plaintext, ciphertext = sealapi.Plaintext(), sealapi.Ciphertext()
        with MemoryFile() as file:
            encryptor = sealapi.Encryptor(context.seal, load_secret_key(own, context, file, keyring))
            for index, row in enumerate(slots):
                context.encoder.encode(row.tolist(), own.scale, plaintext)
                if own.seeded:
                    ciphertext = encryptor.encrypt_symmetric(plaintext)
                else:
                    encryptor.encrypt_symmetric(plaintext, ciphertext)
                residues, tail = file.saved(ciphertext, prefix, polynomials * own.degree, suffix)
                wire.put(index, residues)
                if own.seeded:
                    if not tail.startswith(marker):
                        raise CodecError("SEAL saved a seed in an unknown form")
                    wire.seeds[index] = np.frombuffer(tail, np.uint8, SEED_BYTES, len(marker))
        return bytes(wire.body)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` for another length, a residue that is not below q or a transparent ciphertext."""
        own = CkksPlan.of(plan)
        planes = _contribution(own, route, body).planes
        (check_seeded if own.seeded else check_expanded)(planes, own.parameter_set.modulus)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        own = CkksPlan.of(plan)
        total = PartialSum(own, _BYTE)
        before = None if partial is None else sum_of(own, total.take(partial).data)
        with ExitStack() as files:
            sums: SeededSum | ExpandedSum
            sums = SeededSum(own, before, files.enter_context(MemoryFile())) if own.seeded else ExpandedSum(own, before)
            for route, body in contributions:
                total.count_more(1)
                sums.add(route, _contribution(own, route, body))
            written = sum_of(own, total.sums.data)
            for index in range(own.ciphertexts):
                written.put(index, sums.take(index))
        del written  # it is a view of the partial sum
        return total.encode()

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        own = CkksPlan.of(plan)
        total = PartialSum(own, _BYTE)
        for partial in partials:
            add_sum(own, total.sums.data, total.take(partial).data)
            del partial  # the next one takes its place in memory
        return total.encode()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the expanded ciphertexts without the count."""
        return bytes(read_count(CkksPlan.of(plan), partial)[1])

    def open(self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None) -> Floats:
        """Return the sum, float64 (layout.length,), counts rounded.

        The sum contains the encryption's own noise, from which the key can be computed (IND-CPA-D: Li and Micciancio,
        EUROCRYPT 2021): show an opened sum to holders of the key only. Raises `CodecError` for a malformed aggregate,
        `KeyringError` for a missing or wrong key.
        """
        own = CkksPlan.of(plan)
        own.require_count(contributions)
        ciphertexts = sum_of(own, aggregate)
        wrong = check_range(ciphertexts.planes, own.parameter_set.modulus)
        if wrong is not None:
            raise CodecError(f"ciphertext {wrong} of the aggregate holds a residue that is not below the modulus")
        slots = _decrypt(own, ciphertexts, keyring)
        parts = [
            slots[first:last].view(np.float64).reshape(-1)[: block.length] * block.bounds()
            for block, (first, last) in zip(own.layout.blocks, spans_of(own.block_ciphertexts), strict=True)
        ]
        for block, values in zip(own.layout.blocks, parts, strict=True):
            np.rint(values, out=values, where=block.integral_mask())
        return np.concatenate(parts)


def _contribution(plan: CkksPlan, route: Route, body: Buffer) -> WireBuffer:
    """Return the ciphertexts of a contribution; `ContributionError` unless its length is exact."""
    view = plan.require_length(route, body)
    return WireBuffer.of(view, plan.parameter_set, plan.route_ciphertexts(route), plan.degree, seeded=plan.seeded)


def load_secret_key(plan: CkksPlan, context: SealContext, file: MemoryFile, keyring: Keyring | None) -> Any:
    """Return the SEAL secret key of `keyring`; `KeyringError` if it is missing, of other parameters, or malformed."""
    body = plan.require_keyring(keyring).secret_key
    try:
        planes = view_planes(body, plan.parameter_set, 1, 1, plan.degree)
    except CodecError:
        raise KeyringError("the secret key does not have the length that its parameters imply") from None
    if check_range(planes, plan.parameter_set.modulus) is not None:
        raise KeyringError("the secret key has residues that are not below the modulus")
    return context.load(file, sealapi.SecretKey(), context.stream(context.plaintext_prefix(1.0), join_planes(planes)))


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


def _decrypt(plan: CkksPlan, aggregate: WireBuffer, keyring: Keyring | None) -> NDArray[np.complex128]:
    context = seal_context(plan.parameters.set, plan.degree)
    prefix = context.ciphertext_prefix(plan.scale, 2)
    slots = np.zeros((plan.ciphertexts, plan.degree // 2), np.complex128)
    plaintext, ciphertext = sealapi.Plaintext(), sealapi.Ciphertext()
    with MemoryFile() as file:
        decryptor = sealapi.Decryptor(context.seal, load_secret_key(plan, context, file, keyring))
        for index in range(plan.ciphertexts):
            residues = aggregate.residues(index)
            if not residues.any():
                continue  # no client contributed to this part of the sum: it is zero
            if not residues[plan.degree :].any():
                raise CodecError(f"ciphertext {index} of the aggregate is transparent: it is not a sum of ciphertexts")
            context.load(file, ciphertext, context.stream(prefix, residues))
            decryptor.decrypt(ciphertext, plaintext)
            slots[index] = context.encoder.decode_complex(plaintext)
    return slots


CKKS: Final = CkksMechanism()
"""The mechanism; stateless."""
