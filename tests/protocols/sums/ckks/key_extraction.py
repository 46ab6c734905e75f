"""The attack of a member that uploads (0, M) in place of a ciphertext: the opened sum contains M*s, s the secret key.

Here M is one number, so every coefficient of the opened sum is that of the honest sum plus M times a coefficient of s,
which is -1, 0 or 1. Rounding removes the honest sum and the flooding noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from protocols.crypto.keyring import Keyring
from protocols.layout import whole_route
from protocols.sums.base import Buffer
from protocols.sums.ckks.encryption import _decrypt
from protocols.sums.ckks.keys import _key_bytes
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.ckks.packing import unpack_block
from protocols.sums.ckks.planner import CkksPlan
from protocols.sums.ckks.seal_io import MemoryFile, seal_context
from protocols.sums.ckks.wire import WireBuffer, view_planes


def false_contribution(plan: CkksPlan, multiplier: int) -> bytes:
    """A contribution whose ciphertexts are all (0, M), which the server's check accepts."""
    wire = WireBuffer.empty(plan.parameter_set, plan.ciphertexts, plan.degree, seeded=False)
    for index in range(plan.ciphertexts):
        # the number theoretic transform of a constant has the constant everywhere
        wire.put(index, np.repeat(np.array([0, multiplier], np.uint64), plan.degree))
    body = bytes(wire.body)
    CKKS.check(plan, whole_route(plan.layout), body)
    return body


def recover_secret_key(plan: CkksPlan, published: NDArray[np.float64], multiplier: int) -> bytes:
    """The secret key of the round, from the published sum alone: at most N values, one ciphertext."""
    relative = np.zeros(plan.degree)
    relative[: published.size] = published / plan.layout.blocks[0].bounds()
    coefficients = _coefficients(relative.view(np.complex128), plan.degree)
    secret = np.clip(np.rint(coefficients * plan.scale / multiplier), -1, 1)
    context = seal_context(plan.parameters.set, plan.degree)
    plaintext = sealapi.Plaintext()
    context.encoder.encode(_slots(secret, plan.degree).tolist(), 1.0, plaintext)
    with MemoryFile() as file:
        residues, _ = file.saved(plaintext, context.plaintext_prefix(1.0), plan.degree, 0)
        return _key_bytes(residues, plan.parameter_set)


def read_contribution(plan: CkksPlan, body: Buffer, keyring: Keyring) -> NDArray[np.float64]:
    """One contribution, opened with a key pair that may be the wrong one, with neither check nor noise."""
    slots = _decrypt(plan, view_planes(body, plan.parameter_set, plan.ciphertexts, 2, plan.degree), keyring)
    return unpack_block(plan.layout.blocks[0], slots)


def _roots(degree: int) -> NDArray[np.complex128]:
    """The powers of the roots at which SEAL evaluates, complex128 (degree/2, degree): slot j has the exponent 3^j."""
    exponents = np.array([pow(3, slot, 2 * degree) for slot in range(degree // 2)])
    return np.exp(1j * np.pi / degree * (np.outer(exponents, np.arange(degree)) % (2 * degree)))


def _coefficients(slots: NDArray[np.complex128], degree: int) -> NDArray[np.float64]:
    return np.real(np.conj(_roots(degree)).T @ slots) * 2 / degree


def _slots(coefficients: NDArray[np.float64], degree: int) -> NDArray[np.complex128]:
    return _roots(degree) @ coefficients
