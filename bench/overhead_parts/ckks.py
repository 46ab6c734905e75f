"""Measure CKKS: TenSEAL's usual pipeline, and ours with the shared secret key and with a public key.

Sealing encrypts and serialises in one pass. So encryption is measured alone, with the same calls to SEAL, and the
difference to the whole is the time of serialising. A seeded contribution is deserialised by expanding its seeds, which
is measured alone too; the rest of the fold is addition.
"""

from __future__ import annotations

import contextlib
import io
from typing import Final

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

from bench.overhead_parts.rows import Row
from bench.overhead_parts.steps import Steps, medians
from protocols.crypto.keyring import Keyring
from protocols.layout import Block, Segment, VectorLayout, whole_route
from protocols.sums.ckks.fold import _SeedSum
from protocols.sums.ckks.keys import load_public_key, load_secret_key
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.packing import pack_blocks
from protocols.sums.ckks.planner import SEED_BYTES, CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, seal_context

__all__ = ["layout_of", "ours", "public", "tenseal_usual", "vector_of"]

CLIP: Final = 0.1
AT_ONCE: Final = 8
"""Contributions whose seeds are expanded at once, so that the set-up of a fold counts as little as in a real fold."""


def layout_of(values: int) -> VectorLayout:
    """A layout of one block of `values` values: the paper's vector, without touch counts."""
    return VectorLayout((Block("update", (Segment("values", values, CLIP),)),))


def vector_of(values: int) -> NDArray[np.float64]:
    """float64 (values,), distributed like an update: normal, clipped to CLIP."""
    return np.clip(np.random.default_rng(20240513).normal(0.0, CLIP / 2, values), -CLIP, CLIP)


def tenseal_usual(row: Row, _clients: int, repetitions: int) -> Steps:
    """`ts.ckks_vector` with N=8192, moduli of 60-40-40-60 bits, scale 2^40; its warnings are suppressed."""
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    context.global_scale = 2**40
    vector = vector_of(row.values)
    with contextlib.redirect_stdout(io.StringIO()):
        ciphertext = ts.ckks_vector(context, vector)
        body = bytes(ciphertext.serialize())
        loaded, total = ts.ckks_vector_from(context, body), ts.ckks_vector_from(context, body)
        times = medians(
            {
                "encrypt": lambda: ts.ckks_vector(context, vector),
                "serialise": ciphertext.serialize,
                "decrypt": lambda: ts.ckks_vector_from(context, body).decrypt(),
                "deserialise": lambda: ts.ckks_vector_from(context, body),
                "fold": lambda: total.add_(loaded),
            },
            repetitions,
            _calls(row.values),
        )
    return Steps(**times, ciphertext_bytes=len(body))


def ours(row: Row, clients: int, repetitions: int) -> Steps:
    """The defaults of a task: shared secret key, set `standard`, seeded."""
    return _measure(CKKS.plan({}, layout_of(row.values), clients), repetitions)


def public(row: Row, clients: int, repetitions: int) -> Steps:
    """Public-key mode: only the key holder opens sums; flooding them with noise counts as decryption."""
    return _measure(CKKS.plan({"mode": "public"}, layout_of(row.values), clients), repetitions)


def _measure(plan: CkksPlan, repetitions: int) -> Steps:
    keyring, route, vector = CKKS.generate_keyring(plan), whole_route(plan.layout), vector_of(plan.layout.length)
    body = CKKS.seal(plan, route, [vector], keyring)
    clients = plan.max_contributions
    partial = CKKS.fold(plan, None, [(route, body)] * clients)
    aggregate = CKKS.release(plan, partial)
    times = medians(
        {
            "seal": lambda: CKKS.seal(plan, route, [vector], keyring),
            "encrypt": lambda: _encrypt(plan, vector, keyring),
            "check": lambda: CKKS.check(plan, route, body),
            "expand": lambda: _expand(plan, body),
            "fold": lambda: CKKS.fold(plan, None, [(route, body)] * clients),
            "decrypt": lambda: CKKS.open(plan, aggregate, clients, keyring),
        },
        repetitions,
        _calls(plan.layout.length),
    )
    expand = times["expand"] / AT_ONCE
    return Steps(
        encrypt=min(times["encrypt"], times["seal"]),
        serialise=max(times["seal"] - times["encrypt"], 0.0),
        decrypt=times["decrypt"],
        deserialise=times["check"] + expand,
        fold=max(times["fold"] / clients - expand, 0.0),
        ciphertext_bytes=len(body),
    )


def _encrypt(plan: CkksPlan, vector: NDArray[np.float64], keyring: Keyring) -> None:
    """Encrypt as sealing does, and discard the ciphertexts."""
    context = seal_context(plan.parameters.set, plan.degree)
    slots = pack_blocks(plan.layout.blocks, [vector], plan.degree)
    plaintext = sealapi.Plaintext()
    with MemoryFile() as file:
        if plan.seeded:
            encryptor = sealapi.Encryptor(context.seal, load_secret_key(plan, context, file, keyring))
        else:
            encryptor = sealapi.Encryptor(context.seal, load_public_key(plan, context, file, keyring))
    ciphertext = sealapi.Ciphertext()
    for row in slots:
        context.encoder.encode(row.tolist(), plan.scale, plaintext)
        if plan.seeded:
            encryptor.encrypt_symmetric(plaintext)
        else:
            encryptor.encrypt(plaintext, ciphertext)


def _expand(plan: CkksPlan, body: bytes) -> None:
    """Let SEAL expand the seeds of AT_ONCE contributions; the expanded form has no seeds, so nothing is done."""
    if not plan.seeded:
        return
    seeds = _SeedSum(plan)
    try:
        for contribution in range(AT_ONCE):  # each into a slot of its own, to which nothing was added yet
            seeds.add(contribution * plan.ciphertexts, memoryview(body)[-plan.ciphertexts * SEED_BYTES :])
    finally:
        seeds.close()


def _calls(values: int) -> int:
    """Calls per repetition: more for short vectors, so that a step lasts about as long as for long ones."""
    return max(1, 2**16 // values)
